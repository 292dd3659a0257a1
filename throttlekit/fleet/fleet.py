"""A limiter's part in the fleet: what it does once a second, and what it was told."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from throttlekit._core.acquire import Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._engine.breaker import CircuitBreaker
from throttlekit._engine.ticket import Ticket
from throttlekit.fleet.overrides import Overrides
from throttlekit.fleet.pulse import Pulse
from throttlekit.fleet.rule_follower import RuleFollower

if TYPE_CHECKING:
    from throttlekit.fleet.activity import Activity, Counts

__all__ = ["Fleet", "last_word"]


class Fleet:
    """
    Of a limiter in memory there is no fleet: nothing beats, and nothing is told.

    Args:
        owner: The limiter. When it is gone nothing beats any more, so no beat may know it.

    Attributes:
        counted: Called before the fleet is told, to add what was counted elsewhere.
    """

    def __init__(self, store: CircuitBreaker, owner: object) -> None:
        self.counted: Callable[[Counts], None] | None = None
        self._follower = RuleFollower(store)
        self.overrides = Overrides(self._follower)
        self.activity: Activity | None = None
        self._pulse: Pulse | None = None
        if store.shared:
            from throttlekit.fleet.activity import Activity  # what memory alone can do without

            self.activity = Activity(store)
            self._pulse = Pulse([self._follower.follow, self._count, self.activity.beat])
            weakref.finalize(owner, self._pulse.abandon)

    @property
    def begun(self) -> bool:
        """Whether `steers` asks nobody any more in this process."""
        return self._pulse is None or self._pulse.beats

    def has_overrides(self) -> bool:
        """Whether anything is in force, of any limit. The first call in a process asks the store; later ones nobody."""
        pulse = self._pulse
        if pulse is None:
            return False
        if not pulse.beats:
            pulse.felt()
        return bool(self._follower.rules)

    def follow(self) -> None:
        """
        Ask now what is in force.

        Raises:
            StoreUnavailable: The store did not answer. What was in force stays so.
        """
        self._follower.follow()

    def decided(self, decision: Decision, bucket: str, verdict: Verdict, ticket: Ticket, job: Job | None) -> None:
        """Count what the store decided; see `Counts.decided`."""
        if self.activity is not None:
            self.activity.counts.decided(decision, bucket, verdict, ticket, job)

    def last_word(self) -> None:
        """Tell the fleet now what was decided, if this process is so young that it may end before its next beat."""
        if self.activity is not None:
            with suppress(Exception):  # no job fails because of what is told about it
                self._count()
                self.activity.last_word()

    def _count(self) -> None:
        if self.activity is not None and self.counted is not None:
            self.counted(self.activity.counts)

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()


def last_word(limiter: Any) -> None:
    """
    For adapters whose processes end without a word, like RQ's work-horse: tell the fleet what *limiter* decided here.

    One round trip in a process that is younger than two seconds; none in any other, which tells by itself. What the
    store gives no answer to is dropped.
    """
    limiter._fleet.last_word()
