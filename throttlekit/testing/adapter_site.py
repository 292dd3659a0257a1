"""
The interface between `AdapterConformance` and an adapter: a site, and a job function that calls `perform`.

A site is a queue with its workers, which may be threads of the test's process or separate processes. Jobs write their
actions to a file that all of them can open.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.call import Delivery
from throttlekit._engine.rate_limited import RateLimited
from throttlekit._engine.running import current
from throttlekit.adapter.options import MAX_WAIT, ON_429, THROTTLE, WaitRules
from throttlekit.hookspecs import Finished, RateLimitReceived, Started, hookimpl
from throttlekit.limiter import Limiter

__all__ = [
    "COUNT",
    "JOBS",
    "LONG_SLOT",
    "QUEUED",
    "RATE",
    "SHARED",
    "SLOT",
    "STEADY",
    "TOKENS",
    "AdapterSite",
    "End",
    "JobKind",
    "Note",
    "Notes",
    "Settings",
    "note_failure",
    "perform",
    "wait_until",
]

_T = TypeVar("_T")

RATE = TokenBucket("conformance-rate", "100/s", burst=100, key="{key}")
"""The suite pauses this limit to deny jobs. Otherwise it has enough units for all of them."""
COUNT = TokenBucket("conformance-count", "1/hour", burst=100, key="{key}")
"""Counts charges, because it does not refill noticeably during a test."""
STEADY = TokenBucket("conformance-steady", "2/s", burst=1, key="{key}")
TOKENS = TokenBucket("conformance-tokens", "1/hour", burst=100, key="{key}", cost=lambda job: 90)
QUEUED = TokenBucket("conformance-queued", "100/s", burst=100, key="{key}", queue=1)
SLOT = Concurrency("conformance-slot", 1, lease=1.5, key="{key}")
LONG_SLOT = Concurrency("conformance-long-slot", 1, lease=60, key="{key}")


def _tenant(job: Job) -> str:
    return str(job.arguments["steps"][0])


SHARED = TokenBucket("conformance-shared", "30/minute", burst=2, key="{key}", share=_tenant)
"""The tenant of a job is its first step, like "tenant a". With a burst of 1, woken jobs could overtake others."""


def _broken_key(_job: Any) -> str:
    raise LookupError("this key cannot be computed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """
    How one kind of job is declared.

    Attributes:
        throttle, on_429, max_wait: The options `throttle`, `throttle_on_429` and `throttle_max_wait`.
        retries: How often the framework retries the job, without a delay, after a failure.
    """

    throttle: Sequence[Limit] = ()
    on_429: str | None = None
    max_wait: float | None = None
    retries: int = 0

    def options(self) -> dict[str, Any]:
        """Return the options that are set, by their names in every framework."""
        found = {THROTTLE: list(self.throttle), ON_429: self.on_429, MAX_WAIT: self.max_wait}
        return {name: option for name, option in found.items() if option}


JOBS: Mapping[str, JobKind] = {
    "free": JobKind(),
    "rate": JobKind(throttle=[RATE]),
    "counted": JobKind(throttle=[RATE, COUNT], on_429=RATE.name),
    "retried": JobKind(throttle=[RATE, COUNT], on_429=RATE.name, retries=1),
    "hasty": JobKind(throttle=[RATE, COUNT], max_wait=0.4),
    "steady": JobKind(throttle=[STEADY]),
    "shared": JobKind(throttle=[SHARED]),
    "tokens": JobKind(throttle=[TOKENS]),
    "queued": JobKind(throttle=[RATE, QUEUED], retries=1),
    "slot": JobKind(throttle=[SLOT]),
    "long_slot": JobKind(throttle=[RATE, LONG_SLOT], on_429=RATE.name),
    "faulty": JobKind(throttle=[COUNT, TokenBucket("conformance-faulty", "1/s", key=_broken_key)], retries=1),
}
"""Every kind of job of the suite, by name. A site declares all of them, each with the function that calls `perform`."""


def perform(key: str, notes: str, name: str, steps: Sequence[str], seen: Mapping[str, Any] | None = None) -> str:
    """
    Run the body of a job of the suite. A site's job function has the first four arguments, and passes them to this.

    Args:
        key: The job's key for the limits of the suite.
        notes: The file that jobs write to.
        name: The job's name in the notes, and its result.
        steps: The actions of the first run, the second run, and so on. The last one is repeated.
        seen: The properties of its message that the body sees: its "id", and all others that a denial must not change.
    """
    book = Notes(Path(notes))
    run = len(book.of("begin", name))
    book.write("begin", name, seen=dict(seen or {}))
    what, _, number = steps[min(run, len(steps) - 1)].partition(" ")
    try:
        if what == "429":
            raise RateLimited(float(number))
        if what == "fail":
            raise RuntimeError("the suite requested a failure")
        if what == "settle":
            current().settle(int(number))
        if what == "wait":
            wait_until(lambda: book.of("go", name), "the suite lets the body end")
    finally:
        book.write("end", name)
    return name


def note_failure(key: str, notes: str, name: str, steps: Sequence[str]) -> None:
    """Note a failed run. A site calls this with a job's arguments when its framework reports one to a callback."""
    Notes(Path(notes)).write("failure", name)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to the job *name*, at *at*, in seconds of this machine's clock."""

    what: str
    name: str
    at: float
    seen: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Notes:
    """A file to which jobs add lines, from any thread and any process."""

    path: Path

    def write(self, what: str, name: str, seen: Mapping[str, Any] | None = None) -> None:
        line = json.dumps([what, name, time.time(), seen or {}], default=str) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def all(self) -> list[Note]:
        if not self.path.exists():
            return []
        return [Note(*json.loads(line)) for line in self.path.read_text().splitlines()]

    def of(self, what: str, name: str | None = None) -> list[Note]:
        """Return the notes of the kind *what*, for one job or for all, in order."""
        return [note for note in self.all() if note.what == what and name in (None, note.name)]

    def runs(self) -> list[str]:
        """Return the names of the jobs whose bodies have begun, in order."""
        return [note.name for note in self.of("begin")]


@dataclass(frozen=True, slots=True)
class End:
    """
    How a job has ended, for a reader of its result.

    Attributes:
        how: "succeeded", "failed", or "dropped": ended without a run and without an error.
        value: The return value of the body.
        error: The name of the exception's class.
    """

    how: str
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """
    How the adapter of a site is set up.

    Attributes:
        rules: Its `max_wait`, `max_deferrals` and `on_waited_too_long`.
        longest: The longest delay, in seconds, of one deferral; None: the adapter's own.
        killed: Whether the test kills the workers. If so, they must be separate processes.
    """

    rules: WaitRules = field(default_factory=WaitRules)
    longest: float | None = None
    killed: bool = False

    def limiter(self, store: Any) -> Limiter:
        """Return the limiter that a site passes to its adapter."""
        plugins = [_NotingPlugin()]
        if self.longest is None:
            return Limiter(store, plugins=plugins)
        return _ShortDelays(store, self.longest, plugins=plugins)

    def options(self) -> dict[str, Any]:
        """Return the rules as arguments for the adapters of this project."""
        rules = self.rules
        return {
            "on_waited_too_long": rules.on_waited_too_long,
            "max_wait": None if rules.max_wait == float("inf") else rules.max_wait,
            "max_deferrals": None if rules.max_deferrals == float("inf") else int(rules.max_deferrals),
        }


class _NotingPlugin:
    """Notes the events of the suite's jobs, in the worker, under the job's name."""

    @hookimpl
    def throttlekit_started(self, event: Started) -> None:
        _note("plugin", event.job, "started")

    @hookimpl
    def throttlekit_finished(self, event: Finished) -> None:
        _note("plugin", event.job, event.outcome)

    @hookimpl
    def throttlekit_rate_limited(self, event: RateLimitReceived) -> None:
        _note("plugin", event.job, f"429 on {event.limit.name}")


def _note(what: str, job: Job, seen: str) -> None:
    _, notes, name, _ = job.args
    Notes(Path(notes)).write(what, name, {"seen": seen})


class _ShortDelays(Limiter):
    """A limiter for a framework that supports only short delays."""

    def __init__(self, store: Any, longest: float, **options: Any) -> None:
        super().__init__(store, **options)
        self._longest_delay = longest

    def acquire(self, *limits: Limit, delivery: Delivery | None = None, **options: Any) -> Decision:
        delivery = delivery or Delivery()
        short = replace(delivery, longest=min(delivery.longest, self._longest_delay))
        return super().acquire(*limits, delivery=short, **options)


class AdapterSite(ABC):
    """
    A queue of the framework with its workers, and the methods that the suite calls.

    Attributes:
        limiter: A limiter on the store that the workers use.
        slots: How many bodies all workers together can run at once.
        processes: How many processes write logs.
    """

    limiter: Limiter
    slots: int = 1
    processes: int = 1

    @abstractmethod
    def start(self) -> None:
        """Start the workers, unless they run. Return when they are ready for jobs."""

    @abstractmethod
    def enqueue(self, kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """
        Send a job, as a user would.

        Args:
            kind: A key of `JOBS`.
            arguments: The four arguments of `perform`, as plain JSON data.
            options: May have `throttle` and `throttle_on_429`, for limits that are sent with the message; `expires`,
                seconds after which the job must no longer run; and `then`, the four arguments of a job of the kind
                "free" that runs when this one has succeeded.

        Returns:
            An object that identifies the job to the other methods.

        Raises:
            ConfigurationError: `throttle` or `throttle_on_429` can never work.
        """

    @abstractmethod
    def end(self, job: Any) -> End | None:
        """Return how *job* has ended for a reader of its result; None: the reader still waits."""

    @abstractmethod
    def left(self) -> int:
        """Return how many jobs are left in the queue, including delayed ones."""

    @abstractmethod
    def declare(self, **options: Any) -> None:
        """
        Declare a job with a function `def job(key): ...` and these options.

        Raises:
            ConfigurationError: An option can never work.
        """

    def id_of(self, job: Any) -> Any:
        """Return the framework's id of *job*. The suite compares it with the "id" that the body sees."""
        return job

    def cancel(self, job: Any) -> None:
        """Cancel *job*, which is waiting."""
        raise NotImplementedError

    def kill(self) -> None:
        """Send SIGKILL to all workers, as if a machine died. The broker must redeliver their jobs within a minute."""
        raise NotImplementedError

    def log(self) -> str:
        """Return the log of the worker processes so far, from INFO on; "" if workers are threads of this process."""
        return ""


def wait_until(condition: Callable[[], _T | None], what: str, *, within: float = 60.0) -> _T:
    """
    Wait until *condition* returns a true value, and return that.

    Raises:
        AssertionError: It did not within *within* seconds. The message contains *what*, a description.
    """
    deadline = time.monotonic() + within
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s for: {what}; last seen: {found!r}")
        time.sleep(0.01)
