"""Random histories of one store, made by running the reference: what was asked, answered and kept, step by step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

from throttlekit._core.absence import DOUBT, DOUBT_LASTS_US
from throttlekit._core.acquire import State, acquire, kept_until_us, leave, pause, slow
from throttlekit._core.line import (
    CLASS,
    EMPTY,
    EXACT,
    GRACE_US,
    GUESTS_US,
    KEPT_US,
    LOOK_US,
    UNIT,
    Line,
    Place,
)

from support.claims import claim_of
from throttlekit import ByLatency, Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithm import STALE_US, Algorithm, stored_until_us
from throttlekit._core.algorithms import concurrency, fixed_window, sliding_log, sliding_window
from throttlekit._core.algorithms.concurrency import Holders
from throttlekit._core.algorithms.gcra import Tat
from throttlekit._core.algorithms.sliding_log import Log
from throttlekit._core.answer import Caller
from throttlekit._core.latency import Drop, after_drop
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.rate import MONTH_US, WEEK_US, YEAR_US
from throttlekit._core.slowdown import LONGEST_HEARD_US, LONGEST_SPAN_US, TOLERANCE_US, Fall, Heard
from throttlekit._core.storage_keys import bucket_name, is_workflow, jobs_name, line_name, workflow_name
from throttlekit._core.time_zone import UTC, Zone
from throttlekit.stores import Correction, Lease, Request, Slowing, StoreClaim, Wait
from throttlekit.stores.wire import _SECRET, place_text  # pyright: ignore[reportPrivateUsage]

__all__ = [
    "ALGORITHMS",
    "ANYTHING",
    "NOW_US",
    "REASONS",
    "History",
    "Leased",
    "Left",
    "Paused",
    "Reference",
    "Rule",
    "Slowed",
    "Step",
    "Waiting",
    "rule",
    "rules",
    "written_as",
]

NOW_US = 1_800_000_000_000_000
REASONS = ("allowed", "exhausted", "in line", "early", "queue full", "paused")

_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US
_DAY_US = 24 * _HOUR_US
_MOST = 10**12 - 1

_BUCKETS = {
    "fast": [
        (300_000, _SECOND_US, 3000),
        (150_000, _SECOND_US, 1500),  # fills in the same time
        (7_000, _SECOND_US, 50),
        (90_000, 60 * _SECOND_US, 9),
        (12_345, 10**6, 1),
    ],
    "ordinary": [
        (10, 10**6, 5),
        (10, 10**6, 1),
        (7, 10**6, 7),
        (100, 60 * 10**6, 20),
        (50, 10**6, 50),
        (1000, 60 * 10**6, 2),
    ],
    "slow": [
        (1, _DAY_US, 1),
        (3, 100_000_000_003, 3),
        (1, _HOUR_US, 4),
        (5, 10 * _DAY_US, 5),
        (90_001, _DAY_US, 90_001),
        (1, 300 * _DAY_US, 1),  # its largest debt is ten years, and not so many times its burst
    ],
}
_FIXED = {
    "fast": [(50, 10_000), (3, 1), (7, 100_000)],
    "ordinary": [(10, 10**6), (1, 10**6), (3, 10**7), (100, 60 * 10**6), (4, 1800 * 10**6)],
    "slow": [
        (3, _HOUR_US), (7, _DAY_US), (2, 6 * _HOUR_US), (_MOST, _DAY_US), (5, WEEK_US), (3, MONTH_US), (2, YEAR_US),
    ],
}  # fmt: skip
_SLIDING = {
    "fast": [(300, 1_000), (9, 7), (1, 1), (_MOST, 10_000)],
    "ordinary": [(10, 10**6), (1, 10**6), (7, 10**7), (100, 60 * 10**6), (4, 7_777_777), (3, KEPT_US)],
    "slow": [(3, _HOUR_US), (3, 100_000_000_003), (_MOST, _DAY_US), (_MOST, 366 * _DAY_US), (10**6, 7 * _DAY_US)],
}
_LOGGED = {
    # Logs of more than 256 units are kept in another way, and written 1 000 at a time.
    "fast": [(9, 10_000), (3, 7), (1, 1), (40, 1_000), (300, 1_000), (2_501, 10_000)],
    "ordinary": [(10, 10**6), (1, 10**6), (7, 10**7), (25, 60 * 10**6), (256, 10**6), (257, 10**6)],
    "slow": [(3, _HOUR_US), (4, 366 * _DAY_US), (2, 100_000_000_003), (258, _DAY_US)],
}
_RATES: dict[str, dict[str, list[Any]]] = {
    "token-bucket": _BUCKETS,
    "leaky-bucket": _BUCKETS,
    "fixed-window": _FIXED,
    "sliding-window": _SLIDING,
    "sliding-log": _LOGGED,
    # The lease, in seconds, in the place of the period.
    "concurrency": {
        "fast": [(1, 1.0), (3, 1.0), (50, 2.5)],
        "ordinary": [(1, 30.0), (2, 30.0), (4, 10.0), (3, 1.000001)],
        "slow": [(2, 3600.0), (5, 86_400.0), (1, 300.0)],
    },
}
_RATES["adaptive-concurrency"] = _RATES["concurrency"]
ALGORITHMS = tuple(_RATES)


@dataclass(frozen=True)
class Rule:
    """One definition of a limit, and where its state is kept."""

    limit: Limit
    zone: Zone
    bucket: str

    @property
    def keys(self) -> tuple[str, str, str]:
        return self.bucket, line_name(self.bucket), jobs_name(self.bucket)

    @property
    def step_us(self) -> int:
        """About the time from one unit to the next."""
        return max(1, self.span_us // self.limit.amount)

    @property
    def span_us(self) -> int:
        """The period, or the lease."""
        return self.limit.lease_us if isinstance(self.limit, Concurrency) else self.limit.period_us

    def bind(self, cost: int, holder: str = "") -> Algorithm:
        charge = self.limit.bind(cost, 0, holder)
        return replace(charge, zone=self.zone) if isinstance(charge, fixed_window.FixedWindowAlgorithm) else charge


def rule(limit: Limit, zone: Zone = UTC, number: int = 0) -> Rule:
    """*limit* as a rule of its own: its key's name tells its algorithm, and *number* what else is not in it."""
    # "ring" tells the strict script that the key's value is no text.
    kind = "ring" if isinstance(limit, SlidingLog) else limit.algorithm
    return Rule(limit, zone, bucket_name(limit.name, "", f"{kind}{number}{limit.fingerprint}"))


def rules(rnd: random.Random, algorithms: Sequence[str], now_us: int) -> list[Rule]:
    """Up to five names, with up to three definitions each; mostly of one speed, so that they meet."""
    speed = rnd.choice(["fast", "ordinary", "slow", "mixed"])
    names = "abcde"[: rnd.randint(2, 5) if len(algorithms) > 1 else rnd.randint(1, 3)]
    found: list[Rule] = []
    for name in names:
        for number in range(rnd.choice([1, 1, 2, 3])):
            chosen, at = rnd.choice(algorithms), rnd.choice(("fast", "ordinary", "slow")) if speed == "mixed" else speed
            found.append(_random_rule(rnd, chosen, at, name, number, now_us))
            first = found[-1]
            for _ in range(rnd.choice([0, 0, 0, 1, 2])):
                # The same key at another rate, as after a change by live control.
                limit = _random_rule(rnd, chosen, at, name, number, now_us).limit
                if isinstance(limit, (FixedWindow, SlidingWindow)):
                    # Within what a debt may be: the units of a greater one are an estimate.
                    amount = max(1, min(first.limit.amount * rnd.choice([1, 2, 10]) // rnd.choice([1, 3, 10]), _MOST))
                    limit = type(limit)(name, limit.rate_from(amount, first.limit.period_us))
                if limit.count_with(first.limit) or isinstance(limit, Concurrency):
                    found.append(replace(first, limit=limit))
    return found


def _random_rule(rnd: random.Random, algorithm: str, speed: str, name: str, number: int, now_us: int) -> Rule:
    amount, period_us, *rest = rnd.choice(_RATES[algorithm][speed])
    if algorithm == "concurrency":
        return rule(Concurrency(name, amount, lease=period_us), number=number)
    if algorithm == "adaptive-concurrency":
        adapt = ByLatency(rnd.randint(1, amount), timeout=rnd.choice([None, None, 0.01, min(86_400.0, 2 * period_us)]))
        return rule(Concurrency(name, amount, lease=period_us, adapt=rnd.choice([None, *[adapt] * 4])), number=number)
    rate = (amount, timedelta(microseconds=period_us))
    limit: Limit
    if algorithm == "token-bucket":
        limit = TokenBucket(name, rate, burst=rest[0])
    elif algorithm == "leaky-bucket":
        limit = LeakyBucket(name, rate, queue=rnd.choice([None, 0, 1, 3, 10]))
    elif algorithm == "fixed-window":
        limit = FixedWindow(name, FixedWindow.rate_from(amount, period_us))
        zone = _random_zone(rnd, now_us) if period_us <= _DAY_US else limit.bind(1, now_us).zone
        return rule(limit, zone, number)
    else:
        limit = SlidingWindow(name, rate) if algorithm == "sliding-window" else SlidingLog(name, rate)
    return rule(limit, number=number)


def _random_zone(rnd: random.Random, now_us: int) -> Zone:
    """A zone whose clocks change near *now_us*, often so that midnight is skipped or comes twice."""
    if rnd.random() < 0.3:
        return UTC
    offset_us = rnd.choice([-11 * _HOUR_US, -3 * _HOUR_US, 0, 2 * _HOUR_US, 23 * _HOUR_US // 4, 13 * _HOUR_US])
    if rnd.random() < 0.2:
        return Zone(offset_us)
    before_us = offset_us
    midnight_us = (now_us + before_us) // _DAY_US * _DAY_US + rnd.choice([-_DAY_US, 0, 0, _DAY_US])
    changes: list[tuple[int, int]] = []
    for _ in range(rnd.choice([1, 1, 2])):
        from_us = midnight_us + rnd.choice([0, 0, _HOUR_US // 2, _HOUR_US, 2 * _HOUR_US]) - before_us
        from_us = max(from_us, changes[-1][0] + 1 if changes else 0)
        by_us = rnd.choice([1, 1, -1, -1]) * rnd.choice([_HOUR_US, _HOUR_US, _HOUR_US // 2, _DAY_US])
        before_us += by_us
        changes.append((from_us, before_us))
        midnight_us += rnd.choice([0, 2, 40]) * _DAY_US + rnd.choice([0, _HOUR_US])
    return Zone(offset_us, tuple(changes))


@dataclass(frozen=True)
class Leased:
    """Slots given back, or kept."""

    verb: str
    leases: Sequence[Lease]


@dataclass(frozen=True)
class Paused:
    """A pause, or its end. *emptied*: because of a 429."""

    claims: Sequence[StoreClaim]
    for_us: int | None
    emptied: bool


@dataclass(frozen=True)
class Slowed:
    """Refusals of downstream, and what it says is left."""

    slowings: Sequence[Slowing]


@dataclass(frozen=True)
class Left:
    """Jobs that leave the lines in which they stand."""

    waits: Sequence[Wait]


ANYTHING = "anything"
"""What the key of a line's jobs holds after the line has gone, until jobs wait again."""


class Waiting(NamedTuple):
    """What the key of a line's jobs holds."""

    jobs: Sequence[tuple[int, int, int]]
    finishes: dict[str, int]
    returns: dict[str, int]


@dataclass(frozen=True)
class Step:
    """One question with what must come of it; or, without a question, keys that are forgotten."""

    now_us: int
    keys: Sequence[str]
    question: Request | Sequence[Correction] | Leased | Left | Paused | Slowed | None = None
    reply: Sequence[int | str] | int | None = None
    stored: Sequence[object] = ()
    """What *keys* hold afterwards: an algorithm's own state, a `Line`, a line's jobs (`Waiting`) or None."""
    expiry_ms: Sequence[int | None] = ()
    """
    The milliseconds after which each of *keys* that the step wrote expires; None: it was not written.
    Less than 1: nothing of it counts any more, and it is forgotten at once.
    """


class Reference:
    """
    What a store would keep, by the reference.

    Nothing expires here: the checker takes the time to live from each key as soon as it is written.
    That a key is missing is a step of its own.

    Attributes:
        is_reborn: A line was lost, and began anew at the very instant of the first, with its secret: then a place of
            the one is a place of the other.
    """

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.places: Sequence[Place | None] = ()
        self.seen: Counter[str] = Counter()
        self.is_reborn = False
        self._begun: set[tuple[str, int]] = set()

    def line(self, rule: Rule) -> Line | None:
        return self.kept.get(rule.keys[1])

    def forget(self, now_us: int, *keys: str) -> Step:
        for key in keys:
            self.kept.pop(key, None)
            if key.endswith(":order2") and key.replace(":order2", ":jobs2") not in keys:
                self.kept[key.replace(":order2", ":jobs2")] = ANYTHING
        return Step(now_us, keys)

    def ask(
        self,
        now_us: int,
        asked: Sequence[tuple[Rule, StoreClaim]],
        caller: Caller,
        places: Sequence[Place | None] = (),
        max_wait_us: int | None = None,
        grace_us: int = GRACE_US,
    ) -> Step:
        asks = [replace(ask, bucket=rule.bucket) for rule, ask in asked]
        before = [self._state(rule, now_us) for rule, _ in asked]
        verdict, after = acquire(
            asks, before, now_us,
            caller=caller, places=places, max_wait_us=max_wait_us, grace_us=grace_us, secret=_SECRET,
        )  # fmt: skip
        expires_us: list[int | None] = []
        for (rule, ask), old, new in zip(asked, before, after, strict=True):
            held = ask.algorithm.size and ask.algorithm.holds(ask.algorithm.sanitized(old.taken, now_us), now_us)
            if held and verdict.allowed and caller is not Caller.PEEK:
                self.seen["of a workflow that holds"] += 1
                self.seen["past a line"] += old.line is not None and len(old.line.jobs) > 0
            full_us = stored_until_us(ask.algorithm, new.taken, now_us)
            expires_us.append(self._put(rule.bucket, new.taken, full_us if new.taken is not old.taken else None))
            expires_us += self._put_line(rule, ask.algorithm, old, new, now_us)
        self._count(verdict.reason.value, now_us, before, after, asks, caller)
        uses = [number for use in verdict.uses if use is not None for number in use]
        numbers = [REASONS.index(verdict.reason.value), verdict.claim + 1, now_us, verdict.retry_us, verdict.due_us]
        reply = [*numbers, *uses, *map(place_text, verdict.places)]
        request = Request(asks, caller, places, max_wait_us, grace_us)
        step = self._step(now_us, [key for rule, _ in asked for key in rule.keys], request, reply, expires_us)
        self.places = verdict.places
        return step

    def leave(self, now_us: int, asked: Sequence[tuple[Rule, StoreClaim]], places: Sequence[Place]) -> Step:
        left, expires_us, waits = 0, list[int | None](), list[Wait]()
        for (rule, claim), place in zip(asked, places, strict=True):
            before = self._state(rule, now_us)
            claim = replace(claim, bucket=rule.bucket)
            after = leave(before, claim, place, now_us)
            expires_us += [None, *self._put_line(rule, claim.algorithm, before, after, now_us)]
            left += after is not before
            waits.append(Wait(claim, place))
        self.seen["left" if left else "not left"] += 1
        return self._step(now_us, [key for rule, _ in asked for key in rule.keys], Left(waits), left, expires_us)

    def settle(self, now_us: int, corrections: Sequence[Correction]) -> Step:
        corrected, expires_us = 0, []
        for each in corrections:
            before = self.kept.get(each.bucket)
            believed = each.algorithm.sanitized(before, now_us)
            after = each.algorithm.settled(believed, now_us, each.granted_us, each.by)
            corrected += after is not believed
            full_us = stored_until_us(each.algorithm, after, now_us)
            expires_us.append(self._put(each.bucket, after, full_us if after is not before else None))
            what = "not settled" if after is believed else "settled up" if each.by > 0 else "settled down"
            self.seen[what] += 1
            self.seen["in debt"] += each.algorithm.use(after, now_us).units > getattr(each.algorithm, "amount", 10**20)
            self.seen["in debt"] += isinstance(after, Tat) and after.debt_us > 0
            self.seen["stale settled"] += believed is not before
            self.seen["settled at another rate"] += each.algorithm.adopted(believed, now_us) is not believed
        return self._step(now_us, [each.bucket for each in corrections], corrections, corrected, expires_us)

    def leased(self, now_us: int, verb: str, leases: Sequence[Lease]) -> Step:
        reply: list[int] = []
        expires_us: list[int | None] = []
        for each in leases:
            charge, before = each.algorithm, self.kept.get(each.bucket)
            assert isinstance(charge, concurrency.ConcurrencyAlgorithm)
            believed = charge.sanitized(before, now_us)
            if verb == "release":
                after = charge.released(believed, now_us, each.granted_us)
                done = after is not believed
            else:
                after, done = charge.renewed(believed, now_us)
            reply.append(int(done))
            full_us = stored_until_us(charge, after, now_us)
            expires_us.append(self._put(each.bucket, after, full_us if after is not before else None))
            self.seen[f"{verb}: {done}"] += 1
            self.seen["kept"] += done and charge.stays
            self.seen["done"] += done and charge.lease_us == 0
        return self._step(now_us, [each.bucket for each in leases], Leased(verb, leases), reply, expires_us)

    def pause(self, now_us: int, rules: Sequence[Rule], for_us: int | None, emptied: bool) -> Step:
        reply: list[int] = []
        expires_us: list[int | None] = []
        claims: list[StoreClaim] = []
        for rule in rules:
            charge = rule.bind(0)
            claims.append(StoreClaim(rule.bucket, charge))
            before = self._state(rule, now_us)
            after = pause(before, now_us, for_us, emptied=emptied)
            expires_us += [None, *self._put_line(rule, charge, before, after, now_us)]
            reply.append(after.line.paused_us if after.line else 0)
            self.seen["resumed" if for_us is None and after is not before else "pauses"] += 1
            if after.line is not None and after is not before:
                self.seen["a 429 within a pause"] += 0 < after.line.emptied_us < after.line.paused_us
        keys = [key for rule in rules for key in rule.keys]
        return self._step(now_us, keys, Paused(claims, for_us, emptied), reply, expires_us)

    def slow(self, now_us: int, asked: Sequence[tuple[Rule, Fall | Heard | Drop]]) -> Step:
        reply: list[int] = []
        expires_us: list[int | None] = []
        slowings: list[Slowing] = []
        for rule, why in asked:
            claim = StoreClaim(rule.bucket, rule.bind(0))
            before = self._state(rule, now_us)
            if isinstance(why, Drop):
                after = before._replace(taken=after_drop(before.taken, claim.algorithm, why, now_us))
                after = before if after.taken is before.taken else after
                full_us = stored_until_us(claim.algorithm, after.taken, now_us)
                expires_us.append(self._put(rule.bucket, after.taken, None if after is before else full_us))
            else:
                after = slow(before, claim, why, now_us)
                expires_us.append(None)
            expires_us += self._put_line(rule, claim.algorithm, before, after, now_us)
            reply.append(int(after is not before))
            slowings.append(Slowing(claim, why))
            self.seen[f"{type(why).__name__.lower()}: {after is not before}"] += 1
        keys = [key for rule, _ in asked for key in rule.keys]
        return self._step(now_us, keys, Slowed(slowings), reply, expires_us)

    def _state(self, rule: Rule, now_us: int) -> State:
        """What is kept of *rule*. A pause that a later clock began begins anew at once, and lives no longer."""
        line = self.line(rule)
        if line is not None:
            self.seen["pause begun anew"] += line.paused_from_us > now_us
            line = self.kept[rule.keys[1]] = line.at(now_us)
        return State(self.kept.get(rule.bucket), line)

    def _put_line(
        self, rule: Rule, algorithm: Algorithm, before: State, after: State, now_us: int
    ) -> tuple[int | None, int | None]:
        line, written = after.line, after.line is not before.line
        if line is not None and line.epoch != (before.line.epoch if before.line else 0):
            self.is_reborn |= (rule.keys[1], line.epoch) in self._begun
            self._begun.add((rule.keys[1], line.epoch))
        last_us = kept_until_us(after, algorithm, now_us) if line is not None and written else None
        self._put(rule.keys[1], line, last_us)
        if line is None or not line.jobs:
            if self.kept.get(rule.keys[2]) is not ANYTHING:
                self.kept.pop(rule.keys[2], None)
            return last_us, None
        self.kept[rule.keys[2]] = Waiting([*map(tuple, line.jobs)], dict(line.finishes), dict(line.returns))  # type: ignore[list-item]
        return last_us, last_us

    def _put(self, key: str, value: object, last_us: int | None) -> int | None:
        """Keep *value*; *last_us* is when nothing of it counts any more, None if it is not written."""
        if value is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = value
        return last_us

    def _step(
        self,
        now_us: int,
        keys: Sequence[str],
        question: Request | Sequence[Correction] | Leased | Left | Paused | Slowed,
        reply: Sequence[int | str] | int,
        expires_us: Sequence[int | None],
    ) -> Step:
        expiry_ms = [None if last_us is None else -((now_us - last_us - KEPT_US) // 1000) for last_us in expires_us]
        stored = [self.kept.get(key) for key in keys]
        for key, left_ms in zip(keys, expiry_ms, strict=True):
            if left_ms is not None and left_ms < 1:
                self.seen["gone at once"] += 1
                self.kept.pop(key, None)
        return Step(now_us, keys, question, reply, stored, expiry_ms)

    def _count(
        self, reason: str, now_us: int, before: Sequence[State], after: Sequence[State], asks: Sequence[StoreClaim],
        caller: Caller,
    ) -> None:  # fmt: skip
        self.seen[reason] += 1
        self.seen["several"] += len(asks) > 1
        for state, changed, ask in zip(before, after, asks, strict=True):
            self._count_line(state.line or EMPTY, changed.line or EMPTY, now_us)
            stale = ask.algorithm.sanitized(state.taken, now_us) is not state.taken
            believed = ask.algorithm.sanitized(state.taken, now_us)
            of_another_rate = ask.algorithm.adopted(believed, now_us) is not believed
            self.seen["at another rate"] += of_another_rate
            self.seen["looked at from another rate"] += of_another_rate and caller is Caller.PEEK
            self.seen["stale"] += stale
            self.seen["stale looked at"] += stale and caller is Caller.PEEK
            self.seen["ahead"] += state.taken is not None and _begin_us(ask.algorithm, state.taken) > now_us
            if reason == "allowed" and isinstance(ask.algorithm, sliding_log.SlidingLogAlgorithm) and state.taken:
                self.seen["ring wrapped"] += len(state.taken.units) + ask.algorithm.size > ask.algorithm.amount

    def _count_line(self, before: Line, after: Line, now_us: int) -> None:
        self.seen["set aside"] += after.aside_us == now_us != before.aside_us
        self.seen["larger budget"] += after.doubt >= DOUBT
        self.seen["back"] += after.doubt < before.doubt and after.aside_us == before.aside_us
        self.seen["in the line"] += len(after.jobs) > len(before.jobs)
        self.seen["left the line"] += len(after.jobs) < len(before.jobs)
        self.seen["returns"] += len(after.returns) > len(before.returns)
        self.seen["tenants"] += len(after.finishes) > 1
        self.seen["costs"] += after.extra > 0
        self.seen["guesses"] += len(after.jobs) > EXACT and after.extra > 0
        self.seen["new rate"] += after.mark != before.mark and len(before.jobs) > 0
        slowed = before.slow is not None and now_us < before.slow.last_us
        self.seen["slowed"] += slowed and after.slow == before.slow
        self.seen["paced"] += slowed and after.slow is not None and after.slow.gate_us != before.slow.gate_us
        self.seen["tags at their end"] += after.epoch > before.epoch > 0


def _begin_us(charge: Algorithm, state: Any) -> int:
    """The latest instant at which the state can have been written, had the clock never been wrong."""
    if isinstance(charge, concurrency.ConcurrencyAlgorithm):
        return state.leases[-1][1] - charge.lease_us if state.leases else int(state.granted_us)
    if isinstance(charge, fixed_window.FixedWindowAlgorithm):
        return int(state.window * charge.period_us - charge.zone.at(state.window * charge.period_us))
    if isinstance(charge, sliding_window.SlidingWindowAlgorithm):
        return int(state.window * charge.period_us)
    if isinstance(charge, sliding_log.SlidingLogAlgorithm):
        return int(state.units[-1]) if state.units else 0
    return int(state.at_us - state.debt_us - (state.measure.capacity_us if state.measure else charge.params[1]))


def written_as(value: object) -> object:
    """What a key holds that keeps *value*; a log as it is, since its ring may begin anywhere; and so sorted sets."""
    if value is None or value is ANYTHING or isinstance(value, (Log, Holders, Waiting)):
        return value
    if isinstance(value, Line):
        numbers = (
            value.epoch, value.v, value.gone, value.number, value.extra, value.mean, value.dear, value.doubt,
            value.aside_us, value.over_us, value.since_us, value.low, value.grace_us, value.paused_us,
            value.paused_from_us, value.emptied_us, value.guest_us, value.until_us, value.mark, len(value.jobs),
        )  # fmt: skip
        return " ".join([*map(str, numbers), value.secret, *map(str, value.slow or ())]).encode()
    if isinstance(value, Tat):
        value = (value.at_us, value.debt_us, *value.measure) if value.measure else value[: 2 if value.debt_us else 1]
    assert isinstance(value, tuple)
    return " ".join(str(number) for number in value).encode()


class History:
    """Walks at random over limits of *algorithms*; so many of their slots are asked for by *workflows*."""

    def __init__(self, rnd: random.Random, algorithms: Sequence[str], *, workflows: float = 0.25) -> None:
        self._rnd, self._workflows = rnd, workflows
        self._now_us = self._start_us = NOW_US + rnd.randrange(40 * _DAY_US)
        self._rules = rules(rnd, algorithms, self._now_us)
        self._reference = Reference()
        self._huge, self._unshared = rnd.random() < 0.15, rnd.choice([0, 0.5, 1])
        self._flood, self._flooded = 0, self._rules[0]
        self._begun: set[int] = set()
        self._waiting: list[tuple[list[tuple[Rule, StoreClaim]], Sequence[Place | None], int]] = []
        self._grants: list[tuple[Rule, Algorithm, int]] = []

    @property
    def seen(self) -> Counter[str]:
        return self._reference.seen

    @property
    def is_reborn(self) -> bool:
        """As of `Reference`."""
        return self._reference.is_reborn

    def steps(self, count: int) -> Iterator[Step]:
        for _ in range(count):
            if self._flood:
                self._flood -= 1
                yield self._newcomer()
                continue
            self._begun |= {held.epoch for held in self._reference.kept.values() if isinstance(held, Line)}
            before_us = self._now_us
            self._move_clock()
            # No line begins twice at one instant: places of the one would be good in the other.
            while self._now_us != before_us and self._now_us in self._begun:
                self._now_us += 1
            kind = self._rnd.random()
            if kind < 0.01:
                bucket, *line = self._rnd.choice(self._rules).keys
                yield self._reference.forget(self._now_us, *self._rnd.choice([[bucket], line, line[:1]]))
                self._now_us += 1
            elif kind < 0.06 and self._waiting:
                yield self._leave()
            elif kind < 0.066:
                self._flood, self._flooded = self._rnd.choice([10, 60]), self._rnd.choice(self._rules)
                yield self._newcomer()
            else:
                yield self._other() if kind < 0.25 else self._settle() if kind < 0.33 else self._ask()

    def _other(self) -> Step:
        rnd, now_us = self._rnd, self._now_us
        slots = [rule for rule in self._rules if isinstance(rule.limit, Concurrency)]
        if slots and rnd.random() < 0.75:
            leases: dict[str, Lease] = {}
            verb = rnd.choice(["release", "release", "renew"])
            for rule in rnd.sample(slots, rnd.randint(1, len(slots))):
                granted = [(charge, at_us) for of, charge, at_us in self._grants if of is rule and charge.size]
                forged = rule.bind(1, self._holder()), rnd.choice([now_us, now_us + 5, now_us - rnd.randrange(10**9)])
                charge, at_us = rnd.choice(granted) if granted and rnd.random() < 0.85 else forged
                if verb == "release" and is_workflow(charge.holder) and rnd.random() < 0.5:  # it is done
                    charge = replace(charge, lease_us=0)  # type: ignore[type-var]
                leases[rule.bucket] = Lease(rule.bucket, charge, at_us)
            return self._reference.leased(now_us, verb, [*leases.values()])
        by_bucket = [*{rule.bucket: rule for rule in rnd.sample(self._rules, len(self._rules))}.values()]
        rules = by_bucket[: rnd.choice([1, 1, 2])]
        each_us = [0, 1, 1_000, 2_000_000, 7_200_000_000, rnd.randrange(1 + rules[0].step_us)]
        lines = [self._reference.line(rule) for rule in rules]
        if any(line is not None and line.paused_us > now_us for line in lines) and rnd.random() < 0.4:
            each_us = []
        if rnd.random() < 0.25:
            return self._reference.slow(now_us, [(rule, self._slowing(rule)) for rule in rules])
        return self._reference.pause(now_us, rules, rnd.choice([None, *each_us]), rnd.random() < 0.5)

    def _slowing(self, rule: Rule) -> Fall | Heard | Drop:
        rnd, line = self._rnd, self._reference.line(rule)
        if isinstance(rule.limit.adapt, ByLatency):
            return Drop(rnd.choice([None, self._now_us, self._now_us - rnd.randrange(1 + rule.span_us)]))
        if rnd.random() < 0.5:
            fell_us = line.slow.fell_us if line is not None and line.slow else self._now_us
            span_us = rnd.choice([1, 999, rule.step_us, 30 * rule.step_us, LONGEST_SPAN_US])
            floor = rnd.choice([1_000, 100_000, 800_000, 999_999])
            return Fall(
                rnd.choice([None, fell_us - 1, fell_us - 1, fell_us - 1, fell_us, self._now_us]),
                min(span_us, LONGEST_SPAN_US),
                floor,
            )
        left_us = line.slow.heard_us - self._now_us if line is not None and line.slow else 0
        resets_us = [0, 1, rule.step_us, left_us, left_us - 2 * _SECOND_US, left_us - 2 * _SECOND_US - 1]
        reset_us = min(
            max(0, rnd.choice([*resets_us, left_us + 2 * _SECOND_US, left_us + 2 * _SECOND_US + 1, 10**13])),
            LONGEST_HEARD_US,
        )
        return Heard(rnd.choice([0, 1, 2, rnd.randrange(1 + rule.limit.capacity), 10**8]), reset_us)

    def _newcomer(self) -> Step:
        """One of many that come at one instant; few of them come back."""
        asked = [(self._flooded, self._one(self._flooded))]
        step = self._reference.ask(self._now_us, asked, Caller.JOB)
        if self._reference.places and self._rnd.random() < 0.2:
            assert isinstance(step.reply, list)
            self._waiting.append((asked, self._reference.places, int(step.reply[4])))
        return step

    def _leave(self) -> Step:
        asked, places, _ = self._waiting.pop(self._rnd.randrange(len(self._waiting)))
        known = [(each, place) for each, place in zip(asked, places, strict=True) if place is not None]
        return self._reference.leave(
            self._now_us, [each for each, _ in known], [self._bent(place) for _, place in known]
        )

    def _bent(self, place: Place) -> Place:
        """*place*, or now and then one that no line gave."""
        if self._rnd.random() < 0.96:
            return place
        field, by = self._rnd.choice(["epoch", "start", "number", "due_us"]), self._rnd.choice([-1, 1, 60_000])
        bent = place._replace(**{field: max(0, getattr(place, field) + by)})
        return self._rnd.choice([bent, bent, place._replace(seal="0" * 10)])

    def _holder(self) -> str:
        if self._rnd.random() < self._workflows:
            return workflow_name(f"job:{self._rnd.randrange(4)}")
        return f"job%3A{self._rnd.randrange(12)}#{self._rnd.randrange(3)}"

    def _move_clock(self) -> None:
        rnd, kind = self._rnd, self._rnd.random()
        rule = rnd.choice(self._rules)
        if kind < 0.33:
            return
        if kind < 0.58:
            self._now_us += rnd.randrange(1 + rule.step_us * rnd.choice([1, 1, 5]))
        elif kind < 0.76 and self._waiting:
            due_us = rnd.choice(self._waiting[: rnd.choice([1, 8, 40])])[2]
            self._now_us = due_us + rnd.choice([-1, 0, 0, 0, 1, rule.step_us // 3, GRACE_US, GRACE_US + 1])
        elif kind < 0.91:
            self._now_us = self._edge_us(rule) + rnd.choice([-1, 0, 0, 1])
        elif kind < 0.95:
            self._now_us -= rnd.randrange(1 + rule.step_us * rnd.choice([1, 3, 10]))
        elif kind < 0.985:
            self._now_us += rnd.choice([1, -1]) * rnd.choice(
                [LOOK_US, STALE_US, STALE_US + 1, GUESTS_US, _HOUR_US, _DAY_US]
            )
        else:
            self._now_us = self._start_us + rnd.randrange(10**9)
        # A server's clock stands nowhere near zero, nor past what a double can count.
        if not NOW_US // 2 < self._now_us < 2 * NOW_US:
            self._now_us = self._start_us

    def _edge_us(self, rule: Rule) -> int:
        """An instant at which something changes for *rule*."""
        rnd, charge, state = self._rnd, rule.bind(1), self._reference.kept.get(rule.bucket)
        edges = [self._now_us // rule.span_us * rule.span_us, *(at for at, _ in rule.zone.changes)]
        if state is not None:
            full_us = charge.use(state, self._now_us).full_us
            edges += [full_us, full_us, full_us + KEPT_US, full_us + GRACE_US]
            edges += [charge.ready_us(state, self._now_us), _begin_us(charge, state) - STALE_US]
            edges += [charge.ready_us(state, self._now_us), getattr(state, "owed_until_us", 0) or full_us]
        line = self._reference.line(rule)
        if line is not None and line.paused_us:
            edges += [line.paused_us, line.paused_us, line.paused_from_us, line.paused_from_us - 1, line.emptied_us]
            edges += [kept_until_us(State(state, line), charge, self._now_us)]
            edges += [line.paused_us + LOOK_US + max(GRACE_US, line.grace_us)]
        if line is not None and (slowed := line.slow):
            edges += [slowed.fell_us, slowed.back_us, slowed.heard_us, slowed.heard_from_us, slowed.gate_us]
            edges += [slowed.gate_us - TOLERANCE_US, slowed.fell_us + slowed.span_us, slowed.gate_us + STALE_US]
        if line is not None and line.jobs:
            ripe_us = line.since_us + max(GRACE_US, line.grace_us)
            edges += [
                ripe_us,
                ripe_us,
                self._now_us + line.grace_us,
                line.aside_us + DOUBT_LASTS_US + 2 * line.grace_us,
            ]
            edges += [line.since_us - LOOK_US]
        if isinstance(state, Holders):
            edges += [until_us for _, until_us in state.leases]
        if self._grants:
            edges += [rnd.choice(self._grants)[2]]
        return rnd.choice(edges)

    def _ask(self) -> Step:
        rnd, now_us = self._rnd, self._now_us
        caller = rnd.choices(list(Caller), [14, 1, 2, 1])[0]
        places: Sequence[Place | None] = ()
        if self._waiting and rnd.random() < 0.55:
            asked, places, _ = self._waiting.pop(rnd.randrange(len(self._waiting[: rnd.choice([1, 1, 40])])))
            places = [None if place is None else self._bent(place) for place in places]
            if rnd.random() < 0.03:
                places = places[::-1]
            if rnd.random() < 0.05:
                asked = [(rule, self._one(rule)) for rule, _ in asked]
        else:
            by_name = {rule.limit.name: rule for rule in rnd.sample(self._rules, len(self._rules))}
            chosen = rnd.sample(list(by_name.values()), rnd.choice([1, rnd.randint(1, len(by_name))]))
            asked = [(rule, self._one(rule)) for rule in chosen]
        span_us = 9 * asked[0][0].step_us
        max_wait_us = rnd.choice([*[None] * 8, 0, rnd.randrange(10**7), rnd.randrange(1 + span_us)])
        grace_us = rnd.choice([GRACE_US, GRACE_US, GRACE_US, 20_000, 100_000, 2_000_000])
        step = self._reference.ask(now_us, asked, caller, places, max_wait_us, grace_us)
        assert isinstance(step.reply, list)
        if step.reply[0] == 0 and caller is not Caller.PEEK:
            self._grants += [(rule, ask.algorithm, now_us) for rule, ask in asked]
            del self._grants[:-40]
        elif self._reference.places:
            self._waiting.append((asked, self._reference.places, step.reply[4]))
            del self._waiting[: -rnd.choice([40, 40, 100])]
        return step

    def _one(self, rule: Rule) -> StoreClaim:
        rnd, most = self._rnd, rule.limit.capacity
        if most > 10**8:
            most = (
                1000  # what so many units before a job take is an estimate, and no double holds it to the microsecond
            )
        if isinstance(rule.limit.adapt, ByLatency):
            most = 1
        cost = rnd.choices([1, 0, most, rnd.randint(0, most)], [16, 1, 1, 3])[0]
        max_queue = rnd.randrange(9) if rule.limit.max_queue is None and rnd.random() < 0.05 else rule.limit.max_queue
        units = cost * UNIT
        step = rnd.choice([units, 2**50, 2**51]) if self._huge else -(-units // rnd.choice([1, 1, 1, 2, 3, 7]))
        tenant, lead = rnd.choice([("", 0), ("", 0), ("", 0), ("a", 0), ("b%3A c", 0), ("c", CLASS), ("d", 5 * CLASS)])
        charge = rule.bind(cost, self._holder())
        if not tenant and rnd.random() < self._unshared:
            step = 0
        return claim_of(charge, cost, max_queue, tenant=tenant, step=step, lead=lead, bucket=rule.bucket)

    def _settle(self) -> Step:
        rnd = self._rnd
        corrections: dict[str, Correction] = {}
        for _ in range(rnd.choice([1, 1, 2, 5])):
            rule = rnd.choice(self._rules)
            granted = [(charge, at_us) for of, charge, at_us in self._grants if of is rule]
            most = rule.limit.capacity
            if granted and rnd.random() < 0.8:
                charge, granted_us = rnd.choice(granted)
            else:
                forged_us = rnd.choice([0, self._now_us, self._now_us - rnd.randrange(2 * rule.span_us)])
                units = rnd.choice([1, most, rnd.randint(1, most)])
                charge, granted_us = rule.bind(units, self._holder()), max(0, forged_us)
            actual = rnd.choice([0, 0, 1, most, rnd.randint(0, most), rnd.randint(0, 3 * most), 100 * most, 10**18])
            by = rule.bind(actual).size - charge.size
            if by:
                corrections[rule.bucket] = Correction(rule.bucket, charge, granted_us, by)
        if not corrections:
            return self._ask()
        return self._reference.settle(self._now_us, list(corrections.values()))
