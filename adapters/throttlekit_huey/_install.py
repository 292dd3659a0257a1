"""The one call: it checks tasks' options, and gives a huey workers that ask first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from huey import Huey  # type: ignore[import-untyped]
from huey.serializer import Serializer, SignedSerializer  # type: ignore[import-untyped]
from huey.storage import RedisStorage  # type: ignore[import-untyped]

from throttlekit import ConfigurationError, Limiter
from throttlekit.adapter import WaitRules, WhenOver, check_limiter, show_log
from throttlekit_huey._admission import Gate
from throttlekit_huey._options import FIELD, Tasks, throttled_wrapper

__all__ = ["install", "limiter_of"]

_MARK = "_throttlekit_gate"


def install(
    huey: Any,
    limiter: Limiter,
    *,
    max_wait: float | timedelta | None = None,
    max_deferrals: int | None = None,
    when_over: WhenOver = "fail",
) -> None:
    """
    Hold the tasks of *huey* to limits, together with all workers whose limiter uses the same store.

    A task that its limits deny goes back into huey's schedule, and runs when its turn has come: same id,
    arguments, retries, priority, expiry, result, pipeline, chord. Call it once, where *huey* is made, in all processes
    that import it; tasks may be declared before or after.

    Args:
        huey: On Redis: `RedisHuey`, `PriorityRedisHuey`, or one of their kind that expires results.
        limiter: Decides. Make it at import; it connects on first use.
        max_wait: How long a task may wait in all, in seconds, from its first denial. The option
            `throttle_max_wait` of a task or a call goes before it. Default: for ever.
        max_deferrals: How often a task may be denied. Default: any number of times.
        when_over: What becomes of a task past either, or refused because a limit's `queue=` is full: "fail" ends it
            with `WaitedTooLong`, "drop" as canceled, "run" runs it uncharged, **beyond the limit**.

    Raises:
        ConfigurationError: An argument or a task's option can never work, or it was called before for this huey.
    """
    if not isinstance(huey, Huey):
        raise ConfigurationError(f"install takes a huey: install(huey, limiter), not {huey!r}")
    check_limiter(limiter, 'install takes a limiter: install(huey, Limiter("redis://…"))')
    untyped: Any = huey
    if not issubclass(untyped.storage_class or RedisStorage, RedisStorage):
        raise ConfigurationError(
            f"install(huey, …) needs a huey on Redis, like RedisHuey: {type(huey).__name__} has no schedule that a job "
            "can go back to without the risk of losing it"
        )
    if hasattr(huey, _MARK):
        raise ConfigurationError("install(huey, …) was called before for this huey: each task would be charged twice")
    tasks = Tasks(huey, limiter)
    for made in untyped._registry._registry.values():
        tasks.declare(made)
    plain = type(untyped.serializer) in (Serializer, SignedSerializer) and not untyped.serializer.comp

    def texts() -> list[str]:
        return [FIELD, *tasks.names] if plain and not limiter.events.configures_limits else [""]

    gate = Gate(huey, limiter, tasks, WaitRules.read(max_wait, max_deferrals, when_over), texts)
    make_consumer = untyped.create_consumer

    def create_consumer(**options: Any) -> Any:
        show_log("huey")
        gate.throttling.warn_in_memory()
        gate.waiting.begin()
        consumer = make_consumer(**options)
        stop = consumer.stop

        def stop_consumer(graceful: bool = False) -> None:
            consumer.stop_flag.set()
            gate.waiting.close()
            stop(graceful)

        consumer.stop = stop_consumer
        return consumer

    untyped.task_wrapper_class = throttled_wrapper(untyped.task_wrapper_class, tasks)
    untyped.create_consumer = create_consumer
    untyped.on_shutdown("throttlekit")(gate.waiting.close_child)
    for name in ("dequeue", "execute", "read_schedule", "flush"):
        setattr(untyped, name, getattr(gate, name))
    setattr(untyped, _MARK, gate)


def limiter_of(huey: Any) -> Limiter | None:
    """The limiter of *huey*; None if `install` was not called for it."""
    gate: Gate | None = getattr(huey, _MARK, None)
    return None if gate is None else gate.throttling.limiter
