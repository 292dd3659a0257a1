"""The body's side, in the pool: what `throttlekit.current()` gives there, and its slots until it has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from throttlekit import Decision, Delivery, Limiter
from throttlekit._engine.running import Running, begin_from_receipt, current, end, receipt, resume
from throttlekit.adapter.options import WhenOver
from throttlekit_celery._host import is_of
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._rate_limited import ON_429, listener

__all__ = ["RECEIPT", "begins", "ends", "told_to_body"]

RECEIPT = "throttlekit_receipt"
"""The header, from the gate to the pool only, that says what a task has charged. The gate drops a sender's."""

_outer: ContextVar[tuple[Running, ...]] = ContextVar("throttlekit_celery_outer", default=())
"""What was current before each task that runs here: a body may run others in its place, by `apply`."""


def told_to_body(decision: Decision, ticket: Any, queue: str | None, delivery: Delivery) -> dict[str, Any]:
    """What the pool must know of a task that may run: what it charged, and how it was asked for."""
    # As plain numbers: a dataclass takes a pool process four times as long to read.
    told = delivery.longest, delivery.lateness, delivery.max_wait, delivery.max_deferrals
    return {**receipt(decision), "waited": ticket, "queue": queue or "", "delivery": told}


def begins(app: Any, limiter: Limiter, limits: TaskLimits, when_over: WhenOver) -> Callable[..., None]:
    """A receiver for Celery's signal `task_prerun`."""

    def receive(task: Any = None, **_: Any) -> None:
        if not is_of(task, app) or not limits.any_of(task):
            return
        request = task.request
        # Never from the headers: those may be what a sender calls "headers".
        told: Any = request.__dict__.pop(RECEIPT, None)
        if request.is_eager:
            _outer.set((*_outer.get(), current()))
            return
        end()
        if _outer.get():
            _outer.set(())
        if told is not None:
            headers: dict[str, Any] = request.headers or {}
            headers.pop(RECEIPT, None)  # a retry of the body charges anew
            request.headers = headers or None
            request.__dict__[ON_429] = listener(limiter, limits, when_over, task, told)
            if told["charged"]:
                begin_from_receipt(limiter, told)

    return receive


def ends(app: Any, limits: TaskLimits) -> Callable[..., None]:
    """A receiver for Celery's signal `task_postrun`. The request goes right after it, with its `ON_429`."""

    def receive(task: Any = None, **_: Any) -> None:
        if not is_of(task, app) or not limits.any_of(task):
            return
        if outer := _outer.get():
            _outer.set(outer[:-1])
            if current() is not outer[-1]:
                end()
            resume(outer[-1])
        else:
            end()

    return receive
