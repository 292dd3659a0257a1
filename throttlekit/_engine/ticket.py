"""What a denied job carries in its message until it comes back: its place, and how long it has waited."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from throttlekit._core.exact import LARGEST_EXACT
from throttlekit._core.limit.base import Limit
from throttlekit._core.line import Place
from throttlekit._core.storage_keys import is_encodable

__all__ = ["MOST_PLACES", "Ticket", "lane_of", "limit_ref"]

_VERSION = 2
_BEFORE_ORDER = 1  # a ticket of the release before has no place that a line knows, but says how long the job waited
MOST_PLACES = 32
_SEAL = re.compile(r"[0-9A-Za-z]{0,40}")  # it is sent in a row that is separated by spaces
_NO_PLACES: Mapping[str, Place] = MappingProxyType({})


class Ticket(NamedTuple):  # two are made for each denial: a frozen dataclass costs five times as much
    """
    A job's place in a line and its history of denials. Times are µs by the store's clock.

    Attributes:
        due_us: When the job is due; 0 if it has not waited.
        limit_ref: The fingerprint and name of the limit that binds it.
        deferrals: Denials so far. Coming back before the job is due does not count.
        since_us: The first denial; 0 if there was none.
        places: The job's place in the line of each limit that denied it, by the limit's fingerprint and name.
        line: Stands for the line of the limit that binds the job; see `lane_of`.
        slots: Whether the job waits for a slot of a concurrency limit.
        told_us: When it was to be due by the first answer of the limit that binds it, if that was later; else 0.
    """

    due_us: int = 0
    limit_ref: str = ""
    deferrals: int = 0
    since_us: int = 0
    line: str = ""
    slots: bool = False
    places: Mapping[str, Place] = _NO_PLACES
    told_us: int = 0

    @classmethod
    def read(cls, data: Mapping[str, Any] | None) -> Ticket:
        """
        Read what `write` wrote. Anything else (forged, torn, of another version) is a job that has not waited.

        The result can be sent to a server and written into a message: UTF-8 can encode each text in it.
        """
        if data is None:
            return _NOT_WAITED
        if not isinstance(data, Mapping) or data.get("v") not in (_VERSION, _BEFORE_ORDER):
            return cls()
        due_us, limit_ref = data.get("slot"), data.get("ticket")
        deferrals, since_us = data.get("n"), data.get("since")
        if not (_is_text(limit_ref) and _is_exact(due_us) and _is_exact(deferrals) and _is_exact(since_us)):
            return cls()
        line, slots, told_us = data.get("line", ""), data.get("slots", False), data.get("told", 0)
        places = _places(data.get("places")) if data["v"] == _VERSION else _NO_PLACES
        line, told_us = line if _is_text(line) else "", told_us if _is_exact(told_us) else 0
        return cls(due_us, limit_ref, deferrals, since_us, line, slots is True, places, told_us)  # type: ignore[arg-type]

    def write(self) -> dict[str, Any]:
        due_us, limit_ref, deferrals, since_us, line, slots, places, told_us = self
        data: dict[str, Any] = {"v": _VERSION, "slot": due_us, "ticket": limit_ref, "n": deferrals, "since": since_us}
        if line:
            data["line"] = line
        if slots:
            data["slots"] = True
        if told_us:
            data["told"] = told_us
        if places:
            data["places"] = {ref: list(place) for ref, place in places.items()}
        return data

    @property
    def limit_name(self) -> str:
        """The name of the limit that binds the job; "" if it has not waited."""
        return self.limit_ref.partition(":")[2]

    def places_in(self, limits: Sequence[Limit]) -> tuple[Place | None, ...]:
        """The job's place in the line of each of *limits*; None: it has none, or the limit is defined anew."""
        return tuple([self.places.get(limit_ref(limit)) for limit in limits])

    def has_waited_for(self, limit: Limit) -> bool:
        """Whether it was denied by *limit*, as it is defined now or as it was."""
        return any(ref.partition(":")[2] == limit.name for ref in (self.limit_ref, *self.places))

    def binding(self, limits: Sequence[Limit]) -> Limit | None:
        """The one of *limits* that binds the job; None if it is gone or defined anew."""
        return next((limit for limit in limits if limit_ref(limit) == self.limit_ref), None) if self.due_us else None

    def denied(
        self,
        limit: Limit,
        due_us: int,
        now_us: int,
        places: Mapping[str, Place] = _NO_PLACES,
        *,
        line: str = "",
        slots: bool = False,
        counts: bool = True,
    ) -> Ticket:
        """
        After a denial by *limit*, with the instant and the places that it gave.

        Args:
            counts: Whether it is one deferral more.
        """
        since_us = min(self.since_us or now_us, now_us)  # a clock that was ahead makes no job wait longer
        ref = limit_ref(limit)
        first_us = (self.told_us or self.due_us) if ref == self.limit_ref else 0
        told_us = first_us if first_us > due_us else 0
        return Ticket(due_us, ref, self.deferrals + counts, since_us, line, slots, places, told_us)

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


@lru_cache(1024)
def lane_of(bucket: str) -> str:
    """Stands for a bucket in what jobs carry, without the key, which may be one of their arguments."""
    return hashlib.blake2b(bucket.encode(), digest_size=6).hexdigest()


def limit_ref(limit: Limit) -> str:
    """Stands for the limit in what jobs carry: its fingerprint and its name."""
    return f"{limit.fingerprint}:{limit.name}"


def _places(data: Any) -> Mapping[str, Place]:
    """The places of a ticket; none, if they are not what `Ticket.write` wrote."""
    if not isinstance(data, Mapping):
        return _NO_PLACES
    stored: Mapping[Any, Any] = data  # pyright: ignore[reportUnknownVariableType]
    if len(stored) > MOST_PLACES:
        return _NO_PLACES
    places: dict[str, Place] = {}
    for ref, given in stored.items():
        parts: Sequence[Any] = cast("Sequence[Any]", given if isinstance(given, (list, tuple)) else ())
        if not _is_text(ref) or len(parts) != len(Place._fields):
            return _NO_PLACES
        epoch, start, number, due_us, seal = parts
        exact = _is_exact(epoch) and _is_exact(start) and _is_exact(number) and _is_exact(due_us)
        if not exact or not isinstance(seal, str) or not _SEAL.fullmatch(seal):
            return _NO_PLACES
        places[ref] = Place(epoch, start, number, due_us, seal)
    return places


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_encodable(value)


def _is_exact(number: Any) -> bool:
    return type(number) is int and 0 <= number <= LARGEST_EXACT
