"""A site under test: the common part of the tests of `AdapterConformance`."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from throttlekit._core.limit.base import Limit
from throttlekit.testing.adapter_site import RATE, AdapterSite, End, Note, Notes, Settings, wait_until

__all__ = ["CLOCKS", "PAUSES", "AdapterBench", "OnSite", "Sent", "logged"]

_NUMBERS = itertools.count(1)
CLOCKS = 0.02
"""The largest difference, in seconds, between two clocks of one machine."""

PAUSES = (2.0, 8.0)
"""
The pauses, in seconds, during which something else has to happen. A test tries the next one if it happened too late: on
a busy machine a job may take some seconds to begin.
"""


class Sent(NamedTuple):
    """A job that the suite has sent."""

    name: str
    job: Any


class AdapterBench:
    """One test's view of a site, with a key and notes that no other test uses."""

    def __init__(self, site: AdapterSite, folder: str) -> None:
        self.site = site
        self.key = f"k{os.getpid()}x{next(_NUMBERS)}"
        self.notes = Notes(Path(folder) / "notes")
        self._log_began = len(site.log())

    def deny(self, seconds: float, limit: Limit = RATE) -> float:
        """Pause *limit* for *seconds*. Return the time at which the pause ends."""
        until = time.time() + seconds
        self.site.limiter.pause(limit, seconds, key=self.key)
        return until

    def send(self, kind: str, *steps: str, key: str | None = None, **options: Any) -> Sent:
        """Send a job that does *steps*; by default it just returns."""
        name, arguments = self._arguments(steps, key)
        return Sent(name, self.site.enqueue(kind, arguments, options))

    def send_with_next(self, kind: str) -> tuple[Sent, str]:
        """Send a job, and one of the kind "free" that follows it; return the job, and the name of the other."""
        following, arguments = self._arguments((), None)
        return self.send(kind, then=arguments), following

    def _arguments(self, steps: tuple[str, ...], key: str | None) -> tuple[str, tuple[Any, ...]]:
        name = f"job{next(_NUMBERS)}"
        return name, (key or self.key, str(self.notes.path), name, list(steps) or ["return"])

    def begun(self, sent: Sent | str, times: int = 1) -> Note:
        """Wait until the body of *sent* has begun for the *times*-th time."""
        return self._wait_for_note("begin", sent, times)

    def body_ended(self, sent: Sent | str, times: int = 1) -> Note:
        return self._wait_for_note("end", sent, times)

    def _wait_for_note(self, what: str, sent: Sent | str, times: int) -> Note:
        name = sent if isinstance(sent, str) else sent.name

        def noted() -> list[Note]:
            found = self.notes.of(what, name)
            return found if len(found) >= times else []

        return wait_until(noted, f"{name}: {what}, {times}")[times - 1]

    def runs(self, sent: Sent) -> int:
        """How often the body of *sent* has begun."""
        return len(self.notes.of("begin", sent.name))

    def failures(self, sent: Sent) -> int:
        """How many failed runs the framework has reported."""
        return len(self.notes.of("failure", sent.name))

    def let_end(self, sent: Sent) -> None:
        """End a body whose step is "wait"."""
        self.notes.write("go", sent.name)

    def end(self, sent: Sent) -> End:
        """Wait until *sent* has ended for a reader of its result, and return how."""
        return wait_until(lambda: self.site.end(sent.job), f"{sent.name} has ended")

    def remaining(self, limit: Limit) -> int:
        """Return how many units of *limit* are left now."""
        return self.site.limiter.peek(limit, key=self.key, cost=0).remaining

    def allowed(self, limit: Limit) -> bool:
        return self.site.limiter.peek(limit, key=self.key).allowed

    def paused(self, limit: Limit) -> bool:
        return self.site.limiter.peek(limit, key=self.key).reason == "paused"

    def log(self) -> str:
        """Return the log of the worker processes since the test began."""
        return self.site.log()[self._log_began :]

    def until_empty(self) -> None:
        wait_until(lambda: self.site.left() == 0, "nothing is left in the queue")


class OnSite:
    """
    The part of the suite that its user writes.

    Attributes:
        unsupported: Promises that the framework cannot support, and the reason for each. A promise is a test's name
            without "test_". Its test is skipped, and shows the reason.
    """

    unsupported: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for promise, reason in cls.__dict__.get("unsupported", {}).items():
            test = getattr(cls, f"test_{promise}", None)
            if test is None:
                raise TypeError(f"{cls.__name__}.unsupported: there is no promise {promise!r}")
            setattr(cls, f"test_{promise}", unittest.skip(f"unsupported: {reason}")(test))

    def make_site(self, settings: Settings) -> AbstractContextManager[AdapterSite]:
        """
        Return a site for one test, as a context manager. Successive tests with the same *settings* may share one site,
        so that its workers need not be restarted.
        """
        raise NotImplementedError

    @contextmanager
    def bench(self, settings: Settings | None = None) -> Generator[AdapterBench, None, None]:
        """Provide a site whose workers run. At the end, its queue must be empty."""
        # The folder outlives the site: a redelivered body may write into it until the workers have stopped.
        made = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        with made as folder, self.make_site(settings or Settings()) as site:
            bench = AdapterBench(site, folder)
            site.start()
            yield bench
            bench.until_empty()


@contextmanager
def logged() -> Generator[list[logging.LogRecord], None, None]:
    """Yield a list to which the log records of this process are added, from INFO on."""
    root, handler = logging.getLogger(), BufferingHandler(sys.maxsize)
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
