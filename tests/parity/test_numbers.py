"""Long periods, great amounts, changed rates and clocks: the scripts and the reference tell the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

from parity.histories import (
    ALGORITHMS,
    NOW_US,
    REASONS,
    Reference,
    Rule,
    rule,
)
from parity.replay import STRICT, Shas, check
from support.claims import claim_of
from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithms.sliding_window import Counts
from throttlekit._core.answer import Caller
from throttlekit._core.time_zone import Zone
from throttlekit.stores import Correction, Lease, MemoryStore, Request, StoreClaim
from throttlekit.stores.redis import RedisStore

_HOUR_US = 3_600_000_000
_MIDNIGHT_US = NOW_US // (24 * _HOUR_US) * 24 * _HOUR_US


def test_window_that_began_before_the_second_change_of_clocks_is_believed(client: Any) -> None:
    """Clocks that fall back over midnight: the day that had begun before goes on all the same."""
    changes = ((_MIDNIGHT_US - 100 * _HOUR_US, 0), (_MIDNIGHT_US + _HOUR_US // 2, -_HOUR_US))
    kept, reference = rule(FixedWindow("x", "2/day"), Zone(-_HOUR_US, changes)), Reference()
    asked, past_us = [(kept, claim_of(kept.bind(1)))], changes[1][0]
    steps = [reference.ask(now_us, asked, Caller.JOB) for now_us in (past_us - 1, past_us + 1, past_us + 2)]
    reasons = [step.reply[0] for step in steps if isinstance(step.reply, list)]
    assert reasons == [REASONS.index(reason) for reason in ("allowed", "allowed", "exhausted")]
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize("since_us", [0, 89_000_000, 91_000_000], ids=["at once", "almost stale", "stale"])
def test_leases_of_two_lengths_are_in_one_set(client: Any, since_us: int) -> None:
    """Defined anew with a shorter lease, a limit believes the longer ones of those who hold its slots already."""
    longer, shorter = rule(Concurrency("x", 1, lease=90)), rule(Concurrency("x", 1, lease=1))
    assert longer.bucket == shorter.bucket
    reference, now_us = Reference(), NOW_US - since_us
    asked = [(longer, "job%3A1#0"), (shorter, "job%3A2#0"), (shorter, "job%3A3#0")]
    steps = [reference.ask(NOW_US, [(asked[0][0], claim_of(longer.bind(1, asked[0][1])))], Caller.JOB)]
    for each, holder in asked[1:]:
        steps.append(reference.ask(now_us, [(each, claim_of(each.bind(1, holder)))], Caller.JOB))
    renewed = [Lease(shorter.bucket, shorter.bind(1, "job%3A1#0"), NOW_US)]
    steps.append(reference.leased(now_us, "renew", renewed))
    asks = [(shorter, claim_of(shorter.bind(1, "job%3A2#0")))]
    steps += [reference.ask(now_us - by_us, asks, Caller.JOB) for by_us in (0, 61_000_000, 140_000_000)]
    check(client, steps, Shas(client))
    client.flushdb()


def test_window_that_a_greater_rate_wrote_counts_alike(client: Any) -> None:
    """A debt at a hundred times the rate: what counts of it is exact, though one product would not be."""
    greater, week_us = rule(SlidingWindow("x", "20000000/7d")), 7 * 24 * _HOUR_US
    smaller = Rule(SlidingWindow("x", "200000/7d"), greater.zone, greater.bucket)
    reference, begin_us = Reference(), NOW_US // week_us * week_us
    steps = [reference.ask(begin_us - week_us, [(greater, claim_of(greater.bind(513_002)))], Caller.JOB)]
    for _ in range(20):
        debt = Correction(greater.bucket, greater.bind(1), begin_us, 10_000_019)
        steps.append(reference.settle(begin_us, [debt]))
        for at_us in (begin_us, begin_us + week_us // 3, begin_us + week_us + 1):
            steps.append(reference.ask(at_us, [(smaller, claim_of(smaller.bind(1)))], Caller.PEEK))
    check(client, steps, Shas(client))
    client.flushdb()


def test_correction_by_nothing_writes_no_log(client: Any) -> None:
    """What turned out neither dearer nor cheaper is not corrected."""
    kept, reference = rule(SlidingLog("x", "3/s")), Reference()
    charge = kept.bind(1)
    steps = [reference.ask(NOW_US, [(kept, claim_of(charge))], Caller.JOB)]
    steps.append(reference.settle(NOW_US, [Correction(kept.bucket, charge, NOW_US, 0)]))
    assert steps[-1].reply == 0
    check(client, steps, Shas(client))
    client.flushdb()


def test_changes_of_clocks_to_come_make_no_window_begin_earlier(client: Any) -> None:
    """A window that a wrong clock left half an hour ahead is not believed, though clocks will be set twice later on."""
    hour_us = NOW_US // _HOUR_US * _HOUR_US
    zone = Zone(0, ((NOW_US + 30 * _HOUR_US, _HOUR_US), (NOW_US + 60 * _HOUR_US, 0)))
    kept, reference = rule(FixedWindow("x", "4/hour"), zone), Reference()
    ask = (kept, claim_of(kept.bind(1)))
    steps = [reference.ask(now_us, [ask], Caller.JOB) for now_us in (hour_us, hour_us - _HOUR_US // 2)]
    assert isinstance(steps[-1].reply, list)
    assert steps[-1].reply[0] == REASONS.index("exhausted")
    check(client, steps, Shas(client))
    client.flushdb()


@pytest.mark.parametrize("rate", ["1/100000s", "9/366d", f"{10**12 - 1}/366d", f"{10**12 - 1}/day"])
@pytest.mark.parametrize("algorithm", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_long_periods_are_written_in_full(client: Any, algorithm: type[TokenBucket], rate: str) -> None:
    """Periods of 100 000 seconds to a year, huge amounts and long lines are stored to the microsecond, in digits."""
    if algorithm is FixedWindow:
        rate = rate.split("/")[0] + "/day"
    if algorithm is SlidingLog:
        rate = "9/" + rate.split("/")[1]
    options = {"burst": min(10, int(rate.split("/")[0]))} if algorithm is TokenBucket else {}
    kept, steps, reference = rule(algorithm("x", rate, **options)), [], Reference()
    charge = kept.bind(kept.limit.capacity)
    ask = claim_of(charge, kept.limit.capacity)
    for now_us in (NOW_US, NOW_US, NOW_US + 1, NOW_US + kept.limit.period_us - 1, NOW_US + 2 * kept.limit.period_us):
        steps.append(reference.ask(now_us, [(kept, ask)], Caller.JOB))
        steps.append(reference.settle(now_us, [Correction(kept.bucket, charge, now_us, 7)]))
    check(client, steps, Shas(client, STRICT))
    client.flushdb()


@pytest.mark.parametrize("rate", [f"{10**12 - 1}/day", f"{10**12 - 1}/366d", f"{10**9 + 7}/s", "12345/day"])
def test_sliding_window_is_exact_in_deepest_debt(client: Any, rate: str) -> None:
    """However far settled costs drive two windows in a row beyond their amount, the load is exact to the unit."""
    kept, reference, steps = rule(SlidingWindow("x", rate)), Reference(), []
    period_us, amount = kept.limit.period_us, kept.limit.amount
    charge = kept.bind(1)
    for now_us in (NOW_US // period_us * period_us - 1, NOW_US // period_us * period_us, NOW_US):
        for by in (60 * amount - 7, 3, 10**18, -1):
            steps.append(reference.settle(now_us, [Correction(kept.bucket, charge, now_us, by)]))
            steps.append(reference.ask(now_us, [(kept, claim_of(charge))], Caller.PEEK))
    state = reference.kept[kept.bucket]
    assert isinstance(state, Counts)
    assert state.before + state.used > 118 * amount
    check(client, steps, Shas(client, STRICT))
    client.flushdb()


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket("x", "1/minute", burst=5),
        LeakyBucket("x", "1/hour"),
        FixedWindow("x", "5/day"),
        SlidingWindow("x", "5/366d"),
        SlidingLog("x", "5/hour"),
    ],
    ids=[name for name in ALGORITHMS if not name.endswith("concurrency")],
)
def test_server_clock_and_memory_clock_agree(
    redis_url: str, limit: TokenBucket | LeakyBucket | FixedWindow | SlidingWindow | SlidingLog
) -> None:
    """With the time left to each store's own clock, both pass what is there, deny the rest, and tell the same waits."""
    kept = rule(limit)
    charge, whole = kept.bind(1), kept.bind(limit.capacity)
    claim = StoreClaim(kept.bucket, charge)
    shared = RedisStore(redis_url, timeout=5)
    told: list[list[float]] = []
    for store in (MemoryStore(), shared):
        verdicts = [store.acquire(Request([claim], Caller.JOB)) for _ in range(limit.capacity + 2)]
        assert [v.reason.value for v in verdicts] == ["allowed"] * limit.capacity + ["exhausted"] * 2
        told.append([])
        for v in verdicts:
            instants_us = (v.due_us, v.retry_us, *(use.full_us for use in v.uses if use))
            told[-1] += [(at_us - v.now_us) / 1e6 for at_us in instants_us]
        assert all(wait_s > 0 for wait_s in told[-1][-6:])
        assert any(v.now_us % 1_000_000 for v in verdicts), "the clock tells parts of a second"
        store.settle([Correction(claim.bucket, charge, verdicts[0].now_us, -whole.size)])
        assert store.acquire(Request([claim], Caller.JOB, verdicts[-2].places)).allowed
    assert told[0] == pytest.approx(told[1], abs=5)
    shared.close()
