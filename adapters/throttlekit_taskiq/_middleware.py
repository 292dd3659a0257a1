"""`Throttle`: asks for each task that names a limit, and watches its body."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from taskiq import AsyncBroker, NoResultError, TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.decor import AsyncTaskiqDecoratedTask
from taskiq.kicker import AsyncKicker
from taskiq.labels import LabelType

from throttlekit import ConfigurationError, Limit, Limiter
from throttlekit.adapter import (
    Around,
    Deferred,
    Failed,
    Outcome,
    Run,
    Throttling,
    WaitRules,
    WhenOver,
    check_limiter,
    lane_in,
    leaves_most,
)
from throttlekit_taskiq._held import Delivered, Holding
from throttlekit_taskiq._options import TICKET, Asked, Options

__all__ = ["Throttle"]

_log = logging.getLogger("throttlekit.taskiq")


@dataclass(slots=True)
class _Admitted:
    """What became of the message whose callback runs here, by whom, and whether its body has begun."""

    throttling: Throttling[Asked]
    asked: Asked
    outcome: Outcome
    begun: bool = False


_DELIVERED: ContextVar[Delivered | None] = ContextVar("throttlekit_taskiq_delivered", default=None)
_ADMITTED: ContextVar[_Admitted | None] = ContextVar("throttlekit_taskiq_admitted", default=None)


class _HeldBack(NoResultError):
    """The body heard a 429: its run has no result, and the message is deferred."""

    def __init__(self, outcome: Deferred) -> None:
        super().__init__()
        self.outcome = outcome


class Throttle(TaskiqMiddleware):
    """
    Holds limits over the tasks of a broker: `broker.add_middlewares(Throttle(Limiter("redis://…")))`.

    Add it before tasks are declared, and make one for each broker. `@broker.task(throttle=[limit])` is a task with
    limits; `throttle_on_429=` and `throttle_max_wait=` are its other options. A denied task waits in its worker
    process, unacknowledged; it costs no retry, and no place of `--max-async-tasks`.

    Args:
        limiter: Decides.
        max_wait, max_deferrals, when_over: How long tasks may wait, and what becomes of them afterwards: see
            `throttlekit.adapter.WaitRules`.
        max_held: How many tasks may wait in one worker process. While so many do, it fetches no other tasks.

    Raises:
        ConfigurationError: An argument can never work.
    """

    _worker_pid: ClassVar = 0

    def __init__(
        self,
        limiter: Limiter,
        *,
        max_wait: float | timedelta | None = None,
        max_deferrals: int | None = None,
        when_over: WhenOver = "fail",
        max_held: int = 1000,
    ) -> None:
        super().__init__()
        self.limiter = check_limiter(limiter, "Throttle takes a limiter: Throttle(Limiter(…))")
        if type(max_held) is not int or max_held < 1:
            raise ConfigurationError(f"max_held must be a whole number of at least 1, not {max_held!r}")
        self._max_held = max_held
        rules = WaitRules.read(max_wait, max_deferrals, when_over)
        self._options = Options(limiter, rules, self._watch)
        self._throttling = Throttling(limiter, self._options, rules=rules, log=_log, noun="Task")
        self._holding: Holding

    def limits_of(self, name: str) -> tuple[Limit, ...]:
        """The limits that the task *name* was declared with."""
        return self._options.limits_of(name)

    def set_broker(self, broker: AsyncBroker) -> None:
        if hasattr(self, "_holding"):
            raise ConfigurationError("this Throttle belongs to a broker already: make one for each broker")
        super().set_broker(broker)
        self._options.broker = broker
        self._holding = Holding(broker, self._max_held, self._send_back)
        self._options.longest_hold = self._holding.longest
        declare: Callable[..., Any] = broker.decorator_class

        def decorate(**given: Any) -> AsyncTaskiqDecoratedTask[Any, Any]:
            task = declare(**given)
            self._options.declare(task)
            return task  # type: ignore[no-any-return]

        host: Any = broker
        host.decorator_class, host.listen = decorate, self._holding.listen
        self._declare_all()

    def startup(self) -> None:
        self._declare_all()
        if self.broker.is_worker_process:
            self._throttling.warn_in_memory()
            Throttle._worker_pid = os.getpid()
            # First: the others see a task once, when it runs. Retries must not see a task that is deferred.
            self.broker.middlewares = [self, *(each for each in self.broker.middlewares if each is not self)]
            formatter: Any = self.broker.formatter
            formatter.loads = partial(_loads, formatter.loads)

    def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        self._options.check_sent(message)
        return message

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        delivered = _DELIVERED.get()
        _ADMITTED.set(None)
        if self._options.limits_nothing(message) and not self.limiter.events.configures_limits:
            return message
        asked = Asked(message, delivered, self._ticket(message, delivered))
        while isinstance(outcome := await self._throttling.admit_async(asked), Deferred):
            if delivered is not None:
                await self._holding.hold(delivered.again(outcome.ticket), outcome.delay)
                raise asyncio.CancelledError  # ends the callback, which is its task: nothing is run, saved or confirmed
            asked.ticket = outcome.ticket
            await asyncio.sleep(outcome.delay)
        _ADMITTED.set(_Admitted(self._throttling, asked, outcome))
        if isinstance(outcome, Run):
            self._wake_next(outcome, delivered)
        elif isinstance(outcome, Failed):
            _end_by(message, outcome.error)
        return message

    async def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        admitted = _ADMITTED.get()
        if not isinstance(exception, _HeldBack) or admitted is None:
            return
        delivered, outcome = admitted.asked.delivered, exception.outcome
        if delivered is None:  # a broker in memory
            await asyncio.sleep(outcome.delay)
            kicker: AsyncKicker[Any, Any] = AsyncKicker(message.task_name, self.broker, dict(message.labels))
            kicker.with_labels(**{TICKET: json.dumps(outcome.ticket)}).with_task_id(message.task_id)
            await kicker.kiq(*message.args, **message.kwargs)
        elif delivered.acked:  # before its body
            await self._send_back(delivered.again(outcome.ticket))
        else:
            await self._holding.hold(delivered.again(outcome.ticket), outcome.delay)

    async def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        admitted = _ADMITTED.get()
        if admitted is None or not isinstance(run := admitted.outcome, Run) or run.decision is None:
            return
        if not admitted.begun and run.decision.leases:  # a dependency failed before the body
            await self.limiter.threads.carry_through(partial(self.limiter.release, run.decision))
        self._holding.room.wake(run.lanes)

    def _declare_all(self) -> None:
        for task in self.broker.get_all_tasks().values():
            self._options.declare(task)

    def _ticket(self, message: TaskiqMessage, delivered: Delivered | None) -> Any:
        carried = message.labels.pop(TICKET, None)  # it does not travel on with a retry
        if delivered is not None and delivered.ticket is not None:
            return delivered.ticket
        try:
            return None if carried is None else json.loads(carried)
        except (TypeError, ValueError):
            return None

    def _wake_next(self, run: Run, delivered: Delivered | None) -> None:
        lane = lane_in(None if delivered is None else delivered.ticket)
        # When a slot comes free is a guess: to be granted one before that says nothing of the next.
        if delivered is not None and not lane.slots and (delivered.early or leaves_most(run.decision)):
            self._holding.room.wake([lane.name])

    async def _send_back(self, message: Delivered) -> None:
        """Put *message* into its broker once more, with its ticket, and then acknowledge the one that came."""
        made = self.broker.formatter.loads(bytes(message))
        if message.ticket is not None:
            made.labels[TICKET] = json.dumps(message.ticket)
            if made.labels_types is not None:
                made.labels_types[TICKET] = LabelType.STR
        sent = self.broker.formatter.dumps(made)
        sent.labels = {name: label for name, label in sent.labels.items() if name != "delay"}  # it is over
        await self.broker.kick(sent)
        if not message.acked:
            await message.ack()

    def _watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """*function* of the task *name*, as the receiver runs it. Called by hand it is as it was."""

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            around = self._around(name)
            if around is None:
                return None
            with around:
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def body_async(*args: Any, **kwargs: Any) -> Any:
            around = self._around(name)
            if around is None:
                return None
            async with around:
                return await function(*args, **kwargs)

        return body_async if inspect.iscoroutinefunction(function) else body

    def _around(self, name: str) -> Any:
        """What the body of the task *name* runs in; None: it is dropped."""
        if self._worker_pid not in (0, os.getpid()) and self.limits_of(name):
            raise ConfigurationError(f"task {name!r} has limits, which do not work with --use-process-pool")
        admitted = _ADMITTED.get()
        if admitted is None or admitted.begun:
            return nullcontext()
        admitted.begun = True
        if isinstance(admitted.outcome, Failed):
            raise admitted.outcome.error
        if isinstance(admitted.outcome, Run):
            return Around(admitted.throttling, admitted.outcome, partial(_follow, admitted.asked.message))
        return None


def _follow(message: TaskiqMessage, outcome: Outcome) -> bool:
    if isinstance(outcome, Deferred):
        raise _HeldBack(outcome) from None
    if isinstance(outcome, Failed):
        _end_by(message, outcome.error)
        raise outcome.error from None
    return True  # dropped


def _end_by(message: TaskiqMessage, error: Exception) -> None:
    _log.error("Task %s %s fails: %s", message.task_name, message.task_id, error)
    message.labels["retry_on_error"] = False  # to ask again cannot help


def _loads(loads: Callable[..., TaskiqMessage], message: bytes) -> TaskiqMessage:
    """The receiver reads a message: its callback knows from now on how it came."""
    _DELIVERED.set(message if isinstance(message, Delivered) else None)
    return loads(message=message)
