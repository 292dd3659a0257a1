"""
The fleet's decisions in the last minute, by limit and by key, from the ring of steps that fleet_report.lua writes.

Rule 1: a step that has ended never changes. A report counts in the step in which the store receives it.
Rule 2: a step is known if a process reported in it. Otherwise no process was running, or the store lost its data, and
the counts are not known, which differs from 0.

Each function sends only short commands: for any number of limits and keys, no command blocks the server for long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from throttlekit._core.storage_keys import parts_of, wait_names
from throttlekit.fleet.activity import KEYS, REASON_CODES
from throttlekit.fleet.downstream import STEP_S
from throttlekit.fleet.replies import pairs, text_of
from throttlekit.stores.base import SupportsCommands

__all__ = ["READ_STEPS", "Minute", "minutes_of", "minutes_of_keys", "pressing_names", "weight_of"]

_LINES, _FIRST = KEYS[1], 6
_PASSED, _DENIED, _COUNTS = KEYS[_FIRST::3], KEYS[_FIRST + 1 :: 3], KEYS[_FIRST + 2 :: 3]
_STEPS = len(_COUNTS)
READ_STEPS = 60 // STEP_S + 1
"""The number of steps that overlap the last minute. The oldest of the ring's five may have expired, and is not read."""
_CODES = ("a", "n", "u", "s", "w", "r", *REASON_CODES.values())
_IDS_AT_ONCE = 25
"""The ids of one command, which reads 251 fields in 0.15 ms. With 100 ids, it took 5 ms on a busy machine."""
_OTHER_REASONS = "any"
_MARK = "step"


@dataclass(frozen=True, slots=True)
class Minute:
    """The decisions of the last minute, summed over all processes."""

    allowed: int | None = None
    """The number of grants; None for a key."""
    units: int = 0
    """The granted units, before corrections."""
    denied: Mapping[str, int] = field(default_factory=dict[str, int])
    """Denials by reason."""
    longest_wait: float = 0.0
    """The longest wait of a job that requested units, in seconds, from its first denial."""
    settled: int = 0
    """The units that `settle` charged additionally; negative if it refunded units."""
    is_known: bool = True
    """Whether a process reported in the last minute. If not, the other numbers are meaningless."""
    rates: frozenset[int] = frozenset()
    """
    The rates of the limit in the last minute, as `reported_rate` returns them; -1 if the rate changed within a step.
    Empty for a key, or if they are not known.
    """
    arrived: int = 0
    """Jobs that requested units for the first time; 0 for a key."""

    @property
    def used(self) -> int:
        """The granted units, with the corrections by `settle` so far."""
        return max(0, self.units + self.settled)

    @property
    def denials(self) -> int:
        return sum(self.denied.values())


def minutes_of(store: SupportsCommands, ids: Sequence[str], now: float) -> dict[str, Minute]:
    """
    Return the last minute of each of *ids*, which are limits or keys.

    Args:
        now: The store's clock, seconds since 1970.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    return _minutes_and(store, ids, now, ())[0]


def _minutes_and(
    store: SupportsCommands, ids: Sequence[str], now: float, others: Sequence[Sequence[str | int]]
) -> tuple[dict[str, Minute], list[Any]]:
    """Like `minutes_of`, with the replies to *others* in the same round trip."""
    pages = [ids[at : at + _IDS_AT_ONCE] for at in range(0, len(ids), _IDS_AT_ONCE)]
    numbers = _numbers(now)
    questions = [
        ("HMGET", _COUNTS[number % _STEPS], _MARK, *(f"{code} {id}" for id in page for code in _CODES))
        for page in pages
        for number in numbers
    ]
    answers = iter(store.commands([*others, *questions]) if ids else ())
    replies = [next(answers) for _ in others]
    found: dict[str, Minute] = {}
    for page in pages:
        steps = [(number, next(answers)) for number in numbers]
        known = [(weight_of(number, now), texts) for number, texts in steps if texts[0] == b"%d" % number]
        for place, id in enumerate(page):
            begin = 1 + place * len(_CODES)
            found[id] = _sum([(weight, _counts(texts[begin : begin + len(_CODES)])) for weight, texts in known])
    return found, replies


def _counts(texts: Sequence[bytes | None]) -> dict[str, int]:
    return dict(zip(_CODES, (int(text or 0) for text in texts), strict=True))


def _sum(steps: Sequence[tuple[float, Mapping[str, int]]]) -> Minute:
    """Sum *steps*, the known ones: for each, the fraction that is within the last minute, and its counts by code."""

    def total(code: str) -> int:
        return round(sum(weight * counts[code] for weight, counts in steps))

    return Minute(
        allowed=total("a"),
        units=total("u"),
        denied={reason: total(code) for reason, code in REASON_CODES.items() if any(each[code] for _, each in steps)},
        longest_wait=max((counts["w"] for _, counts in steps), default=0) / 1e6,
        settled=total("s"),
        is_known=bool(steps),
        rates=frozenset(counts["r"] for _, counts in steps if counts["r"]),
        arrived=total("n"),
    )


def minutes_of_keys(store: SupportsCommands, buckets: Sequence[str], now: float) -> dict[str, Minute]:
    """
    Return the last minute of each key, without `Minute.allowed`. A process reports only its 100 most pressing keys each
    time. Denials whose reason the store no longer keeps, because there are too many keys, have the reason "any".

    Raises:
        StoreUnavailable: The store did not answer.
    """
    if not buckets:
        return {}
    numbers = _numbers(now)
    ranks = [of[number % _STEPS] for of in (_PASSED, _DENIED) for number in numbers]
    weights, found = [weight_of(number, now) for number in numbers], dict[str, Minute]()
    minutes, scores = _minutes_and(store, buckets, now, [("ZMSCORE", rank, *buckets) for rank in ranks])
    for place, bucket in enumerate(buckets):
        passed, denied = (
            round(sum(weight * float(step[place] or 0) for weight, step in zip(weights, some, strict=True)))
            for some in (scores[:READ_STEPS], scores[READ_STEPS:])
        )
        minute = minutes[bucket]
        if denied > minute.denials:
            reasons = {**minute.denied, _OTHER_REASONS: denied - minute.denials}
            minute = replace(minute, denied=reasons)
        found[bucket] = replace(minute, allowed=None, units=passed)
    return found


def pressing_names(
    store: SupportsCommands, order: str, depth: int, now: float, is_wanted: Callable[[str], bool] = lambda limit: True
) -> list[str]:
    """
    Return the most pressing keys, by bucket.

    A job may wait longer than was estimated at its denial, and sends no request while it waits. So a key whose last job
    was estimated to run within the last hour is also listed with the longest waitlists, if jobs still wait.

    Args:
        order: The orders, one letter each: "l" for the most waiting jobs first, "d" for the most denials, "p" for the
            most granted units.
        depth: The number of keys of all limits that are read in each order: at least 1.
        is_wanted: A filter, called with the id of a key's limit.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    numbers, now_us = _numbers(now), round(now * 1_000_000)
    lines, overdue, *ranks = store.commands(
        [
            ("ZREVRANGEBYSCORE", _LINES, "+inf", now_us, "LIMIT", 0, depth),
            ("ZREVRANGEBYSCORE", _LINES, f"({now_us}", "-inf", "LIMIT", 0, depth),
            *(
                ("ZREVRANGE", of[number % _STEPS], 0, depth - 1, "WITHSCORES")
                for of in (_DENIED, _PASSED)
                for number in numbers
            ),
        ]
    )
    overdue = [text_of(each) for each in overdue]
    waits = store.commands([("EXISTS", wait_names(each)[1]) for each in overdue]) if overdue else []
    ordered = {
        "l": [*map(text_of, lines), *(each for each, some_wait in zip(overdue, waits, strict=True) if some_wait)],
        "d": _rank(numbers, ranks[:READ_STEPS], now),
        "p": _rank(numbers, ranks[READ_STEPS:], now),
    }
    return list(dict.fromkeys(each for which in order for each in ordered[which] if is_wanted(_limit_of(each))))


def weight_of(number: int, now: float) -> float:
    """Return the fraction of a step that is within the last minute."""
    back, into = divmod(now, STEP_S)
    back -= number
    whole = READ_STEPS - 1
    return 1.0 if 0 <= back < whole else 1 - into / STEP_S if back == whole else 0.0


def _numbers(now: float) -> range:
    running = int(now // STEP_S)
    return range(running - READ_STEPS + 1, running + 1)


def _rank(numbers: Iterable[int], steps: Iterable[Any], now: float) -> list[str]:
    """Return the names in all *steps*, ordered by the sum of their scores in the last minute."""
    total: dict[str, float] = defaultdict(float)
    for number, scored in zip(numbers, steps, strict=True):
        for each, score in pairs(scored):
            total[text_of(each)] += weight_of(number, now) * float(score)
    return sorted(total, key=lambda each: (-total[each], each))


def _limit_of(bucket: str) -> str:
    """Return the id of the limit of *bucket*; "" for a name that another release wrote."""
    parts = parts_of(bucket)
    return "" if parts is None else parts[0]
