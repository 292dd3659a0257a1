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
from dataclasses import dataclass, replace
from typing import Any

from throttlekit._core.storage_keys import parts_of, wait_names
from throttlekit.fleet.activity import KEYS, REASON_CODES
from throttlekit.fleet.downstream import STEP_S
from throttlekit.fleet.replies import pairs, text_of
from throttlekit.stores.base import SupportsCommands

__all__ = [
    "READ_STEPS",
    "Minute",
    "Step",
    "minute_of",
    "minutes_of_keys",
    "pressing_names",
    "recent_steps",
    "weight_of",
]

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
    denied: Mapping[str, int] | None = None
    """Denials by reason."""
    longest_wait: float = 0.0
    """The longest wait of a job that requested units, in seconds, from its first denial."""
    settled: int = 0
    """The units that `settle` charged additionally; negative if it refunded units."""
    is_known: bool = True
    """Whether a process reported in the last minute. If not, the other numbers are meaningless."""
    rates: frozenset[int] = frozenset()
    """The rates of the limit in the last minute; see `Step.rate`."""
    arrived: int = 0
    """Jobs that requested units for the first time; 0 for a key."""

    @property
    def used(self) -> int:
        """The granted units, with the corrections by `settle` so far."""
        return max(0, self.units + self.settled)

    @property
    def denials(self) -> int:
        return sum((self.denied or {}).values())


@dataclass(frozen=True, slots=True)
class Step:
    """
    The decisions under one limit, or one key, in 20 seconds, summed over all processes.

    Attributes:
        number: The time of its begin in seconds since 1970, divided by 20. The last step has not ended.
        denied: Denials by reason.
        arrived: Jobs that requested units for the first time; 0 for a key.
        longest_wait, settled: As in `Minute`.
        is_known: Whether a process reported in these 20 seconds. If not, the other numbers are meaningless.
        rate: The rate that was in force, as `reported_rate` returns it; -1 if it changed; 0 if not known, or a key.
    """

    number: int
    allowed: int
    units: int
    denied: Mapping[str, int]
    longest_wait: float
    settled: int = 0
    is_known: bool = True
    rate: int = 0
    arrived: int = 0


def recent_steps(store: SupportsCommands, ids: Sequence[str], now: float) -> dict[str, tuple[Step, ...]]:
    """
    Return the steps of the last 60 to 80 seconds for each of *ids*, which are limits or keys, the oldest first.

    Args:
        now: The store's clock, seconds since 1970.

    Raises:
        StoreUnavailable: The store did not answer.
    """
    return _steps_and(store, ids, now, ())[0]


def _steps_and(
    store: SupportsCommands, ids: Sequence[str], now: float, others: Sequence[Sequence[str | int]]
) -> tuple[dict[str, tuple[Step, ...]], list[Any]]:
    """Like `recent_steps`, with the replies to *others* in the same round trip."""
    pages = [ids[at : at + _IDS_AT_ONCE] for at in range(0, len(ids), _IDS_AT_ONCE)]
    numbers = _numbers(now)
    questions = [
        ("HMGET", _COUNTS[number % _STEPS], _MARK, *(f"{code} {id}" for id in page for code in _CODES))
        for page in pages
        for number in numbers
    ]
    answers = iter(store.commands([*others, *questions]) if ids else ())
    replies = [next(answers) for _ in others]
    found: dict[str, tuple[Step, ...]] = {}
    for page in pages:
        counts = [(number, next(answers)) for number in numbers]
        for place, id in enumerate(page):
            begin = 1 + place * len(_CODES)
            found[id] = tuple(_step(number, texts[0], texts[begin : begin + len(_CODES)]) for number, texts in counts)
    return found, replies


def minute_of(steps: Sequence[Step], now: float) -> Minute:
    """Sum *steps* over the last minute. Of a step that began earlier, only the part within the minute counts."""
    weighted = [(weight, step) for step in steps if (weight := weight_of(step.number, now)) > 0]

    def total(counts: Iterable[tuple[float, int]]) -> int:
        return round(sum(weight * count for weight, count in counts))

    reasons = dict.fromkeys(reason for _, step in weighted for reason in step.denied)
    return Minute(
        allowed=total((weight, step.allowed) for weight, step in weighted),
        units=total((weight, step.units) for weight, step in weighted),
        denied={reason: total((weight, step.denied.get(reason, 0)) for weight, step in weighted) for reason in reasons},
        longest_wait=max((step.longest_wait for _, step in weighted), default=0.0),
        settled=total((weight, step.settled) for weight, step in weighted),
        is_known=any(step.is_known for _, step in weighted),
        rates=frozenset(step.rate for _, step in weighted if step.rate),
        arrived=total((weight, step.arrived) for weight, step in weighted),
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
    steps, scores = _steps_and(store, buckets, now, [("ZMSCORE", rank, *buckets) for rank in ranks])
    for place, bucket in enumerate(buckets):
        passed, denied = (
            round(sum(weight * float(step[place] or 0) for weight, step in zip(weights, some, strict=True)))
            for some in (scores[:READ_STEPS], scores[READ_STEPS:])
        )
        minute = minute_of(steps[bucket], now)
        if denied > minute.denials:
            reasons = {**(minute.denied or {}), _OTHER_REASONS: denied - minute.denials}
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


def _step(number: int, mark: bytes | None, texts: Sequence[bytes | None]) -> Step:
    if mark is None or int(mark) != number:
        return Step(number, 0, 0, {}, 0.0, is_known=False)
    count = dict(zip(_CODES, (int(text or 0) for text in texts), strict=True))
    denied = {reason: count[code] for reason, code in REASON_CODES.items() if count[code]}
    return Step(
        number, count["a"], count["u"], denied, count["w"] / 1e6, count["s"], rate=count["r"], arrived=count["n"]
    )


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
