"""`install`, the only function that users call. It checks the options of tasks, and makes workers check limits."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from huey import Huey  # type: ignore[import-untyped]
from huey.serializer import Serializer, SignedSerializer  # type: ignore[import-untyped]
from huey.storage import RedisStorage  # type: ignore[import-untyped]

from throttlekit import ConfigurationError, Limiter
from throttlekit.adapter import OnWaitedTooLong, WaitRules, check_limiter, checks_spelling, show_log
from throttlekit_huey._admission import Admission
from throttlekit_huey._options import FIELD, Tasks, throttled_wrapper

__all__ = ["install", "limiter_of"]

_MARK = "_throttlekit_admission"


@checks_spelling
def install(
    huey: Any,
    limiter: Limiter,
    *,
    max_wait: float | timedelta | None = None,
    max_deferrals: int | None = None,
    on_waited_too_long: OnWaitedTooLong = "fail",
) -> None:
    """
    Apply limits to the tasks of *huey*. All workers whose limiter uses the same store share the limits.

        huey = RedisHuey("shop")
        install(huey, Limiter("redis://localhost/1"))

    A denied task is put back into huey's schedule, and runs at its turn, with the same id, arguments, retries,
    priority, expiry, result, pipeline and chord. Call `install` once, in the module that creates *huey*. Tasks may be
    declared before or after the call.

    Args:
        huey: A huey on Redis: `RedisHuey`, `PriorityRedisHuey`, or one of their variants that expire results.
        limiter: The limiter that decides. Create it at import; it connects on first use.
        max_wait: The longest total wait of a task, in seconds from its first denial. The option `throttle_max_wait` of
            a task or a call replaces this value. Default: no limit.
        max_deferrals: The maximum number of denials of a task. Default: no limit.
        on_waited_too_long: The action for a task that exceeds *max_wait* or *max_deferrals*, or that a full `queue=`
            rejects. "fail" ends it with `WaitedTooLong`. "drop" ends it as canceled. "run" runs it uncharged,
            **beyond the limit**.

    Raises:
        ConfigurationError: An argument or a task's option can never work, or `install` was already called for *huey*.
    """
    if not isinstance(huey, Huey):
        raise ConfigurationError(f"install takes a huey: install(huey, limiter), not {huey!r}")
    check_limiter(limiter, 'install takes a limiter: install(huey, Limiter("redis://…"))')
    untyped: Any = huey
    if not issubclass(untyped.storage_class or RedisStorage, RedisStorage):
        raise ConfigurationError(
            f"install(huey, …) needs a huey on Redis, like RedisHuey: {type(huey).__name__} cannot move a job back to "
            "its schedule without the risk of losing it"
        )
    if hasattr(huey, _MARK):
        raise ConfigurationError("install(huey, …) was called before for this huey: each task would be charged twice")
    tasks = Tasks(huey, limiter)
    for made in untyped._registry._registry.values():
        tasks.declare(made)
    plain = type(untyped.serializer) in (Serializer, SignedSerializer) and not untyped.serializer.comp

    def texts() -> list[str]:
        return [FIELD, *tasks.names] if plain and not limiter.events.configures_limits else [""]

    admission = Admission(huey, limiter, tasks, WaitRules.read(max_wait, max_deferrals, on_waited_too_long), texts)
    make_consumer = untyped.create_consumer

    def create_consumer(**options: Any) -> Any:
        show_log("huey")
        admission.throttling.warn_in_memory()
        admission.waiting.begin()
        consumer = make_consumer(**options)
        stop = consumer.stop

        def stop_consumer(graceful: bool = False) -> None:
            consumer.stop_flag.set()
            # Wait for the idle workers first. Each idle worker waits for a message for up to a second. After
            # `waiting.close()` it could take a task that is meant for another process, and stop without running the
            # task. No worker would have that task for ten seconds.
            # (A greenlet has no ident, and the ident of a process is not one of these threads.)
            workers, idle = [worker for _, worker in consumer.worker_threads], {None, *admission.waiting.idle}
            until = time.monotonic() + 2 * (untyped.storage.read_timeout or 1)
            for worker in [each for each in workers if getattr(each, "ident", None) in idle]:
                worker.join(max(0.0, until - time.monotonic()))
            admission.waiting.close()
            stop(graceful)

        consumer.stop = stop_consumer
        return consumer

    untyped.task_wrapper_class = throttled_wrapper(untyped.task_wrapper_class, tasks)
    untyped.create_consumer = create_consumer
    untyped.on_shutdown("throttlekit")(admission.waiting.close_child)
    for name in ("dequeue", "execute", "read_schedule", "flush"):
        setattr(untyped, name, getattr(admission, name))
    setattr(untyped, _MARK, admission)


def limiter_of(huey: Any) -> Limiter | None:
    """Return the limiter of *huey*, or None if `install` was not called for it."""
    admission: Admission | None = getattr(huey, _MARK, None)
    return None if admission is None else admission.throttling.limiter
