"""`Throttle`, the middleware that checks the limits of each task before its body."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, cast

from taskiq import (
    AckableMessage,
    AsyncBroker,
    InMemoryBroker,
    NoResultError,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
)
from taskiq.decor import AsyncTaskiqDecoratedTask
from taskiq.kicker import AsyncKicker
from taskiq.labels import LabelType
from taskiq.receiver import Receiver

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit.adapter import (
    THROTTLE,
    Admitted,
    Deferred,
    Failed,
    OnWaitedTooLong,
    Outcome,
    Run,
    Throttling,
    Waiting,
    WaitRules,
    check_limiter,
    checks_spelling,
    set_in_loop,
)
from throttlekit_taskiq._held import Delivered, Holding, check_broker
from throttlekit_taskiq._options import REQUEST, Options, Request

__all__ = ["Throttle"]

_MANY = 100_000

_log = logging.getLogger("throttlekit.taskiq")
_DELIVERED: ContextVar[Delivered | None] = ContextVar("throttlekit_taskiq_delivered", default=None)


class _BodyDeferred(NoResultError):
    """Raised in place of a body's `RateLimited`, so that the run has no result and the message is deferred."""


class Throttle(TaskiqMiddleware):
    """
    A taskiq middleware that applies limits to the tasks of a broker.

        broker.add_middlewares(Throttle(Limiter("redis://localhost/1")))

        @broker.task(throttle=[TokenBucket("partner", "10/s")])
        async def push(contact_id): ...

    Create one `Throttle` for each broker, and add it before tasks are declared. Other options of a task are
    `throttle_on_429=` and `throttle_max_wait=`. A denied task waits in its worker process, unacknowledged. It uses no
    retry, and does not count for `--max-async-tasks`.

    Args:
        limiter: The limiter that decides. It connects on first use.
        max_wait: The longest total wait of a task, in seconds from its first denial. The `throttle_max_wait` of a task
            or a message replaces this value. Default: no limit.
        max_deferrals: The maximum number of denials of a task. Default: no limit.
        on_waited_too_long: The action for a task that exceeds *max_wait* or *max_deferrals*, or that a full `queue=`
            rejects. "fail" fails it with `WaitedTooLong`. "drop" ends it without running it. "run" runs it uncharged,
            **beyond the limit**.
        max_held: The maximum number of waiting tasks in one worker process. With this many, the process fetches no
            other tasks.

    Raises:
        ConfigurationError: An argument can never work.
    """

    @checks_spelling
    def __init__(
        self,
        limiter: Limiter,
        *,
        max_wait: float | timedelta | None = None,
        max_deferrals: int | None = None,
        on_waited_too_long: OnWaitedTooLong = "fail",
        max_held: int = 1000,
    ) -> None:
        super().__init__()
        self.limiter = check_limiter(limiter, "Throttle takes a limiter: Throttle(Limiter(…))")
        if type(max_held) is not int or max_held < 1:
            raise ConfigurationError(f"max_held must be a whole number of at least 1, not {max_held!r}")
        self._max_held, self._rules = max_held, WaitRules.read(max_wait, max_deferrals, on_waited_too_long)

    def limits_of(self, name: str) -> tuple[Limit, ...]:
        """
        Return the limits in the declaration of the task *name*.

        Raises:
            ConfigurationError: The broker has no such task.
        """
        return self._options.of_task(name)[0].limits

    def set_broker(self, broker: AsyncBroker) -> None:
        if hasattr(self, "_holding"):
            raise ConfigurationError("this Throttle already belongs to a broker: make one for each broker")
        check_broker(broker)
        super().set_broker(broker)
        self._receiver: Receiver | None = None
        self._holding = Holding(broker, self.limiter, self._free, self._max_held)
        self._options = Options(self.limiter, self._rules, broker)
        self._throttling = Throttling(self.limiter, self._options, rules=self._rules, log=_log, noun="Task")
        declare: Callable[..., Any] = broker.decorator_class

        def decorate(**given: Any) -> AsyncTaskiqDecoratedTask[Any, Any]:
            task = declare(**given)
            self._options.declare(task)
            return task  # type: ignore[no-any-return]

        host: Any = broker
        host.decorator_class, host.listen = decorate, self._listen
        if isinstance(broker, InMemoryBroker):
            host.receiver.callback = partial(_call_in_own_task, host.receiver.callback)
        self._declare_all()

    def startup(self) -> None:
        self._declare_all()
        if self.broker.is_worker_process:
            self._throttling.warn_in_memory()
            # Be the first middleware, so that the others receive a task only when it runs. Otherwise a retry middleware
            # would count a deferred task.
            self.broker.middlewares = [self, *(each for each in self.broker.middlewares if each is not self)]
            formatter: Any = self.broker.formatter
            formatter.loads = partial(_note_delivery, formatter.loads)

    def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        if (message.labels_types or {}).get(THROTTLE) == LabelType.ANY:
            raise ConfigurationError(
                f"task {message.task_name!r}: its broker has no Throttle, or got it as late as its `startup()`, so "
                "throttle= was written into the message as text: add the middleware before the task is declared"
            )
        return message

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        delivered = _DELIVERED.get()
        request = Request(message, delivered)
        REQUEST.set(request)
        callback = cast("asyncio.Task[Any]", asyncio.current_task())
        if delivered is not None:
            callback.add_done_callback(lambda _: self._holding.waker.report_free())
            waits = self._holding.waiting_of(delivered, message.task_id)
        else:  # a broker in memory
            wake = partial(set_in_loop, asyncio.get_running_loop(), request.woken)
            waits = Waiting(self.limiter.waker, wake)
        while isinstance(outcome := await self._throttling.admit_async(request, waits), Deferred):
            if delivered is not None:
                if self._receiver is not None and self._receiver.max_tasks_to_execute:
                    self._receiver.max_tasks_to_execute += 1  # it counts fetched tasks, and this one did not run
                await self._holding.keep(delivered)
                raise asyncio.CancelledError  # ends the callback, which runs, stores and acknowledges nothing
            await request.woken.wait()
            request.woken.clear()
        if isinstance(outcome, Run) and not outcome.limits:
            return message
        request.admitted = Admitted(self._throttling, outcome, partial(_follow, message))
        if isinstance(outcome, Run):
            callback.add_done_callback(partial(self._finish, request, waits))
        elif isinstance(outcome, Failed):
            _prevent_retry(message, outcome.error)
        return message

    def _finish(self, request: Request, waits: Waiting, _: object) -> None:
        """End the callback. If no body has run, for example after another middleware's error, return the units."""
        if request.admitted is not None and (cancel := request.admitted.cancel()) is not None:
            self.limiter.threads.run_to_end(cancel)
        if request.delivered is None or not request.delivered.kept:
            waits.waker.done(waits.id or request.message.task_id)

    def _free(self) -> int:
        """Return the number of tasks that the worker can start now."""
        places = getattr(self._receiver, "sem", None)
        return _MANY if places is None else places._value

    async def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        if not isinstance(exception, _BodyDeferred) or (request := REQUEST.get()) is None:
            return
        if request.delivered is not None:
            await self._holding.keep(request.delivered)
        else:  # a broker in memory
            await request.woken.wait()
            kicker: AsyncKicker[Any, Any] = AsyncKicker(message.task_name, self.broker, dict(message.labels))
            await kicker.with_task_id(message.task_id).kiq(*message.args, **message.kwargs)

    def _listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        # Find the receiver, which taskiq passes to no hook. After an error, a new one may listen beside the first.
        found: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), Receiver)]
        ours = [each for each in found if each.broker is self.broker]
        self._receiver = next((each for each in ours if each is not self._receiver), ours[0] if ours else None)
        if self._receiver is not None and self._receiver.is_process_pool:
            raise ConfigurationError(
                "Throttle does not work with a pool of processes, where limits would not apply: start the worker "
                "without --use-process-pool, or use a broker without Throttle for the tasks that need it"
            )
        return self._holding.listen()

    def _declare_all(self) -> None:
        for task in self.broker.get_all_tasks().values():
            self._options.declare(task)


async def _call_in_own_task(callback: Callable[..., Awaitable[None]], **arguments: Any) -> None:
    """
    Make a broker in memory run each callback in an asyncio task of its own, as a worker does. Such a broker may run a
    task within the sender's asyncio task, which would then have the request of the wrong task, and end much later.
    """
    await asyncio.ensure_future(callback(**arguments))


def _follow(message: TaskiqMessage, outcome: Outcome) -> bool:
    if isinstance(outcome, Deferred):
        raise _BodyDeferred from None
    if isinstance(outcome, Failed):
        _prevent_retry(message, outcome.error)
        raise outcome.error from None
    return True  # dropped


def _prevent_retry(message: TaskiqMessage, error: Exception) -> None:
    _log.error("Task %s %s fails: %s", message.task_name, message.task_id, error)
    message.labels["retry_on_error"] = False  # a retry cannot help


def _note_delivery(loads: Callable[..., TaskiqMessage], message: bytes) -> TaskiqMessage:
    """Record the delivery of *message* for its callback, when the receiver reads it."""
    _DELIVERED.set(message if isinstance(message, Delivered) else None)
    return loads(message=message)
