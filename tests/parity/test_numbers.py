"""Long periods, great amounts, changed rates and clocks: the scripts and the reference tell the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

from parity.rules import ALGORITHMS, Rule, rule
from parity.waits import NOW_US, BothStores
from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.algorithms.sliding_window import Counts
from throttlekit._core.answer import WITHOUT_JOB, Caller, Requester
from throttlekit._core.late import PLAIN_OWNER
from throttlekit._core.time_zone import Zone
from throttlekit.stores import Correction, Lease, MemoryStore, StoreClaim
from throttlekit.stores.redis import RedisStore

_HOUR_US = 3_600_000_000
_MIDNIGHT_US = NOW_US // (24 * _HOUR_US) * 24 * _HOUR_US


def _ask(
    both: BothStores, at_us: int, of: Rule, cost: int = 1, holder: str = "", caller: Caller = Caller.WITHOUT_JOB
) -> str:
    """The reason of the answer, which is the same of both stores."""
    claim = StoreClaim(of.bucket, of.bind(cost, holder), cost)
    requester = Requester(caller, most_early_us=0) if caller is not Caller.WITHOUT_JOB else WITHOUT_JOB
    return both.run("decide", [claim], at_us, requester).reason.value  # type: ignore[no-any-return]


def _settle(both: BothStores, at_us: int, correction: Correction) -> None:
    both.run("settle", [StoreClaim(correction.bucket, correction.algorithm)], at_us, what=[correction])


def test_window_that_began_before_the_second_change_of_clocks_is_believed(both: BothStores) -> None:
    """Clocks that fall back over midnight: the day that had begun before goes on all the same."""
    changes = ((_MIDNIGHT_US - 100 * _HOUR_US, 0), (_MIDNIGHT_US + _HOUR_US // 2, -_HOUR_US))
    kept, past_us = rule(FixedWindow("x", "2/day"), Zone(-_HOUR_US, changes)), changes[1][0]
    reasons = [_ask(both, now_us, kept) for now_us in (past_us - 1, past_us + 1, past_us + 2)]
    assert reasons == ["allowed", "allowed", "exhausted"]


@pytest.mark.parametrize("since_us", [0, 89_000_000, 91_000_000], ids=["at once", "almost stale", "stale"])
def test_leases_of_two_lengths_are_in_one_set(both: BothStores, since_us: int) -> None:
    """Defined anew with a shorter lease, a limit believes the longer ones of those who hold its slots already."""
    longer, shorter = rule(Concurrency("x", 1, lease=90)), rule(Concurrency("x", 1, lease=1))
    assert longer.bucket == shorter.bucket
    now_us = NOW_US - since_us
    _ask(both, NOW_US, longer, holder="job%3A1#0")
    for holder in ("job%3A2#0", "job%3A3#0"):
        _ask(both, now_us, shorter, holder=holder)
    renewed = Lease(shorter.bucket, shorter.bind(1, "job%3A1#0"), NOW_US)
    both.run("renew", [StoreClaim(renewed.bucket, renewed.algorithm)], now_us, what=[renewed])
    for by_us in (0, 61_000_000, 140_000_000):
        _ask(both, now_us - by_us, shorter, holder="job%3A2#0")


def test_window_that_a_greater_rate_wrote_counts_alike(both: BothStores) -> None:
    """A debt at a hundred times the rate: what counts of it is exact, though one product would not be."""
    greater, week_us = rule(SlidingWindow("x", "20000000/7d")), 7 * 24 * _HOUR_US
    smaller = Rule(SlidingWindow("x", "200000/7d"), greater.zone, greater.bucket)
    begin_us = NOW_US // week_us * week_us
    _ask(both, begin_us - week_us, greater, 513_002)
    for _ in range(20):
        _settle(both, begin_us, Correction(greater.bucket, greater.bind(1), begin_us, 10_000_019))
        for at_us in (begin_us, begin_us + week_us // 3, begin_us + week_us + 1):
            _ask(both, at_us, smaller, caller=Caller.PEEK)


def test_correction_by_nothing_writes_no_log(both: BothStores, client: Any) -> None:
    """What turned out neither dearer nor cheaper is not corrected."""
    kept = rule(SlidingLog("x", "3/s"))
    _ask(both, NOW_US, kept)
    before = client.get(kept.bucket)
    _settle(both, NOW_US, Correction(kept.bucket, kept.bind(1), NOW_US, 0))
    assert client.get(kept.bucket) == before


def test_changes_of_clocks_to_come_make_no_window_begin_earlier(both: BothStores) -> None:
    """A window that a wrong clock left half an hour ahead is not believed, though clocks will be set twice later on."""
    hour_us = NOW_US // _HOUR_US * _HOUR_US
    zone = Zone(0, ((NOW_US + 30 * _HOUR_US, _HOUR_US), (NOW_US + 60 * _HOUR_US, 0)))
    kept = rule(FixedWindow("x", "4/hour"), zone)
    assert [_ask(both, now_us, kept) for now_us in (hour_us, hour_us - _HOUR_US // 2)][-1] == "exhausted"


@pytest.mark.parametrize("rate", ["1/100000s", "9/366d", f"{10**12 - 1}/366d", f"{10**12 - 1}/day"])
@pytest.mark.parametrize("algorithm", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_long_periods_are_written_in_full(both: BothStores, algorithm: type[TokenBucket], rate: str) -> None:
    """Periods of 100 000 seconds to a year, and huge amounts, are stored to the microsecond, in digits."""
    if algorithm is FixedWindow:
        rate = rate.split("/")[0] + "/day"
    if algorithm is SlidingLog:
        rate = "9/" + rate.split("/")[1]
    options = {"burst": min(10, int(rate.split("/")[0]))} if algorithm is TokenBucket else {}
    kept = rule(algorithm("x", rate, **options))
    whole, period_us = kept.limit.capacity, kept.limit.period_us
    for now_us in (NOW_US, NOW_US, NOW_US + 1, NOW_US + period_us - 1, NOW_US + 2 * period_us):
        _ask(both, now_us, kept, whole)
        _settle(both, now_us, Correction(kept.bucket, kept.bind(whole), now_us, 7))


@pytest.mark.parametrize("rate", [f"{10**12 - 1}/day", f"{10**12 - 1}/366d", f"{10**9 + 7}/s", "12345/day"])
def test_sliding_window_is_exact_in_deepest_debt(both: BothStores, rate: str) -> None:
    """However far settled costs drive two windows in a row beyond their amount, the load is exact to the unit."""
    kept = rule(SlidingWindow("x", rate))
    period_us, amount = kept.limit.period_us, kept.limit.amount
    for now_us in (NOW_US // period_us * period_us - 1, NOW_US // period_us * period_us, NOW_US):
        for by in (60 * amount - 7, 3, 10**18, -1):
            _settle(both, now_us, Correction(kept.bucket, kept.bind(1), now_us, by))
            _ask(both, now_us, kept, caller=Caller.PEEK)
    state = both.taken(kept.bucket)
    assert isinstance(state, Counts)
    assert state.before + state.used > 118 * amount


def test_log_has_room_for_two_units_when_two_have_left_the_window(both: BothStores) -> None:
    """Not as the first of them has."""
    kept = rule(SlidingLog("x", "4/s"))
    for at_us in (0, 500_000, 600_000, 700_000, 1_000_000):
        assert _ask(both, NOW_US + at_us, kept) == "allowed"
    assert _ask(both, NOW_US + 1_599_999, kept, 2) == "exhausted"
    assert _ask(both, NOW_US + 1_600_000, kept, 2) == "allowed"


def test_log_counts_on_at_the_start_of_its_ring(both: BothStores) -> None:
    """The units at its end have left the window, and those at its start have not."""
    kept = rule(SlidingLog("x", "4/s"))
    for at_us in (0, 500_000, 600_000, 700_000, 1_000_000, 1_510_000):
        assert _ask(both, NOW_US + at_us, kept) == "allowed"
    assert _ask(both, NOW_US + 1_710_000, kept, caller=Caller.PEEK) == "allowed"


def test_log_keeps_until_when_it_is_in_debt(both: BothStores) -> None:
    """Also as the next unit passes."""
    kept = rule(SlidingLog("x", "4/s"))
    _ask(both, NOW_US, kept)
    _settle(both, NOW_US, Correction(kept.bucket, kept.bind(1), NOW_US, 5))
    assert _ask(both, NOW_US + 1_000_000, kept) == "allowed"


def test_caller_waits_for_the_limit_that_denies_it_longest(both: BothStores) -> None:
    """Of two limits that deny it, wherever that one stands."""
    rules = [rule(TokenBucket("x", "1/hour")), rule(TokenBucket("y", "1/s")), rule(SlidingWindow("z", "1/minute"))]
    claims = [StoreClaim(kept.bucket, kept.bind(1), 1) for kept in rules]
    assert both.run("decide", claims, NOW_US, WITHOUT_JOB).allowed
    for asked, binding in ((claims, 0), (claims[1:], 1), (claims[::-1], 2)):
        assert both.run("decide", asked, NOW_US + 1, WITHOUT_JOB).claim == binding


def test_log_counts_anew_after_units_were_given_back(both: BothStores) -> None:
    """Also if the clock steps back, and units are in the window that had left it."""
    kept = rule(SlidingLog("x", "5/s"))
    for at_us in (0, 50_000, 500_000, 1_200_000):
        _ask(both, NOW_US + at_us, kept)
    _settle(both, NOW_US + 1_200_000, Correction(kept.bucket, kept.bind(1), NOW_US + 1_200_000, -1))
    _ask(both, NOW_US + 900_000, kept, caller=Caller.PEEK)


def test_callers_are_spread_by_whole_microseconds(both: BothStores) -> None:
    """At three a second, the second one that is denied asks a third of a second after the first, rounded up."""
    kept = rule(FixedWindow("x", "3/s"))
    assert [_ask(both, NOW_US, kept, cost) for cost in (3, 1, 1)] == ["allowed", "exhausted", "exhausted"]


def test_long_log_and_a_bucket_are_charged_together(both: BothStores) -> None:
    """A log of more than 256 units is written in place, and what is beside it as a whole."""
    rules = [rule(SlidingLog("x", "300/s")), rule(TokenBucket("y", "9/s")), rule(SlidingLog("z", "9/s"))]
    claims = [StoreClaim(kept.bucket, kept.bind(1), 1) for kept in rules]
    for asked in (claims, claims[::-1]):
        assert both.run("decide", asked, NOW_US, WITHOUT_JOB).allowed


@pytest.mark.parametrize("rate", [TokenBucket, FixedWindow, SlidingWindow, SlidingLog])
def test_what_is_taken_expires_once_it_no_longer_counts(redis_url: str, client: Any, rate: type[TokenBucket]) -> None:
    """Five seconds later, so that a clock that is a little behind reads it."""
    kept, store = rule(rate("x", "1/hour")), RedisStore(redis_url, timeout=5)
    answer = store.decide([StoreClaim(kept.bucket, kept.bind(1))], WITHOUT_JOB)
    left_us = answer.uses[0].full_us - answer.now_us  # type: ignore[union-attr]
    assert left_us < 1000 * client.pttl(kept.bucket) <= left_us + 5_001_000
    store.close()


def test_caller_that_is_spread_too_far_asks_when_there_are_units(both: BothStores) -> None:
    """Callers of a greater cost were spread over the minute after theirs: one of a unit does not come after them."""
    kept = rule(TokenBucket("x", "1/s", burst=2))
    assert _ask(both, NOW_US, kept, 2) == "allowed"
    assert {_ask(both, NOW_US, kept, 2) for _ in range(32)} == {"exhausted"}
    assert _ask(both, NOW_US, kept) == "exhausted"


def test_bucket_of_a_clock_that_is_set_back_is_not_believed(both: BothStores) -> None:
    """It was charged 100 seconds from now."""
    kept = rule(TokenBucket("x", "1/s", burst=1))
    assert [_ask(both, at_us, kept) for at_us in (NOW_US, NOW_US - 100_000_000)] == ["allowed", "exhausted"]


def test_log_counts_where_many_units_have_left_the_window(both: BothStores) -> None:
    """One of them at this instant."""
    kept = rule(SlidingLog("x", "300/s"))
    for number in range(20):
        _ask(both, NOW_US + 1_000 * number, kept)
    assert _ask(both, NOW_US + 1_012_000, kept, caller=Caller.PEEK) == "allowed"


def test_sliding_window_whose_units_were_given_back_ends_with_the_one_before(both: BothStores) -> None:
    """What is stored counts until the units of the window before have faded."""
    kept, minute_us = rule(SlidingWindow("x", "9/minute")), 60_000_000
    begin_us = NOW_US // minute_us * minute_us
    _ask(both, begin_us - 1, kept, 3)
    _ask(both, begin_us, kept)
    _settle(both, begin_us, Correction(kept.bucket, kept.bind(1), begin_us, -1))
    assert _ask(both, begin_us + 1, kept, caller=Caller.PEEK) == "allowed"


def test_sliding_window_of_long_steps_has_faded_at_its_end(both: BothStores) -> None:
    """The last step of a window is shorter than the others: a caller that needs the whole amount asks as it ends."""
    kept = rule(SlidingWindow("x", "1000000000/s"))
    charge, whole = kept.bind(1), kept.limit.amount
    assert charge.params[1] % charge.params[2], "the steps do not fill the period"  # type: ignore[operator]
    begin_us = NOW_US // kept.limit.period_us * kept.limit.period_us
    assert _ask(both, begin_us - 1, kept, whole) == "allowed"
    assert _ask(both, begin_us, kept, whole) == "exhausted"


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
        askers = [Requester(Caller.JOB, str(number), PLAIN_OWNER) for number in range(limit.capacity + 2)]
        answers = [store.decide([claim], requester) for requester in askers]
        assert [each.reason.value for each in answers] == ["allowed"] * limit.capacity + ["exhausted"] * 2
        instants = [(each.now_us, each.retry_us, *(use.full_us for use in each.uses if use)) for each in answers]
        told.append([(at_us - now_us) / 1e6 for now_us, *each in instants for at_us in each])
        assert all(wait_s > 0 for wait_s in told[-1][-4:])
        assert any(each.now_us % 1_000_000 for each in answers), "the clock tells parts of a second"
        store.settle([Correction(claim.bucket, charge, answers[0].now_us, -whole.size)])
        assert store.decide([claim], askers[-2]).allowed
    assert told[0] == pytest.approx(told[1], abs=5)
    shared.close()
