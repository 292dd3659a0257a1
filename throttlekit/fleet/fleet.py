"""A limiter's part in the fleet: it follows the rules of live control, and reports its decisions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from throttlekit._core.answer import Answer, Waited
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.claims import Claim
from throttlekit.fleet.activity import Activity
from throttlekit.fleet.overrides import Overrides
from throttlekit.fleet.reporter import Reporter
from throttlekit.fleet.rule_follower import RuleFollower
from throttlekit.stores.access import StoreAccess

__all__ = ["Fleet"]


class Fleet:
    """
    The rules and the reports of one limiter. A limiter in memory has none.

    Args:
        store: A store that accepts commands; see `StoreAccess.shared`.
        owner: The limiter. When it is garbage-collected, the reporter ends, so no task may refer to it.
        take_grants: Returns, before each report, the grants of prefetched units: limit, bucket, jobs, units.
    """

    def __init__(
        self, store: StoreAccess, owner: object, take_grants: Callable[[], list[tuple[Limit, str, int, int]]]
    ) -> None:
        self._take_grants = take_grants
        self.follower = RuleFollower(store)
        self.overrides = Overrides(self.follower)
        self.activity = Activity(store)
        self._reporter = Reporter([self.follower.follow, self._count, lambda: self.activity.report()])
        weakref.finalize(owner, self._reporter.abandon)

    @property
    def begun(self) -> bool:
        """Whether `has_overrides` needs no round trip in this process."""
        return self._reporter.is_running

    def has_overrides(self) -> bool:
        """Whether a rule is in force, for any limit. Only the first call in a process sends a request to the store."""
        self._reporter.ensure_started()
        return bool(self.follower.rules)

    def count(
        self, decision: Decision, claims: Sequence[Claim], answer: Answer, waited: Waited, job: Job | None
    ) -> None:
        """Count the store's decision on *claims*; see `Counts.record_decision`."""
        self.activity.counts.record_decision(decision, claims, answer, waited, job)

    def count_settled(self, before: Decision, after: Decision) -> None:
        """Count the corrections by `settle`."""
        for old, new in zip(before.charged, after.charged, strict=True):
            if old.bucket and old.cost != new.cost and old.limit.scope != "process":
                self.activity.counts.record_settled(old.limit, old.bucket, new.cost - old.cost)

    def count_429(self, limit: Limit) -> None:
        """Count a 429 from the partner that paused *limit*, or one of its keys."""
        self.activity.counts.downstream_429(limit)

    def flush(self) -> None:
        """Report now, if this process may end before its next report; see `Activity.last_word`."""
        with suppress(Exception):  # a report must not fail a job
            self._count()
            self.activity.last_word()

    def close(self) -> None:
        self._reporter.stop()

    def _count(self) -> None:
        for each in self._take_grants():
            self.activity.counts.record_prefetched(*each)
