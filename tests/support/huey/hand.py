"""A huey whose tasks the test takes and runs itself, in its own thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket

__all__ = ["RATE", "Hand"]

_NUMBERS = itertools.count(1)
RATE = TokenBucket("hand", "20/s", burst=1)


class Hand:
    """
    One huey with throttlekit, and a record of its tasks.

    Attributes:
        ran: What bodies have recorded.
        signals: The names of huey's signals, with each task's id.
    """

    def __init__(self, huey: Any, limiter: Limiter) -> None:
        self.huey, self.limiter = huey, limiter
        self.ran: list[Any] = []
        self.signals: list[tuple[str, str]] = []
        huey.signal()(lambda signal, task, *more: self.signals.append((signal, task.id)))

    def task(self, **options: Any) -> Any:
        """Return a task that records its argument and returns it."""
        return self.huey.task(**{"throttle": RATE, "name": f"task{next(_NUMBERS)}", **options})(self._body)

    def _body(self, what: Any) -> Any:
        self.ran.append(what)
        return what

    def deny(self, seconds: float = 30.0) -> None:
        self.limiter.pause(RATE, seconds)

    def step(self) -> bool:
        """Take one job and run it, as a worker does. Return whether there was one."""
        task = self.huey.dequeue()
        if task is None:
            return False
        self.huey.execute(task)
        return True

    def send_denied(self, task: Any, *arguments: Any) -> None:
        """For each of *arguments*, send a job that the limit denies, and take it, as a worker does."""
        for argument in arguments:
            task(argument)
            self.step()

    def until(self, count: int) -> list[Any]:
        """Take and run jobs until *count* bodies have run. Return what they recorded."""
        self.work_until(lambda: len(self.ran) >= count, f"{count} jobs have run")
        return self.ran

    def work_until(self, condition: Callable[[], bool], description: str) -> None:
        """Take and run jobs until *condition* is true."""

        def step_and_check() -> bool:
            self.step()
            return condition()

        wait_until(step_and_check, description=description)

    def key(self, name: str) -> str:
        if name == "woken" and self.huey.storage.priority:
            name = "woken-by-priority"
        return f"throttlekit:huey:{self.huey.storage.name}:{name}"

    @property
    def admission(self) -> Any:
        """The adapter's admission, which replaces methods of huey."""
        return self.huey._throttlekit_admission

    @property
    def redis(self) -> Any:
        return self.huey.storage.conn

    @property
    def in_hand(self) -> int:
        return int(self.redis.zcard(self.key("in-hand")))
