"""Lines of jobs, told step by step: the scripts and the reference keep and pass them alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from parity.histories import (
    NOW_US,
    REASONS,
    Reference,
    Rule,
    Step,
    rule,
)
from parity.replay import Shas, check
from support.claims import claim_of
from support.ids import told
from throttlekit import FixedWindow, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.absence import MOST_BATCH
from throttlekit._core.limit.base import Limit
from throttlekit._core.line import EMPTY, FURTHEST_US, GRACE_US, UNIT, Place
from throttlekit._core.verdict import Caller
from throttlekit.stores import Correction, StoreClaim


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket("x", "7/minute", burst=7),
        TokenBucket("x", "7/minute", burst=1),
        FixedWindow("x", "7/minute"),
        SlidingWindow("x", "7/minute"),
        SlidingLog("x", "7/minute"),
    ],
    ids=told,
)
@pytest.mark.parametrize("costs", [[1], [1, 3, 2]], ids=["ones", "mixed"])
def test_long_line_is_set_aside_alike(client: Any, limit: Limit, costs: list[int]) -> None:
    """A line of two hundred jobs, most of which never come, is told, set aside and passed alike at each microsecond."""
    kept, reference, rnd = rule(limit), Reference(), random.Random(7)
    asks = [claim_of(kept.bind(cost), cost, step=cost * UNIT) for cost in costs if cost <= limit.capacity]
    steps, waiting = list[Step](), list[tuple[int, StoreClaim, Sequence[Place | None]]]()
    for number in range(200):
        ask = asks[number % len(asks)]
        steps.append(reference.ask(NOW_US, [(kept, ask)], Caller.JOB))
        if reference.places and number % 9 == 0:
            waiting.append((NOW_US, ask, reference.places))
    now_us = NOW_US
    for _ in range(300):
        now_us += rnd.choice([GRACE_US // 2, GRACE_US, 500_000, 9_000_000])
        at, ask, places = waiting.pop(rnd.randrange(min(3, len(waiting)))) if waiting else (now_us, asks[0], ())
        steps.append(reference.ask(now_us, [(kept, ask)], Caller.JOB, places))
        if reference.places:
            waiting.append((at, ask, reference.places))
    assert reference.seen["set aside"] > 5
    assert reference.seen["allowed"] > 5
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize(("amount", "days"), [(333_333, 7), (999_983, 365)])
@pytest.mark.parametrize("algorithm", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_line_of_more_units_than_a_product_holds_exactly_is_told_alike(
    client: Any, algorithm: Callable[..., Limit], amount: int, days: int
) -> None:
    """Some million units of a long period: what stands before a job, times the period, is more than 2**53."""
    if algorithm is FixedWindow:
        days = 7
    amount = min(amount, 100_000) if algorithm is SlidingLog else amount
    limit = algorithm("x", f"{amount}/{days}d", **({"burst": amount} if algorithm is TokenBucket else {}))
    kept, reference, rnd = rule(limit), Reference(), random.Random(7)
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(limit.amount), limit.amount))], Caller.JOB)]
    for number in range(300):
        cost = 1 if number % 3 else rnd.randint(1, limit.amount)
        caller = rnd.choice([Caller.JOB, Caller.JOB, Caller.GUEST])
        steps.append(reference.ask(NOW_US + number, [(kept, claim_of(kept.bind(cost), cost))], caller))
    check(client, steps, Shas(client))
    client.flushdb()


def test_line_behind_a_debt_is_told_alike_where_no_double_holds_its_time(client: Any) -> None:
    """Some hundred jobs of one unit: so many periods of an odd number of microseconds are more than 2**53."""
    limit = SlidingWindow("x", (7, timedelta(days=365, microseconds=1)))
    kept, reference = rule(limit), Reference()
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(limit.capacity), limit.capacity))], Caller.JOB)]
    steps.append(reference.settle(NOW_US, [Correction(kept.bucket, kept.bind(1), NOW_US, 10)]))
    steps += [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB) for _ in range(500)]
    check(client, steps, Shas(client))
    client.flushdb()


def test_line_of_a_great_rate_is_told_alike_where_no_double_holds_its_time(client: Any) -> None:
    """The time of 301 units, as a fraction, is just above a whole microsecond, and in doubles that microsecond."""
    over_us, amount = 31_000_000_001_701, 291_593_750_016
    assert 301 * over_us % amount == 1
    assert int(301.0 * over_us) < 301 * over_us
    limit = TokenBucket("x", (amount, timedelta(microseconds=over_us)), burst=1)
    kept, reference = rule(limit), Reference()
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB) for _ in range(305)]
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize(("burst", "grace_us"), [(7, GRACE_US), (300, 4 * GRACE_US)], ids=["units", "batches"])
def test_dead_line_is_set_aside_alike(client: Any, burst: int, grace_us: int) -> None:
    """Where no job comes back, more are set aside each time, up to a bound: as many units as lie there, or a batch."""
    kept, reference = rule(TokenBucket("x", f"{burst}/minute", burst=burst)), Reference()
    asked, now_us = [(kept, claim_of(kept.bind(1)))], NOW_US
    steps = [reference.ask(now_us, [(kept, claim_of(kept.bind(burst), burst))], Caller.JOB)]
    steps += [reference.ask(now_us, asked, Caller.JOB, grace_us=grace_us) for _ in range(1500)]
    now_us += 60_000_000
    while (line := reference.line(kept)) and len(line.jobs) > 10:
        now_us += grace_us
        steps.append(reference.ask(now_us, asked, Caller.JOB, max_wait_us=0, grace_us=grace_us))
    assert len(steps) < 1600
    check(client, steps, Shas(client))
    client.flushdb()


def test_no_job_is_told_an_instant_beyond_a_hundred_years(client: Any) -> None:
    """After a change to a far slower rate, what waits before a job would take longer than any number counts."""
    fast = rule(TokenBucket("x", "2000/s", burst=2000))
    slow, reference = Rule(TokenBucket("x", "1/d"), fast.zone, fast.bucket), Reference()
    steps = [reference.ask(NOW_US, [(fast, claim_of(fast.bind(2000), 2000))], Caller.JOB) for _ in range(50)]
    steps.append(reference.ask(NOW_US, [(slow, claim_of(slow.bind(1)))], Caller.JOB))
    assert isinstance(steps[-1].reply, list)
    assert steps[-1].reply[4] == NOW_US + FURTHEST_US
    check(client, steps, Shas(client))
    client.flushdb()


def test_no_job_of_a_long_line_is_told_an_instant_beyond_a_hundred_years(client: Any) -> None:
    """Also where no rate has changed: of a unit a year, all jobs after the hundredth are told the same instant."""
    kept, reference = rule(TokenBucket("x", "1/366d", burst=1)), Reference()
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB) for _ in range(103)]
    told_us = [step.reply[4] for step in steps if isinstance(step.reply, list)]
    assert [at_us == NOW_US + FURTHEST_US for at_us in told_us] == [False] * 100 + [True] * 3
    check(client, steps, Shas(client))
    client.flushdb()


def test_due_job_far_behind_passes_where_units_lie_alike(client: Any) -> None:
    """Where a unit that no job takes is lost, a job that is due takes it, and those before it have lost it."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    asked, places, steps = [(kept, claim_of(kept.bind(1), tenant="a"))], list[Sequence[Place | None]](), list[Step]()
    for _ in range(13):
        steps.append(reference.ask(NOW_US, asked, Caller.JOB, grace_us=60_000_000))
        places.append(reference.places)
    last = places[12][0]
    assert last is not None
    for number, now_us in (12, last.due_us), (10, last.due_us), (11, NOW_US + 61_000_000):
        if number == 11:  # a job that joins looks what lies there
            steps.append(reference.ask(now_us, asked, Caller.JOB, grace_us=60_000_000))
            line = reference.line(kept)
            assert line is not None
            assert line.low == 1
        steps.append(reference.ask(now_us, asked, Caller.JOB, places[number], grace_us=60_000_000))
    line = reference.line(kept)
    assert line is not None
    assert (line.low, len(line.jobs), reference.seen["allowed"]) == (0, 11, 3)
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize("grace_us", [GRACE_US, 60_000_000], ids=["looks", "does not look"])
def test_jobs_that_have_not_come_leave_the_line_alike_as_their_units_are_lost(client: Any, grace_us: int) -> None:
    """Those in front of one that is due, up to a number. Of the costs of those that were set aside, none is left."""
    kept, reference = rule(TokenBucket("x", "10/s", burst=1)), Reference()
    steps, places, waiting = list[Step](), list[Sequence[Place | None]](), MOST_BATCH + 20
    asked = [(kept, claim_of(kept.bind(1)))]
    for _ in range(waiting + 1):
        steps.append(reference.ask(NOW_US, asked, Caller.JOB, grace_us=grace_us))
        places.append(reference.places)
    last = places[-1][0]
    assert last is not None
    left = []
    for number, after_us in (-1, 0), (-2, 149_999), (-3, 299_999), (0, 400_000), (1, 450_000):
        steps.append(reference.ask(last.due_us + after_us, asked, Caller.JOB, places[number], grace_us=grace_us))
        line = reference.line(kept)
        left.append(len(line.jobs) if line else 0)
    assert left == [19, 18, 0, 0, 1]
    check(client, steps, Shas(client))
    client.flushdb()


def test_the_budget_grows_alike_while_no_job_comes_back(client: Any) -> None:
    """Up to its most: two units lie there, and 450 that wait are gone."""
    kept, reference = rule(TokenBucket("x", "1000/s", burst=2)), Reference()
    asked = [(kept, claim_of(kept.bind(1)))]
    steps, left = [reference.ask(NOW_US, asked, Caller.JOB) for _ in range(452)], [450]
    for looks in range(1, 15):
        steps.append(reference.ask(NOW_US + 500_000 + looks * GRACE_US, asked, Caller.JOB, max_wait_us=0))
        line = reference.line(kept)
        left.append(len(line.jobs) if line else 0)
    aside = [before - after for before, after in pairwise(left)]
    assert aside == [0, 2, 2, 4, 6, 8, 12, 18, 28, 42, 62, 94, 128, 44]
    check(client, steps, Shas(client))
    client.flushdb()


def test_jobs_that_have_not_come_stay_where_units_lie_for_all_of_them(client: Any) -> None:
    """Also where the bucket has been full meanwhile: the job that passes takes none of their units."""
    kept, reference = rule(TokenBucket("x", "20/s", burst=10)), Reference()
    dear, asked = [(kept, claim_of(kept.bind(10), 10))], [(kept, claim_of(kept.bind(2), 2))]
    steps = [reference.ask(NOW_US, dear, Caller.JOB)]
    steps += [reference.ask(NOW_US, asked, Caller.JOB, grace_us=3 * GRACE_US) for _ in range(3)]
    last = reference.places
    steps.append(reference.ask(NOW_US + 450_000, dear, Caller.JOB, max_wait_us=0))  # looks at what lies there
    steps.append(reference.ask(NOW_US + 600_000, asked, Caller.JOB, last))
    line = reference.line(kept)
    assert line is not None
    assert (len(line.jobs), reference.seen["allowed"]) == (2, 2)
    check(client, steps, Shas(client))
    client.flushdb()


def test_due_job_of_a_loose_line_leaves_those_before_it_their_units_alike(client: Any) -> None:
    """Where no unit is lost, a job that is due waits for those before it: here one that ran before took a unit."""
    kept, reference = rule(TokenBucket("x", "20/s", burst=10)), Reference()
    asked = [(kept, claim_of(kept.bind(1)))]
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(10), 10))], Caller.JOB)]
    steps += [reference.ask(NOW_US, asked, Caller.JOB) for _ in range(3)]
    last = reference.places
    for after_us, caller in (100_000, Caller.JOB), (110_000, Caller.AGAIN):
        steps.append(reference.ask(NOW_US + after_us, asked, caller, max_wait_us=0))
    steps.append(reference.ask(NOW_US + 155_000, asked, Caller.JOB, last))
    assert isinstance(steps[-1].reply, list)
    assert (REASONS[steps[-1].reply[0]], reference.seen["allowed"]) == ("in line", 2)
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize(("after_us", "left"), [(499_999, 4), (500_000, 0)])
def test_jobs_that_were_told_at_a_slower_rate_stay_for_a_while(client: Any, after_us: int, left: int) -> None:
    """Where the rate has just risen, those in front of a job that is due may have been told to come later."""
    slow, reference = rule(TokenBucket("x", "10/s", burst=1)), Reference()
    fast = Rule(TokenBucket("x", "20/s", burst=1), slow.zone, slow.bucket)
    steps = [reference.ask(NOW_US, [(slow, claim_of(slow.bind(1)))], Caller.JOB) for _ in range(6)]
    last, asked = reference.places, [(fast, claim_of(fast.bind(1)))]
    steps.append(reference.ask(NOW_US + 100_000, asked, Caller.JOB, max_wait_us=0))
    grace_us = 60_000_000  # none is set aside otherwise
    steps.append(reference.ask(NOW_US + 100_000 + after_us, asked, Caller.JOB, last, grace_us=grace_us))
    line = reference.line(slow)
    assert (len(line.jobs) if line else 0, reference.seen["allowed"]) == (left, 2)
    check(client, steps, Shas(client))
    client.flushdb()


def test_job_that_comes_back_as_it_is_due_is_not_early(client: Any) -> None:
    """If its unit has gone to a job that turned out dearer, the reason is that the limit is exhausted."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=5)), Reference()
    dear, asked = claim_of(kept.bind(5), 5), [(kept, claim_of(kept.bind(1)))]
    steps = [reference.ask(NOW_US, [(kept, dear)], Caller.JOB), reference.ask(NOW_US, asked, Caller.JOB)]
    now_us = NOW_US + 1_000_000
    steps.append(reference.settle(now_us, [Correction(kept.bucket, kept.bind(1), NOW_US, 1_000_000)]))
    for by_us in (0, 999_999):  # the second is early: it comes before the instant that it was told this time
        steps.append(reference.ask(now_us + by_us, asked, Caller.JOB, reference.places))
    reasons = [step.reply[0] for step in steps if isinstance(step.reply, list)]
    assert reasons == [REASONS.index(reason) for reason in ("allowed", "exhausted", "exhausted", "early")]
    check(client, steps, Shas(client))
    client.flushdb()


def test_claim_without_a_size_takes_no_place_in_a_line(client: Any) -> None:
    """It only looks, also where jobs wait, and whatever its cost is said to be."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    asked = [(kept, claim_of(kept.bind(1)))]
    steps = [reference.ask(NOW_US, asked, Caller.JOB) for _ in range(2)]
    for places in (), reference.places:
        steps.append(reference.ask(NOW_US, [(kept, claim_of(kept.bind(0)))], Caller.JOB, places))
    assert reference.seen["allowed"] == 3
    check(client, steps, Shas(client))
    client.flushdb()


def test_job_deep_in_a_line_of_many_costs_passes_alike(client: Any) -> None:
    """Beyond the first entries of a line, what is before a job is an estimate, and it passes by none."""
    kept, reference, rnd = rule(TokenBucket("x", "6000/minute", burst=200)), Reference(), random.Random(7)
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(200), 200))], Caller.JOB)]
    waiting: list[tuple[StoreClaim, Sequence[Place | None]]] = []
    for number in range(100):
        ask = claim_of(kept.bind(1 + number % 3), 1 + number % 3)
        steps.append(reference.ask(NOW_US, [(kept, ask)], Caller.JOB))
        waiting.append((ask, reference.places))
    for number in range(400):
        ask, places = waiting.pop(rnd.randrange(len(waiting)))
        now_us = NOW_US + 1_000_000 + 5_000 * number
        steps.append(reference.ask(now_us, [(kept, ask)], Caller.JOB, places, 0 if number % 50 == 7 else None))
        if reference.places:
            waiting.append((ask, reference.places))
        if not waiting:
            break
    assert reference.seen["guesses"] > 100
    assert reference.seen["allowed"] > 50
    check(client, steps, Shas(client))
    client.flushdb()


def test_job_deep_in_a_line_leaves_what_those_before_it_cost_at_least(client: Any) -> None:
    """Of the units that lie idle, those stay for the jobs before it: of each beyond the first 32, one."""
    kept, reference = rule(TokenBucket("x", "100/s", burst=200)), Reference()
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(200), 200))], Caller.JOB)]
    for number in range(42):
        asked = [(kept, claim_of(kept.bind(1 + number % 3), 1 + number % 3))]
        steps.append(reference.ask(NOW_US, asked, Caller.JOB, grace_us=5 * GRACE_US))
    last = reference.places
    steps.append(reference.ask(NOW_US + 730_000, asked, Caller.JOB, max_wait_us=0))  # looks: 73 units lie there
    steps.append(reference.ask(NOW_US + 970_000, asked, Caller.JOB, last))
    line = reference.line(kept)
    assert line is not None
    assert (line.low, reference.seen["allowed"]) == (72, 2)
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize("passed", [1, 16, 17])
@pytest.mark.parametrize("late_us", [0, 1])
def test_job_that_left_the_line_comes_in_alike(client: Any, passed: int, late_us: int) -> None:
    """Up to 16 costs behind, and the grace time late, a tenant's job that is not in the line comes in at its place."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=100)), Reference()
    asked = [(kept, claim_of(kept.bind(1), tenant="a"))]
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(100), 100))], Caller.JOB)]
    places: list[Sequence[Place | None]] = []
    for _ in range(20):
        steps.append(reference.ask(NOW_US, asked, Caller.JOB, grace_us=60_000_000))
        places.append(reference.places)
    own = places[0][0]
    assert own is not None
    steps.append(reference.leave(NOW_US, asked, [own]))
    for number in range(1, passed + 1):
        steps.append(reference.ask(NOW_US + number * 1_000_000, asked, Caller.JOB, places[number], None, 60_000_000))
    assert reference.seen["allowed"] == 1 + passed
    now_us = own.due_us + (60_000_000 + late_us if passed == 1 else 30_000_000)
    steps.append(reference.settle(now_us, [Correction(kept.bucket, kept.bind(1), now_us, 100_000_000)]))
    steps.append(reference.ask(now_us, asked, Caller.JOB, places[0], None, 60_000_000))
    again = reference.places[0]
    assert again is not None
    assert (again.start == own.start) == (passed == 16 or (passed == 1 and late_us == 0))
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize(("behind", "keeps"), [(16, True), (17, False)])
def test_job_that_was_set_aside_comes_in_alike_where_its_line_has_come_no_further(
    client: Any, behind: int, keeps: bool
) -> None:
    """
    A job of another tenant that passes before all who wait takes v far ahead: what counts is where the first of those
    starts. More than 16 costs before that, the job has missed its turn, and is placed where the line is.
    """
    kept, reference = rule(TokenBucket("x", "1/s", burst=100)), Reference()
    own = [(kept, claim_of(kept.bind(1), tenant="a"))]
    far = [(kept, claim_of(kept.bind(1), tenant="b", step=1000 * UNIT))]
    steps = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(100), 100))], Caller.JOB)]
    places: list[Sequence[Place | None]] = []
    for asked in *(own for _ in range(20)), far, far:
        steps.append(reference.ask(NOW_US, asked, Caller.JOB, grace_us=60_000_000))
        places.append(reference.places)
    now_us = NOW_US + 25_000_000  # there are units for all of them
    steps += [reference.leave(now_us, own, places[0]), reference.leave(now_us, far, places[20])]
    steps.append(reference.ask(now_us, far, Caller.JOB, places[21], None, 60_000_000))
    for number in range(1, behind):
        steps.append(reference.leave(now_us, own, places[number]))
    line, place = reference.line(kept), places[0][0]
    assert line is not None
    assert place is not None
    assert (line.v - place.start, line.jobs[0].start - place.start) == (1000 * UNIT, behind * UNIT)
    steps.append(reference.settle(now_us, [Correction(kept.bucket, kept.bind(1), now_us, 100_000_000)]))
    steps.append(reference.ask(now_us, own, Caller.JOB, places[0], None, 60_000_000))
    again = reference.places[0]
    assert again is not None
    assert again.start - place.start == (0 if keeps else behind * UNIT)
    check(client, steps, Shas(client))
    client.flushdb()


def test_place_among_many_of_one_start_is_found_alike(client: Any) -> None:
    """Tenants that begin at once all start at one tag; one that left comes in before those that came after it."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    asks = [claim_of(kept.bind(1), 1 + number % 2, tenant=f"t{number}") for number in range(40)]
    steps, places = [reference.ask(NOW_US, [(kept, claim_of(kept.bind(1)))], Caller.JOB)], list[Place | None]()
    for ask in asks:
        steps.append(reference.ask(NOW_US, [(kept, ask)], Caller.JOB))
        places.append(reference.places[0])
    assert len({place.start for place in places if place}) == 1
    gone = [0, 1, 7, 8, 20, 38, 39]
    for number in gone:
        steps.append(reference.leave(NOW_US, [(kept, asks[number])], [places[number]]))
    # Those that left, one of another cost than its entry's, and one whose entry is still there.
    for number, cost in [*((number, 1) for number in gone), (21, 3), (22, 1)]:
        ask = claim_of(kept.bind(1), cost, tenant=f"t{number}")
        for caller in (Caller.PEEK, Caller.JOB):
            steps.append(reference.ask(NOW_US, [(kept, ask)], caller, [places[number]]))
    line = reference.line(kept)
    assert line is not None
    assert [entry.number for entry in line.jobs] == sorted(place.number for place in places if place)
    check(client, steps, Shas(client))
    client.flushdb()


def test_faster_rate_in_a_line_gives_its_jobs_no_more_time_alike(client: Any) -> None:
    """A job at a faster rate than those that wait marks the line as of that rate; one at a slower rate does not."""
    slow, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    fast = Rule(TokenBucket("x", "2/s", burst=1), slow.zone, slow.bucket)
    steps = [
        reference.ask(NOW_US + number, [(kept, claim_of(kept.bind(1)))], Caller.JOB)
        for number, kept in enumerate([slow, slow, slow, fast, fast, slow])
    ]
    line = reference.line(slow)
    assert line is not None
    assert (len(line.jobs), line.mark) == (5, fast.bind(1).mark)
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize("before_us", [-2_300_000, -1_000_000, 1_000_000])
def test_tags_at_their_end_begin_a_line_anew(client: Any, before_us: int) -> None:
    """Once a job has passed whose tag is the last, no place is good any more; also after a clock that steps back."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    far, one = claim_of(kept.bind(1), step=2**52 - EMPTY.v), claim_of(kept.bind(1), step=UNIT)
    steps = [reference.ask(NOW_US, [(kept, claim)], Caller.JOB) for claim in (one, far)]
    places: list[Sequence[Place | None]] = [reference.places]
    for _ in range(2):
        steps.append(reference.ask(NOW_US, [(kept, one)], Caller.JOB))
        places.append(reference.places)
    for number in (0, 1):
        steps.append(reference.ask(NOW_US + 1_100_000 * (number + 1), [(kept, one)], Caller.JOB, places[number]))
    assert reference.line(kept).v == 2**52  # type: ignore[union-attr]
    steps.append(reference.ask(NOW_US - before_us, [(kept, one)], Caller.JOB, places[2]))
    line = reference.line(kept)
    assert line is not None
    assert (line.epoch > NOW_US, line.number, len(line.jobs)) == (True, 1, 1)
    check(client, steps, Shas(client))
    client.flushdb()


def test_guest_begins_a_line_anew_whose_tags_are_at_their_end(client: Any) -> None:
    """As a job does, where no job waits: the next place that the line gives is its first."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=1)), Reference()
    far, one = claim_of(kept.bind(1), step=2**52 - EMPTY.v), claim_of(kept.bind(1), step=UNIT)
    steps, places = [reference.ask(NOW_US, [(kept, one)], Caller.JOB)], list[Sequence[Place | None]]()
    for claim in (far, one):
        steps.append(reference.ask(NOW_US, [(kept, claim)], Caller.JOB))
        places.append(reference.places)
    for number in (0, 1):
        steps.append(reference.ask(NOW_US + 1_100_000 * (number + 1), [(kept, one)], Caller.JOB, places[number]))
    line = reference.line(kept)
    assert line is not None
    assert (line.v, line.number, len(line.jobs)) == (2**52, 2, 0)
    steps += [reference.ask(NOW_US + 2_200_001, [(kept, one)], Caller.GUEST) for _ in range(2)]
    line = reference.line(kept)
    assert line is not None
    assert (line.epoch > NOW_US, line.v, line.number) == (True, EMPTY.v, 0)
    check(client, steps, Shas(client))
    client.flushdb()


def test_guest_stands_behind_no_guests_that_are_further_off_than_a_minute(client: Any) -> None:
    """After some of a great cost, one of a small cost is told its own instant."""
    kept, reference = rule(TokenBucket("x", "1/s", burst=30)), Reference()
    dear, one = claim_of(kept.bind(30)), claim_of(kept.bind(1))
    steps = [reference.ask(NOW_US, [(kept, dear)], Caller.GUEST) for _ in range(5)]
    line = reference.line(kept)
    assert line is not None
    assert line.guest_us == NOW_US + 90_000_000
    steps += [reference.ask(NOW_US, [(kept, one)], Caller.GUEST) for _ in range(2)]
    line = reference.line(kept)
    assert line is not None
    assert line.guest_us == NOW_US + 3_000_000
    check(client, steps, Shas(client))
    client.flushdb()


_GUESTED = {
    "one": [TokenBucket("x", "1/s", burst=2)],
    "two": [TokenBucket("x", "1/s", burst=2), TokenBucket("y", "5/s", burst=3)],
    "two that tie": [TokenBucket("x", "1/s", burst=1), TokenBucket("y", "1/s", burst=1)],
    "windows": [FixedWindow("x", "2/s"), SlidingWindow("y", "2/minute")],
}


@pytest.mark.parametrize("limits", _GUESTED.values(), ids=_GUESTED)
@pytest.mark.parametrize("max_queue", [None, 0, 1])
def test_guest_is_denied_alike(client: Any, limits: Sequence[Limit], max_queue: int | None) -> None:
    """Whatever it waits for, with a place or without one, and by a clock that has stepped back a little."""
    kept, reference = [rule(limit) for limit in limits], Reference()
    asked = [(each, claim_of(each.bind(1), max_queue=max_queue)) for each in kept]
    steps = [reference.ask(NOW_US, asked, Caller.GUEST) for _ in range(4)]
    steps.append(reference.ask(NOW_US, [(each, claim_of(each.bind(1))) for each in kept], Caller.JOB))
    places = reference.places
    steps.append(reference.leave(NOW_US, asked, places))
    for back_us in 0, 1, 500_000, 999_999, 1_000_001:
        steps.append(reference.ask(NOW_US - back_us, asked, Caller.GUEST))
    for carried in (), places:
        steps.append(reference.ask(NOW_US, asked, Caller.GUEST, carried))
        assert isinstance(steps[-1].reply, list)
        for less_us in 1, 0, -1:
            wait_us = steps[-1].reply[4] - NOW_US - less_us
            steps.append(reference.ask(NOW_US, asked, Caller.GUEST, carried, max_wait_us=wait_us))
    check(client, steps, Shas(client))
    client.flushdb()
