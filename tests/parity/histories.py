"""Random histories of one store, made by running the reference: what was asked, answered and kept, step by step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from throttlekit._core.acquire import Ask, Caller, Place, State, Verdict, acquire
from throttlekit._core.gcra import STALE_US, Bucket
from throttlekit._core.line import GRACE_US, GUESTS_US, spacing_us

__all__ = ["NOW_US", "Definition", "History", "Step", "definitions"]

NOW_US = 1_800_000_000_000_000
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Definition:
    """One definition of the limit called *name*."""

    name: str
    bucket: Bucket
    fingerprint: str

    @property
    def keys(self) -> tuple[str, str]:
        return f"tk1:{{{self.name}}}:bucket", f"tk1:{{{self.name}}}:line:{self.fingerprint}"


@dataclass(frozen=True)
class Step:
    """One question with the reference's answer; or, without a question, keys that are forgotten."""

    now_us: int
    keys: Sequence[str] = ()
    asks: Sequence[Ask] = ()
    caller: Caller = Caller.JOB
    place: Place | None = None
    patience_us: int | None = None
    verdict: Verdict | None = None
    stored: Sequence[bytes | None] = ()
    """What *keys* hold afterwards."""
    written: dict[str, int] = field(default_factory=dict)
    """Keys that the step writes, and the milliseconds after which they expire."""


_RATES = {
    "fast": [(300_000, 10**6, 1000), (7_000, 10**6, 50), (90_000, 60 * 10**6, 9), (12_345, 10**6, 1)],
    "ordinary": [(10, 10**6, 5), (10, 10**6, 1), (7, 10**6, 7), (100, 60 * 10**6, 20), (50, 10**6, 50)],
    "slow": [(1, _DAY_US, 1), (3, 100_000_000_003, 3), (1, 3_600_000_000, 4), (5, 10 * _DAY_US, 5)],
}


def definitions(rnd: random.Random) -> list[Definition]:
    """Up to three names, with up to three definitions each; mostly of one speed, so that they meet."""
    speed = rnd.choice([*_RATES, "mixed"])
    pool = [rate for rates in _RATES.values() for rate in rates] if speed == "mixed" else _RATES[speed]
    return [
        Definition(name, Bucket.of(*rnd.choice(pool)), f"{name}{i}")
        for name in "abc"[: rnd.randint(1, 3)]
        for i in range(rnd.randint(1, 3))
    ]


class History:
    """
    Walks at random, and keeps what a store would keep: `State`s, by the reference.

    Nothing expires here: the checker takes the time to live from each key as soon as it is written.
    That a key is missing is a step of its own.
    """

    def __init__(self, rnd: random.Random) -> None:
        self._rnd = rnd
        self._definitions = definitions(rnd)
        self._tats: dict[str, int] = {}
        self._lines: dict[str, State] = {}
        self._tickets: list[tuple[Definition, int]] = []
        self._now_us = NOW_US + rnd.randrange(10**9)

    def steps(self, count: int) -> Iterator[Step]:
        for _ in range(count):
            self._move_clock()
            yield self._forget() if self._rnd.random() < 0.01 else self._ask()

    def _move_clock(self) -> None:
        rnd, kind = self._rnd, self._rnd.random()
        interval_us = max(1, round(rnd.choice(self._definitions).bucket.interval_us))
        if kind < 0.35:
            return
        if kind < 0.65:
            self._now_us += rnd.randrange(1 + interval_us * rnd.choice([1, 1, 5]))
        elif kind < 0.85 and self._tickets:
            self._now_us = rnd.choice(self._tickets[-8:])[1] + rnd.choice([-1, 0, 0, 0, 1, interval_us // 3])
        elif kind < 0.91 and self._tats:
            edge_us = rnd.choice([0, GRACE_US, GRACE_US])
            self._now_us = rnd.choice(list(self._tats.values())) + edge_us + rnd.choice([-1, 0, 0, 1])
        elif kind < 0.95:
            self._now_us -= rnd.randrange(1 + interval_us * rnd.choice([1, 3, 10]))
        elif kind < 0.97 and self._tats:
            capacity_us = rnd.choice(self._definitions).bucket.charge(1).capacity_us
            self._now_us = rnd.choice(list(self._tats.values())) - capacity_us - STALE_US + rnd.choice([-1, 0, 1])
        elif kind < 0.985:
            self._now_us += rnd.choice([1, -1]) * rnd.choice([GRACE_US, STALE_US, GUESTS_US, _DAY_US])
        else:
            self._now_us = NOW_US + rnd.randrange(10**9)

    def _forget(self) -> Step:
        bucket, line = self._rnd.choice(self._definitions).keys
        key = self._rnd.choice([bucket, line])
        self._tats.pop(key, None)
        self._lines.pop(key, None)
        return Step(self._now_us, (key,))

    def _ask(self) -> Step:
        rnd = self._rnd
        by_name = {d.name: d for d in rnd.sample(self._definitions, len(self._definitions))}
        asked = rnd.sample(list(by_name.values()), rnd.randint(1, len(by_name)))
        asks = [self._one(definition) for definition in asked]
        place = self._place(asked)
        caller = rnd.choices(list(Caller), [7, 2, 1])[0]
        states = [State(self._tats.get(d.keys[0]), self._lines.get(d.keys[1], State()).line) for d in asked]
        patience_us = rnd.choice([None, None, None, 0, rnd.randrange(10**7)])
        verdict, after = acquire(asks, states, self._now_us, caller=caller, place=place, patience_us=patience_us)
        written: dict[str, int] = {}
        for i, definition in enumerate(asked):
            bucket, line = definition.keys
            tat_us, kept = after[i].tat_us, after[i].line
            if tat_us is not None and tat_us != states[i].tat_us:
                self._tats[bucket] = tat_us
                written[bucket] = _expiry_ms(tat_us, self._now_us)
            if kept is None:
                self._lines.pop(line, None)
            elif kept != states[i].line:
                self._lines[line] = after[i]
                written[line] = _expiry_ms(max(kept.end_us, kept.guest_us), self._now_us)
        if not verdict.allowed and caller is Caller.JOB:
            self._tickets.append((asked[verdict.claim], verdict.slot_us))
            del self._tickets[:-40]
        keys = [key for definition in asked for key in definition.keys]
        stored = [self._stored(key) for key in keys]
        return Step(self._now_us, keys, asks, caller, place, patience_us, verdict, stored, written)

    def _one(self, definition: Definition) -> Ask:
        rnd, burst = self._rnd, definition.bucket.burst
        cost = rnd.choices([1, 0, burst, rnd.randint(0, burst)], [12, 1, 2, 2])[0]
        charge = definition.bucket.charge(cost)
        return Ask(charge, spacing_us(charge, rnd.choice([0, 50_000, 50_000, 2_000_000])))

    def _place(self, asked: Sequence[Definition]) -> Place | None:
        rnd, kind = self._rnd, self._rnd.random()
        known = [(i, slot) for i, d in enumerate(asked) for ticket, slot in self._tickets if ticket == d]
        if kind < 0.35:
            return None
        if kind < 0.9 and known:
            return Place(*rnd.choice(known))
        claim = rnd.randrange(len(asked))
        forged = rnd.choice([0, 1, 2**53 - 1, self._now_us, self._now_us + rnd.choice([-1, 1]) * rnd.randrange(10**9)])
        line = self._lines.get(asked[claim].keys[1], State()).line
        return Place(claim, rnd.choice([forged, line.end_us + rnd.choice([-1, 0, 1]) if line else forged]))

    def _stored(self, key: str) -> bytes | None:
        if key in self._tats:
            return str(self._tats[key]).encode()
        line = self._lines.get(key, State()).line
        return None if line is None else f"{line.tail_us} {line.late_us} {line.guest_us}".encode()


def _expiry_ms(last_us: int, now_us: int) -> int:
    return -((now_us - last_us - GRACE_US) // 1000)
