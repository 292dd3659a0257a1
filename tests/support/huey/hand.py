"""A huey whose tasks the test takes and runs by hand, in its own thread."""

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
    One huey with throttlekit, and what has happened to its tasks.

    Attributes:
        ran: What bodies have written down.
        signals: The names of huey's signals, with each task's id.
    """

    def __init__(self, huey: Any, limiter: Limiter) -> None:
        self.huey, self.limiter = huey, limiter
        self.ran: list[Any] = []
        self.signals: list[tuple[str, str]] = []
        huey.signal()(lambda signal, task, *more: self.signals.append((signal, task.id)))

    def task(self, **options: Any) -> Any:
        """A task that notes its argument, and returns it."""
        return self.huey.task(**{"throttle": RATE, "name": f"task{next(_NUMBERS)}", **options})(self._body)

    def _body(self, what: Any) -> Any:
        self.ran.append(what)
        return what

    def deny(self, seconds: float = 30.0) -> None:
        self.limiter.pause(RATE, seconds)

    def step(self) -> bool:
        """Take one job and run it, as a worker does; return whether there was one."""
        task = self.huey.dequeue()
        if task is None:
            return False
        self.huey.execute(task)
        return True

    def until(self, count: int) -> list[Any]:
        """Work until so many bodies have run; return what they noted."""
        self.work_until(lambda: len(self.ran) >= count, f"{count} have run")
        return self.ran

    def work_until(self, condition: Callable[[], bool], description: str) -> None:
        """Take and run jobs until *condition* is true."""

        def stepped() -> bool:
            self.step()
            return condition()

        wait_until(stepped, description=description)

    def key(self, name: str) -> str:
        if name == "woken" and self.huey.storage.priority:
            name = "woken-by-priority"
        return f"throttlekit:huey:{self.huey.storage.name}:{name}"

    @property
    def admission(self) -> Any:
        """What the huey does in place of its own methods."""
        return self.huey._throttlekit_admission

    @property
    def redis(self) -> Any:
        return self.huey.storage.conn

    @property
    def in_hand(self) -> int:
        return int(self.redis.zcard(self.key("in-hand")))
