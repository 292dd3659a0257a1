"""Long periods, large amounts, changed rates and clocks: the scripts and the reference return the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

from parity.rules import ALGORITHMS, Rule, rule
from parity.waits import NOW_US, BothStores
from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithms.sliding_window import Counts
from throttlekit._core.answer import WITHOUT_JOB, Caller, Requester
from throttlekit._core.late import late_owner
from throttlekit._core.time_zone import Zone
from throttlekit.stores import Correction, Lease, MemoryStore, StoreClaim
from throttlekit.stores.redis import RedisStore

_HOUR_US = 3_600_000_000
_MIDNIGHT_US = NOW_US // (24 * _HOUR_US) * 24 * _HOUR_US


def _decide(
    both: BothStores, at_us: int, of: Rule, cost: int = 1, holder: str = "", caller: Caller = Caller.WITHOUT_JOB
) -> str:
    """Decide on both stores, which must give the same answer, and return its reason."""
    claim = StoreClaim(of.bucket, of.bind(cost, holder), cost)
    requester = Requester(caller, early_us=0) if caller is not Caller.WITHOUT_JOB else WITHOUT_JOB
    return both.run("decide", [claim], at_us, requester).reason.value  # type: ignore[no-any-return]


def _settle(both: BothStores, at_us: int, correction: Correction) -> None:
    both.run("settle", [StoreClaim(correction.bucket, correction.algorithm)], at_us, what=[correction])


def test_a_window_from_before_a_second_clock_change_is_kept(both: BothStores) -> None:
    """If the clocks are set back over midnight, the day that had begun before continues."""
    changes = ((_MIDNIGHT_US - 100 * _HOUR_US, 0), (_MIDNIGHT_US + _HOUR_US // 2, -_HOUR_US))
    one_rule, past_us = rule(FixedWindow("x", "2/day"), Zone(-_HOUR_US, changes)), changes[1][0]
    reasons = [_decide(both, now_us, one_rule) for now_us in (past_us - 1, past_us + 1, past_us + 2)]
    assert reasons == ["allowed", "allowed", "exhausted"]


@pytest.mark.parametrize("since_us", [0, 89_000_000, 91_000_000], ids=["at once", "almost stale", "stale"])
def test_leases_of_two_lengths_are_kept_together(both: BothStores, since_us: int) -> None:
    """A limit that is redefined with a shorter lease keeps the longer leases of the current holders."""
    longer, shorter = rule(Concurrency("x", 1, lease=90)), rule(Concurrency("x", 1, lease=1))
    assert longer.bucket == shorter.bucket
    now_us = NOW_US - since_us
    _decide(both, NOW_US, longer, holder="job%3A1#0")
    for holder in ("job%3A2#0", "job%3A3#0"):
        _decide(both, now_us, shorter, holder=holder)
    renewed = Lease(shorter.bucket, shorter.bind(1, "job%3A1#0"), NOW_US)
    both.run("renew", [StoreClaim(renewed.bucket, renewed.algorithm)], now_us, what=[renewed])
    for by_us in (0, 61_000_000, 140_000_000):
        _decide(both, now_us - by_us, shorter, holder="job%3A2#0")


def test_a_window_written_by_a_larger_rate_has_the_same_count(both: BothStores) -> None:
    """A debt at a hundred times the rate is counted exactly, although one product would not be exact."""
    greater, week_us = rule(SlidingWindow("x", "20000000/7d")), 7 * 24 * _HOUR_US
    smaller = Rule(SlidingWindow("x", "200000/7d"), greater.zone, greater.bucket)
    begin_us = NOW_US // week_us * week_us
    _decide(both, begin_us - week_us, greater, 513_002)
    for _ in range(20):
        _settle(both, begin_us, Correction(greater.bucket, greater.bind(1), begin_us, 10_000_019))
        for at_us in (begin_us, begin_us + week_us // 3, begin_us + week_us + 1):
            _decide(both, at_us, smaller, caller=Caller.PEEK)


def test_a_correction_by_zero_writes_nothing(both: BothStores, client: Any) -> None:
    """A settlement with the same cost does not change the log."""
    one_rule = rule(SlidingLog("x", "3/s"))
    _decide(both, NOW_US, one_rule)
    before = client.get(one_rule.bucket)
    _settle(both, NOW_US, Correction(one_rule.bucket, one_rule.bind(1), NOW_US, 0))
    assert client.get(one_rule.bucket) == before


def test_future_clock_changes_do_not_change_the_current_window(both: BothStores) -> None:
    """A window that a wrong clock wrote half an hour ahead is not used, although the clocks change twice later."""
    hour_us = NOW_US // _HOUR_US * _HOUR_US
    zone = Zone(0, ((NOW_US + 30 * _HOUR_US, _HOUR_US), (NOW_US + 60 * _HOUR_US, 0)))
    one_rule = rule(FixedWindow("x", "4/hour"), zone)
    assert [_decide(both, now_us, one_rule) for now_us in (hour_us, hour_us - _HOUR_US // 2)][-1] == "exhausted"


@pytest.mark.parametrize("rate", ["1/100000s", "9/366d", f"{10**12 - 1}/366d", f"{10**12 - 1}/day"])
@pytest.mark.parametrize("algorithm", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_long_periods_are_written_in_full(both: BothStores, algorithm: type[TokenBucket], rate: str) -> None:
    """Periods from 100 000 seconds to a year, and huge amounts, are stored to the microsecond, in digits."""
    if algorithm is FixedWindow:
        rate = rate.split("/")[0] + "/day"
    if algorithm is SlidingLog:
        rate = "9/" + rate.split("/")[1]
    options = {"burst": min(10, int(rate.split("/")[0]))} if algorithm is TokenBucket else {}
    one_rule = rule(algorithm("x", rate, **options))
    whole, period_us = one_rule.limit.capacity, one_rule.limit.period_us
    for now_us in (NOW_US, NOW_US, NOW_US + 1, NOW_US + period_us - 1, NOW_US + 2 * period_us):
        _decide(both, now_us, one_rule, whole)
        _settle(both, now_us, Correction(one_rule.bucket, one_rule.bind(whole), now_us, 7))


@pytest.mark.parametrize("rate", [f"{10**12 - 1}/day", f"{10**12 - 1}/366d", f"{10**9 + 7}/s", "12345/day"])
def test_a_sliding_window_is_exact_in_the_largest_debt(both: BothStores, rate: str) -> None:
    """If settled costs far exceed the amounts of two successive windows, the load is still exact to the unit."""
    one_rule = rule(SlidingWindow("x", rate))
    period_us, amount = one_rule.limit.period_us, one_rule.limit.amount
    for now_us in (NOW_US // period_us * period_us - 1, NOW_US // period_us * period_us, NOW_US):
        for by in (60 * amount - 7, 3, 10**18, -1):
            _settle(both, now_us, Correction(one_rule.bucket, one_rule.bind(1), now_us, by))
            _decide(both, now_us, one_rule, caller=Caller.PEEK)
    state = both.read_state(one_rule.bucket)
    assert isinstance(state, Counts)
    assert state.before + state.used > 118 * amount


def test_a_log_admits_two_units_when_two_have_left_the_window(both: BothStores) -> None:
    """Two units are admitted when the second unit leaves the window, and not when the first one does."""
    one_rule = rule(SlidingLog("x", "4/s"))
    for at_us in (0, 500_000, 600_000, 700_000, 1_000_000):
        assert _decide(both, NOW_US + at_us, one_rule) == "allowed"
    assert _decide(both, NOW_US + 1_599_999, one_rule, 2) == "exhausted"
    assert _decide(both, NOW_US + 1_600_000, one_rule, 2) == "allowed"


def test_a_log_counts_units_across_the_end_of_its_ring(both: BothStores) -> None:
    """The units at the end of the ring have left the window, and the units at its start have not."""
    one_rule = rule(SlidingLog("x", "4/s"))
    for at_us in (0, 500_000, 600_000, 700_000, 1_000_000, 1_510_000):
        assert _decide(both, NOW_US + at_us, one_rule) == "allowed"
    assert _decide(both, NOW_US + 1_710_000, one_rule, caller=Caller.PEEK) == "allowed"


def test_a_log_keeps_the_end_of_its_debt(both: BothStores) -> None:
    """The end of the debt is still stored after the next grant."""
    one_rule = rule(SlidingLog("x", "4/s"))
    _decide(both, NOW_US, one_rule)
    _settle(both, NOW_US, Correction(one_rule.bucket, one_rule.bind(1), NOW_US, 5))
    assert _decide(both, NOW_US + 1_000_000, one_rule) == "allowed"


def test_the_limit_that_denies_longest_is_reported(both: BothStores) -> None:
    """Of two limits that deny, the one with the later retry time is reported, in any order."""
    rules = [rule(TokenBucket("x", "1/hour")), rule(TokenBucket("y", "1/s")), rule(SlidingWindow("z", "1/minute"))]
    claims = [StoreClaim(one_rule.bucket, one_rule.bind(1), 1) for one_rule in rules]
    assert both.run("decide", claims, NOW_US, WITHOUT_JOB).allowed
    for some, binding in ((claims, 0), (claims[1:], 1), (claims[::-1], 2)):
        assert both.run("decide", some, NOW_US + 1, WITHOUT_JOB).claim == binding


def test_a_log_counts_again_after_units_were_returned(both: BothStores) -> None:
    """The limit also counts correctly if the clock steps back, and units that had left the window are in it again."""
    one_rule = rule(SlidingLog("x", "5/s"))
    for at_us in (0, 50_000, 500_000, 1_200_000):
        _decide(both, NOW_US + at_us, one_rule)
    _settle(both, NOW_US + 1_200_000, Correction(one_rule.bucket, one_rule.bind(1), NOW_US + 1_200_000, -1))
    _decide(both, NOW_US + 900_000, one_rule, caller=Caller.PEEK)


def test_callers_are_spread_by_whole_microseconds(both: BothStores) -> None:
    """At three per second, the retry time of the second denied caller is a third of a second later, rounded up."""
    one_rule = rule(FixedWindow("x", "3/s"))
    assert [_decide(both, NOW_US, one_rule, cost) for cost in (3, 1, 1)] == ["allowed", "exhausted", "exhausted"]


def test_a_long_log_and_a_bucket_are_charged_together(both: BothStores) -> None:
    """A log of more than 256 units is written in place, and the other limits of the request completely."""
    rules = [rule(SlidingLog("x", "300/s")), rule(TokenBucket("y", "9/s")), rule(SlidingLog("z", "9/s"))]
    claims = [StoreClaim(one_rule.bucket, one_rule.bind(1), 1) for one_rule in rules]
    for some in (claims, claims[::-1]):
        assert both.run("decide", some, NOW_US, WITHOUT_JOB).allowed


@pytest.mark.parametrize("rate", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_a_charge_expires_when_it_no_longer_counts(redis_url: str, client: Any, rate: type[TokenBucket]) -> None:
    """The key expires five seconds after its units count, so that a clock that is a little behind can read it."""
    one_rule, store = rule(rate("x", "1/hour")), RedisStore(redis_url, timeout=5)
    answer = store.decide([StoreClaim(one_rule.bucket, one_rule.bind(1))], WITHOUT_JOB)
    left_us = answer.uses[0].full_us - answer.now_us  # type: ignore[union-attr]
    assert left_us < 1000 * client.pttl(one_rule.bucket) <= left_us + 5_001_000
    store.close()


def test_a_caller_retries_when_units_are_free_although_others_are_spread(both: BothStores) -> None:
    """Callers with a larger cost were spread over a minute; a caller for one unit does not retry after them."""
    one_rule = rule(TokenBucket("x", "1/s", burst=2))
    assert _decide(both, NOW_US, one_rule, 2) == "allowed"
    assert {_decide(both, NOW_US, one_rule, 2) for _ in range(32)} == {"exhausted"}
    assert _decide(both, NOW_US, one_rule) == "exhausted"


def test_a_bucket_charged_in_the_future_is_used_up(both: BothStores) -> None:
    """A bucket that a clock charged 100 seconds from now counts as used up."""
    one_rule = rule(TokenBucket("x", "1/s", burst=1))
    assert [_decide(both, at_us, one_rule) for at_us in (NOW_US, NOW_US - 100_000_000)] == ["allowed", "exhausted"]


def test_a_log_counts_when_many_units_have_left_the_window(both: BothStores) -> None:
    """The count is correct when one of the units leaves the window at exactly this time."""
    one_rule = rule(SlidingLog("x", "300/s"))
    for number in range(20):
        _decide(both, NOW_US + 1_000 * number, one_rule)
    assert _decide(both, NOW_US + 1_012_000, one_rule, caller=Caller.PEEK) == "allowed"


def test_a_sliding_window_with_returned_units_ends_with_the_previous_one(both: BothStores) -> None:
    """The stored value counts until the units of the previous window have faded."""
    one_rule, minute_us = rule(SlidingWindow("x", "9/minute")), 60_000_000
    begin_us = NOW_US // minute_us * minute_us
    _decide(both, begin_us - 1, one_rule, 3)
    _decide(both, begin_us, one_rule)
    _settle(both, begin_us, Correction(one_rule.bucket, one_rule.bind(1), begin_us, -1))
    assert _decide(both, begin_us + 1, one_rule, caller=Caller.PEEK) == "allowed"


def test_a_sliding_window_with_long_steps_has_faded_at_its_end(both: BothStores) -> None:
    """The last step of a window is shorter than the others, and a caller for the whole amount retries at its end."""
    one_rule = rule(SlidingWindow("x", "1000000000/s"))
    charge, whole = one_rule.bind(1), one_rule.limit.amount
    assert charge.params[1] % charge.params[2], "the steps do not fill the period"  # type: ignore[operator]
    begin_us = NOW_US // one_rule.limit.period_us * one_rule.limit.period_us
    assert _decide(both, begin_us - 1, one_rule, whole) == "allowed"
    assert _decide(both, begin_us, one_rule, whole) == "exhausted"


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
def test_both_stores_use_their_clocks_in_the_same_way(
    redis_url: str, limit: TokenBucket | LeakyBucket | FixedWindow | SlidingWindow | SlidingLog
) -> None:
    """Without a time argument, both stores grant the capacity, deny other requests, and return the same waits."""
    one_rule = rule(limit)
    charge, whole = one_rule.bind(1), one_rule.bind(limit.capacity)
    claim = StoreClaim(one_rule.bucket, charge)
    shared = RedisStore(redis_url, timeout=5)
    waits: list[list[float]] = []
    for store in (MemoryStore(), shared):
        requesters = [Requester(Caller.JOB, str(number), late_owner(0.05)) for number in range(limit.capacity + 2)]
        answers = [store.decide([claim], requester) for requester in requesters]
        assert [each.reason.value for each in answers] == ["allowed"] * limit.capacity + ["exhausted"] * 2
        times = [(each.now_us, each.retry_us, *(use.full_us for use in each.uses if use)) for each in answers]
        waits.append([(at_us - now_us) / 1e6 for now_us, *each in times for at_us in each])
        assert all(wait_s > 0 for wait_s in waits[-1][-4:])
        assert any(each.now_us % 1_000_000 for each in answers), "the clock has fractions of a second"
        store.settle([Correction(claim.bucket, charge, answers[0].now_us, -whole.size)])
        assert store.decide([claim], requesters[-2]).allowed
    assert waits[0] == pytest.approx(waits[1], abs=5)
    shared.close()
