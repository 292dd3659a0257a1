"""What a denied job carries in its message until it comes back: its place, and how long it has waited."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from throttlekit._core.acquire import Place
from throttlekit._core.exact import LARGEST_EXACT
from throttlekit._core.limit.base import Limit

__all__ = ["Ticket", "lane_of"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """
    A job's place in a line and its history of denials. Times are µs by the store's clock.

    Attributes:
        due_us: When the job is due; 0 if it has no place.
        limit_ref: The fingerprint and name of the limit in whose line the place is.
        deferrals: Denials so far. Coming back before the job is due does not count.
        since_us: The first denial; 0 if there was none.
        lane: Stands for the holders that the job waits for, if a concurrency limit denied it; see `lane_of`.
    """

    due_us: int = 0
    limit_ref: str = ""
    deferrals: int = 0
    since_us: int = 0
    lane: str = ""

    @classmethod
    def read(cls, data: Mapping[str, Any] | None) -> Ticket:
        """Read what `write` wrote. Anything else (forged, torn, of another version) is a job that has not waited."""
        if data is None:
            return _NOT_WAITED
        if not isinstance(data, Mapping) or data.get("v") != _VERSION:
            return cls()
        due_us, limit_ref, deferrals, since_us = (data.get(name) for name in ("slot", "ticket", "n", "since"))
        if not isinstance(limit_ref, str) or not all(
            isinstance(number, int) and 0 <= number <= LARGEST_EXACT for number in (due_us, deferrals, since_us)
        ):
            return cls()
        lane = data.get("lane", "")
        return cls(due_us, limit_ref, deferrals, since_us, lane if isinstance(lane, str) else "")  # type: ignore[arg-type]

    def write(self) -> dict[str, Any]:
        return {
            "v": _VERSION,
            "slot": self.due_us,
            "ticket": self.limit_ref,
            "n": self.deferrals,
            "since": self.since_us,
            **({"lane": self.lane} if self.lane else {}),
        }

    @property
    def limit_name(self) -> str:
        """The name of the limit in whose line the place is; "" if there is none."""
        return self.limit_ref.partition(":")[2]

    def place(self, limits: Sequence[Limit]) -> Place | None:
        """The place that the ticket stands for among *limits*; None if the limit is gone or defined anew."""
        if self.due_us:
            for i, limit in enumerate(limits):
                if _limit_ref(limit) == self.limit_ref:
                    return Place(i, self.due_us)
        return None

    def first_again(self, limit: Limit) -> Ticket:
        """Of a job that ran, and has to wait once more: it goes before those that have not run."""
        return replace(self, due_us=1, limit_ref=_limit_ref(limit))

    def denied(self, limit: Limit, due_us: int, now_us: int, *, lane: str = "", counts: bool = True) -> Ticket:
        """After a denial, with the due instant that it gave; one deferral more if it *counts*."""
        return replace(
            self,
            due_us=due_us,
            limit_ref=_limit_ref(limit),
            deferrals=self.deferrals + counts,
            since_us=min(self.since_us or now_us, now_us),  # a clock that was ahead makes no job wait longer
            lane=lane,
        )

    def max_wait_us(self, max_wait_us: int) -> int:
        """
        How far off an instant the job would wait for, if it may wait for *max_wait_us* in all.

        Only the store knows the time, so the job is taken to come back when it is due.
        """
        promised_us = max(0, self.due_us - self.since_us) if self.since_us else 0
        return max(0, max_wait_us - promised_us)

    def seconds(self, now_us: int) -> float:
        """How long the job has waited."""
        return max(0, now_us - self.since_us) / 1_000_000 if self.since_us else 0.0


_NOT_WAITED = Ticket()


def lane_of(bucket: str) -> str:
    """Stands for a bucket in what jobs carry, without the key, which may be one of their arguments."""
    return hashlib.blake2b(bucket.encode(), digest_size=6).hexdigest()


def _limit_ref(limit: Limit) -> str:
    return f"{limit.fingerprint}:{limit.name}"
