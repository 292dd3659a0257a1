"""The scripts and the reference are the same function: every answer, every stored byte, every time to live."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from throttlekit._core.line import GRACE_US, UNIT, Place

from parity.histories import (
    ALGORITHMS,
    NOW_US,
    REASONS,
    History,
    Reference,
    Rule,
    Step,
    rule,
)
from parity.replay import NARROW, STRICT, Shas, check
from support.claims import claim_of
from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.answer import Caller
from throttlekit._core.time_zone import Zone
from throttlekit.stores import Correction, Lease, StoreClaim

SLOWED = ("fall: True", "heard: True", "heard: False", "slowed", "paced")
LONG_RUN = int(os.environ.get("THROTTLEKIT_TEST_HISTORIES", "20000"))
HISTORY = 250


OF_THE_LINE = [
    "set aside",
    "larger budget",
    "back",
    "in the line",
    "left the line",
    "tenants",
    "costs",
    "left",
]


OF_WORKFLOWS = ["of a workflow that holds", "past a line", "kept", "done"]
OF_TWO_RATES = ["at another rate", "looked at from another rate", "settled at another rate"]


@pytest.mark.parametrize(
    ("algorithms", "must_see"),
    [
        (["token-bucket"], ["in debt", "ahead", *OF_TWO_RATES]),
        (["leaky-bucket"], ["in debt", "ahead", *OF_TWO_RATES]),
        (["fixed-window"], ["in debt", "ahead"]),
        (["sliding-window"], ["in debt", "ahead"]),
        (["sliding-log"], ["ring wrapped", "ahead"]),
        (["concurrency"], ["ahead", "release: True", "release: False", "renew: True", "renew: False", *OF_WORKFLOWS]),
        (["adaptive-concurrency"], ["ahead", "release: True", "release: False", "renew: True", "renew: False"]),
        (ALGORITHMS, [*OF_THE_LINE, "in debt", "ahead", "ring wrapped", "several", "release: True", "renew: True"]),
    ],
    ids=[*ALGORITHMS, "mixtures"],
)
def test_long_random_histories(client: Any, algorithms: Sequence[str], must_see: Sequence[str]) -> None:
    """Over twenty thousand random steps, the scripts answer and store exactly what the reference does."""
    shas, seen, count = Shas(client), Counter[str](), 0
    slots = algorithms[0].endswith("concurrency")
    settled = ["settled down"] if slots else ["settled up", "settled down"]
    slowed = ("drop: False",) if algorithms == ["adaptive-concurrency"] else SLOWED
    seldom = ["not settled", "resumed", "stale", "stale settled", "stale looked at"]
    seldom += ["pause begun anew", "a 429 within a pause"]
    least = dict.fromkeys([*REASONS, *settled, *slowed, "pauses", *must_see], LONG_RUN // 1000)
    least |= dict.fromkeys(seldom, LONG_RUN // 5000) | ({} if slots else {"fall: False": 0})
    # What is rarest is seen some dozen times: where chance brings less, the histories go on.
    while count < LONG_RUN or (count < 5 * LONG_RUN and any(seen[what] <= few for what, few in least.items())):
        seed = random.getrandbits(64)
        history = History(random.Random(seed), algorithms)
        steps = list(history.steps(HISTORY))
        if history.is_reborn:
            continue
        client.flushdb()
        try:
            check(client, steps, shas)
        except AssertionError as error:
            raise AssertionError(f"history {seed}, {error}") from None
        count += sum(step.question is not None for step in steps)
        seen += history.seen
    client.flushdb()
    assert not {what: seen[what] for what, few in least.items() if seen[what] <= few}


def test_histories_of_workflows(client: Any) -> None:
    """Where nearly all slots are held by workflows, whose jobs pass those that wait and those that do not come."""
    shas, seen = Shas(client), Counter[str]()
    for seed in range(90):
        history = History(random.Random(seed), ["concurrency"], workflows=0.9)
        steps = list(history.steps(HISTORY))
        client.flushdb()
        check(client, steps, shas)
        seen += history.seen
    client.flushdb()
    assert min(seen[what] for what in OF_WORKFLOWS) > 200, {what: seen[what] for what in OF_WORKFLOWS}


@pytest.mark.parametrize("algorithms", [ALGORITHMS, ["sliding-log"]], ids=["mixtures", "rings"])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(1, 60))
def test_every_number_is_written_in_full(client: Any, algorithms: Sequence[str], seed: int, length: int) -> None:
    """
    Every argument that a script hands to the server is text, every number in it is plain digits, and every time to
    live is right to the millisecond.
    """
    client.flushdb()
    check(client, list(History(random.Random(seed), algorithms).steps(length)), Shas(client, STRICT))
    client.flushdb()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64 - 1), length=st.integers(1, 60))
def test_servers_of_32_bits_write_the_same_numbers(client: Any, seed: int, length: int) -> None:
    """Where a long of C has 32 bits, as on old boards and on Windows, no number is cut."""
    client.flushdb()
    check(client, list(History(random.Random(seed), ALGORITHMS).steps(length)), Shas(client, STRICT + NARROW))
    client.flushdb()


_HOUR_US = 3_600_000_000
_MIDNIGHT_US = NOW_US // (24 * _HOUR_US) * 24 * _HOUR_US
_AUTUMN_US = _MIDNIGHT_US - 100 * 24 * _HOUR_US
_RULES = [
    rule(limit, zone, number)
    for number, (limit, zone) in enumerate(
        [
            (TokenBucket("x", "10/s", burst=5), Zone()),
            (TokenBucket("x", "300000/s", burst=9), Zone()),
            (TokenBucket("x", "3/100000s", burst=3), Zone()),
            (LeakyBucket("x", "7/s", queue=2), Zone()),
            (FixedWindow("x", "3/s"), Zone()),
            # Midnight is skipped, comes twice, and a whole day is skipped.
            (FixedWindow("x", "2/day"), Zone(0, ((_MIDNIGHT_US, _HOUR_US),))),
            (FixedWindow("x", "2/day"), Zone(0, ((_MIDNIGHT_US + _HOUR_US // 2, -_HOUR_US),))),
            (FixedWindow("x", "2/day"), Zone(-_HOUR_US, ((_MIDNIGHT_US + _HOUR_US, 23 * _HOUR_US),))),
            (FixedWindow("x", "4/hour"), Zone(0, ((NOW_US, _HOUR_US // 2), (NOW_US + 30 * _HOUR_US, 0)))),
            (FixedWindow("x", "4/month"), FixedWindow("x", "4/month", tz="Europe/Berlin").bind(1, NOW_US).zone),
            (FixedWindow("x", "3/month"), FixedWindow("x", "3/month", starts=15).bind(1, NOW_US).zone),
            # Longer than 31 days: Berlin's clocks go back between the two fifteenths.
            (
                FixedWindow("x", "3/month"),
                FixedWindow("x", "3/month", tz="Europe/Berlin", starts=15).bind(1, _AUTUMN_US).zone,
            ),
            (SlidingWindow("x", "3/s"), Zone()),
            (SlidingWindow("x", "7/10s"), Zone()),
            (SlidingWindow("x", f"{10**12 - 1}/366d"), Zone()),
            (SlidingLog("x", "1/s"), Zone()),
            (SlidingLog("x", "3/s"), Zone()),
            (SlidingLog("x", "5/day"), Zone()),
            (SlidingLog("x", "257/s"), Zone()),
            (Concurrency("x", 2, lease=1), Zone()),
            (Concurrency("x", 1), Zone()),
        ]
    )
]


class _Teller:
    """Draws a story, one step after the other."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._rules = draw(st.lists(st.sampled_from(_RULES), min_size=1, max_size=3, unique=True))
        self._reference = Reference()
        self._now_us = NOW_US
        self._denied: list[tuple[list[tuple[Rule, StoreClaim]], Sequence[Place | None]]] = []
        self._instants = [NOW_US, *(at + by for rule in self._rules for at, _ in rule.zone.changes for by in (-1, 0))]

    def tell(self) -> list[Step]:
        steps = [self._step() for _ in range(self._draw(st.integers(1, 12)))]
        assume(not self._reference.is_reborn)
        return steps

    def _step(self) -> Step:
        moves = st.one_of(
            st.just(self._now_us),
            st.sampled_from(self._instants),
            st.integers(-6_000_000, 6_000_000).map(self._now_us.__add__),
            st.integers(-(10**12), 10**12).map(self._now_us.__add__),
        )
        self._now_us = self._draw(moves)
        return self._draw(
            st.sampled_from(
                [self._ask, self._ask, self._ask, self._ask, self._settle, self._lease, self._pause, self._leave]
            )
        )()

    def _ask(self) -> Step:
        back = self._denied and self._draw(st.booleans())
        if back:
            asked, places = self._draw(st.sampled_from(self._denied))
        else:
            asked, places = [(each, self._claim(each)) for each in self._rules], ()
        max_wait_us = self._draw(st.none() | st.none() | st.integers(0, 10**7))
        caller = self._draw(st.sampled_from(Caller))
        step = self._reference.ask(self._now_us, asked, caller, places, max_wait_us)
        assert isinstance(step.reply, list)
        self._instants += [self._now_us, step.reply[3], step.reply[4], step.reply[6], step.reply[4] + GRACE_US]
        if self._reference.places:
            self._denied.append((asked, self._reference.places))
        return step

    def _claim(self, of: Rule) -> StoreClaim:
        cost = self._draw(st.integers(0, min(9, of.limit.capacity)) | st.just(of.limit.capacity))
        tenant = self._draw(st.sampled_from(["", "", "a", "b"]))
        step = -(-min(cost, 1000) * UNIT // self._draw(st.integers(1, 3)))
        return claim_of(of.bind(cost, self._holder()), cost, of.limit.max_queue, tenant=tenant, step=step)

    def _leave(self) -> Step:
        if not self._denied:
            return self._ask()
        asked, places = self._draw(st.sampled_from(self._denied))
        known = [(each, place) for each, place in zip(asked, places, strict=True) if place is not None]
        return self._reference.leave(self._now_us, [each for each, _ in known], [place for _, place in known])

    def _holder(self) -> str:
        return f"job%3A{self._draw(st.integers(0, 3))}#0"

    def _lease(self) -> Step:
        slots = [rule for rule in self._rules if isinstance(rule.limit, Concurrency)]
        if not slots:
            return self._pause()
        granted_us = self._draw(st.sampled_from(self._instants))
        leases = [Lease(each.bucket, each.bind(1, self._holder()), granted_us) for each in slots]
        return self._reference.leased(self._now_us, self._draw(st.sampled_from(["release", "renew"])), leases)

    def _pause(self) -> Step:
        for_us = self._draw(st.none() | st.integers(0, 10**7) | st.just(7_200_000_000))
        return self._reference.pause(self._now_us, self._rules, for_us, self._draw(st.booleans()))

    def _settle(self) -> Step:
        corrections: list[Correction] = []
        for each in self._rules:
            charge = each.bind(1, self._holder())
            by = self._draw(st.sampled_from([-1, 1, 3, 10**12, 10**18]) | st.integers(-9, 9).filter(bool))
            granted_us = self._draw(st.sampled_from(self._instants))
            by = by * charge.size if isinstance(each.limit, (TokenBucket, LeakyBucket)) else by
            corrections.append(Correction(each.bucket, charge, granted_us, by))
        return self._reference.settle(self._now_us, corrections)


@st.composite
def _story(draw: st.DrawFn) -> list[Step]:
    """A short history over one to three limits that Hypothesis can shrink."""
    return _Teller(draw).tell()


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_story())
def test_short_stories(client: Any, steps: list[Step]) -> None:
    """The same, over short histories that shrink to the smallest disagreement."""
    client.flushdb()
    check(client, steps, Shas(client))
    client.flushdb()
