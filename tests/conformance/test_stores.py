"""
Limits on every store, by examples with times that are calculated by hand.

The suite for users' stores checks with random histories that a store decides like `MemoryStore` in all other cases, on
each supported server. `tests/parity` compares the scripts and what they write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from conformance.bench import NAME, NOW_US, ONE, SECOND_US, STEP_US, TEN, Bench
from conformance.cases import BURST_CASES, CASES, Case
from support.threads import run_in_threads
from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.answer import WITHOUT_JOB, Answer, Caller, Reason
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.change import change_rate
from throttlekit._core.slowdown import Refusal, Remaining
from throttlekit._core.waitlist import State
from throttlekit.stores import MemoryStore, Store, StoreClaim
from throttlekit.stores.base import Slowing
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import StoreConformance

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
each_burst = pytest.mark.parametrize("case", BURST_CASES, ids=lambda case: case.label)
HOUR_US, FAR_US = 3600 * SECOND_US, 40 * 86_400 * SECOND_US


# The suite for users' stores


class TestMemoryStore(StoreConformance):
    """`MemoryStore` is the specification, so two of them decide in the same way."""

    def make_store(self) -> Store:
        return MemoryStore()


class TestRedisStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self) -> Store:
        return RedisStore(self.url, timeout=5)


class TestRedisStoreOnOtherServers(TestRedisStore):
    @pytest.fixture(autouse=True, params=["redis_6_url", "valkey_url"])
    def _server(self, request: pytest.FixtureRequest) -> None:
        self.url = request.getfixturevalue(request.param)


def _lacking(verb: str) -> type[MemoryStore]:
    """Return a class of stores whose method *verb* does nothing."""
    return type(f"Without_{verb}", (MemoryStore,), {verb: lambda self, *args, **options: None})


class _OneByOne(MemoryStore):
    """A wrong store: it charges the first limits although the last one denies."""

    def decide(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        return [super(_OneByOne, self).decide([each], *args, **options) for each in claims][-1]


class _WithoutTenants(MemoryStore):
    def decide(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        return super().decide([replace(each, tenant="", step=0) for each in claims], *args, **options)


class _InMilliseconds(MemoryStore):
    def decide(self, claims: Sequence[StoreClaim], requester: Any, now_us: int | None = None, **options: Any) -> Any:
        return super().decide(claims, requester, None if now_us is None else now_us // 1000 * 1000, **options)


class _OneKey(MemoryStore):
    """A wrong store: it counts all keys of a limit together."""

    def decide(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        claims = [replace(each, bucket=each.bucket.replace(":k}", ":}")) for each in claims]
        return super().decide(claims, *args, **options)


@pytest.mark.parametrize(
    "wrong",
    [
        *map(_lacking, ("settle", "release", "renew", "pause", "slow", "forget", "where", "return_units")),
        _OneByOne,
        _WithoutTenants,
        _InMilliseconds,
        _OneKey,
    ],
)
def test_the_suite_finds_a_wrong_store(wrong: type[MemoryStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one test of the suite fails, and its message has the request and both answers."""
    monkeypatch.setattr("throttlekit.testing.store._TRIES", 1)

    class Suite(StoreConformance):
        def make_store(self) -> Store:
            return wrong()

    expected = ("the specification", "apart", "received no wake")
    for name in [each for each in dir(Suite) if each.startswith("test_")]:
        try:
            getattr(Suite(), name)()
        except AssertionError as error:
            if any(words in str(error) for words in expected):
                return
    pytest.fail("no test fails")


# One limit


@each_case
def test_the_capacity_is_admitted_and_then_a_unit_at_the_retry_time(bench: Bench, case: Case) -> None:
    """
    The capacity is admitted one by one or in one request, and the next unit at the retry time, not a microsecond
    earlier. After any idle time no more than the capacity is admitted.
    """
    limit, bench.now_us = case.limit, case.start_us
    for key, costs in (("one by one", [1] * limit.capacity), ("at once", [limit.capacity])):
        assert all(bench.decide(limit, key=key, cost=cost).allowed for cost in costs)
        denied = bench.decide(limit, key=key)
        assert (denied.reason, denied.retry_us) == (Reason.EXHAUSTED, case.start_us + case.first_us)
        assert bench.look(limit, key=key, cost=limit.capacity).retry_us == case.start_us + case.whole_us
        assert (bench.units_left(limit, key), bench.use(limit, key).full_us) == (0, case.start_us + case.full_us)
    for us, allowed in ((case.first_us - 1, False), (case.first_us, True)):
        bench.now_us = case.start_us + us
        assert bench.decide(limit, key="one by one").allowed is allowed
    for us, allowed in ((case.whole_us - 1, False), (case.whole_us, True)):
        bench.now_us = case.start_us + us
        assert bench.decide(limit, key="at once", cost=limit.capacity).allowed is allowed
    bench.now_us += FAR_US
    assert bench.count_admitted(limit, key="at once") == limit.capacity


@each_case
def test_peeks_and_denials_change_nothing(bench: Bench, case: Case) -> None:
    """Peeks, denials and a cost of 0 take no unit and no position, and an unused key stays unused."""
    limit, bench.now_us = case.limit, case.start_us
    for _ in range(3):
        assert bench.look(limit).allowed
        assert bench.decide(limit, cost=0).allowed
    assert bench.is_unused(limit)
    bench.drain(limit)
    before = bench.use(limit)
    for _ in range(3):
        assert not bench.decide(limit).allowed
        assert not bench.look(limit, job="looks").allowed
        assert bench.decide(limit, cost=0).allowed
    assert bench.use(limit) == before
    assert bench.decide(limit, job="first").retry_us == case.start_us + case.first_us


@each_case
def test_keys_and_definitions_are_counted_and_reset_separately(bench: Bench, case: Case) -> None:
    """Keys and definitions share no units, waitlists or pauses; after a reset a limit is as if never used."""
    limit, bench.now_us = case.limit, case.start_us
    for other in (*(each.limit for each in CASES if each is not case), type(limit)(limit.name, "700/h")):
        bench.drain(other)
        bench.decide(other, job="waits")
    bench.drain(limit, key="other")
    bench.decide(limit, key="other", job="waits")
    bench.pause(limit, SECOND_US, key="third")
    assert bench.is_unused(limit)
    bench.drain(limit)
    bench.decide(limit, job="before")
    bench.reset(limit)
    assert bench.is_unused(limit)
    assert bench.units_left(limit, "other") == 0
    bench.drain(limit)
    assert bench.decide(limit, job="after").retry_us == case.start_us + case.first_us


@each_case
def test_a_rate_that_is_set_counts_in_the_same_key(bench: Bench, case: Case) -> None:
    """
    At ten times the rate, a bucket that was used up is still used up, and a window has the additional units. Charges of
    the declared rate are returned in the same key, and a look with the declared rate changes nothing.
    """
    limit, bench.now_us = case.limit, case.start_us
    rate = limit.rate_from(10 * limit.amount, limit.period_us)
    assert rate is not None
    faster = change_rate(limit, rate)
    if faster.declared is None:
        pytest.skip("this algorithm counts a rate that is set separately")
    bench.drain(limit)
    assert bench.count_admitted(faster) == max(0, faster.amount - limit.amount) * (not hasattr(limit, "bucket"))
    assert bench.units_left(limit) == 0
    bench.settle(limit, was=1, actual=0)
    assert (bench.count_admitted(faster), bench.units_left(limit), bench.units_left(faster)) == (1, 0, 0)


@each_case
def test_jobs_are_admitted_in_order_when_they_are_woken(bench: Bench, case: Case) -> None:
    """Jobs are admitted at the retry times of their denials; newcomers and callers without a job wait behind them."""
    limit, bench.now_us = case.limit, case.start_us
    bench.drain(limit)
    ids = [f"job {number}" for number in range(7)]
    retries = [bench.decide(limit, job=id).retry_us for id in ids]
    assert retries[: limit.amount] == [case.admitted_us(ahead) for ahead in range(7)][: limit.amount]
    bench.now_us = case.start_us + case.first_us
    assert bench.decide(limit, job=ids[-1]).reason is Reason.IN_LINE
    assert [bench.decide(limit, job="new").reason, bench.decide(limit).reason] == [Reason.IN_LINE] * 2
    admitted = bench.admit_woken(limit)
    assert admitted == ids[: case.together]
    bench.forget(limit, job=ids[5])
    while len(admitted) < 7:
        next_us = bench.look(limit, job=[*ids[:5], ids[6], "new"][len(admitted)]).retry_us
        bench.now_us = max(bench.now_us + 1, next_us)
        admitted += bench.admit_woken(limit)
    assert admitted == [*ids[:5], ids[6], "new"]


@each_case
def test_a_job_that_ran_before_is_first_and_keeps_its_position(bench: Bench, case: Case) -> None:
    """
    A job that ran before keeps the first position even if its unit is used up before its request; tenants alternate
    behind it.
    """
    limit, bench.now_us = case.limit, case.start_us
    bench.drain(limit)
    for id in ("many 1", "many 2", "few"):
        bench.decide(limit, job=id, tenant=id.split()[0])
    assert not bench.decide(limit, job="again", caller=Caller.AGAIN).allowed
    bench.now_us = case.start_us + case.first_us
    assert bench.woken_jobs(limit)[0] == "again"
    bench.settle(limit, was=0, actual=limit.capacity)
    assert bench.decide(limit, job="again").reason is Reason.EXHAUSTED
    found = bench.store.where([bench.claim(limit)], "again", bench.now_us)
    assert found is not None
    assert (found.state, found.position) == (State.WAITING, 0)
    admitted = list[str]()
    while len(admitted) < 4:
        bench.now_us += case.next_us
        admitted += bench.admit_woken(limit)
    assert admitted == ["again", "many 1", "few", "many 2"]


@each_case
def test_unused_units_of_a_job_are_returned(bench: Bench, case: Case) -> None:
    """
    Unused units are for the first waiting job, and never exceed the capacity. Units that have expired or of another key
    are not returned.
    """
    limit, bench.now_us = case.limit, case.start_us
    bench.settle(limit, was=1, actual=0)
    assert bench.is_unused(limit)
    bench.drain(limit, key="other")
    bench.drain(limit)
    for id in ("first", "second"):
        bench.decide(limit, job=id)
    bench.settle(limit, was=limit.capacity, actual=limit.capacity - 1)
    assert bench.woken_jobs(limit) == ["first"]
    assert bench.decide(limit).reason is Reason.IN_LINE
    assert bench.decide(limit, job="first").allowed
    bench.forget(limit, job="second")
    bench.settle(limit, was=1000, actual=0)
    assert (bench.count_admitted(limit), bench.units_left(limit, "other")) == (limit.capacity, 0)
    granted_us = bench.now_us
    bench.now_us += case.full_us
    bench.settle(limit, was=1000, actual=0, granted_us=granted_us)
    assert bench.count_admitted(limit) == limit.capacity


@each_case
def test_a_debt_is_paid_first_and_can_be_returned(bench: Bench, case: Case) -> None:
    """A job may cost more than the capacity: no unit is admitted until the debt is paid, even if it takes minutes."""
    limit, bench.now_us = case.limit, case.start_us
    bench.drain(limit)
    bench.settle(limit, was=limit.capacity, actual=limit.capacity + 2)
    assert (bench.units_left(limit), bench.look(limit).retry_us) == (0, case.start_us + case.owed_us)
    bench.now_us += case.owed_us - 1
    assert bench.count_admitted(limit) == 0
    bench.now_us += 1
    assert bench.look(limit).allowed
    bench.now_us = case.start_us
    if not isinstance(limit, SlidingLog):  # in a log, a debt has replaced earlier units
        bench.settle(limit, was=limit.capacity + 2, actual=0)
        assert bench.count_admitted(limit) == limit.capacity
    if hasattr(limit, "bucket"):
        bench.settle(limit, was=0, actual=3000)
        assert bench.look(limit).retry_us == case.start_us + case.first_us + 3000 * case.next_us


def test_a_log_with_a_debt_returns_no_unit(bench: Bench) -> None:
    """While a debt that replaced units of the log counts, a settlement returns no unit; later it returns each unit."""
    limit = SlidingLog(NAME, "5/m")
    assert bench.decide(limit, cost=3).allowed
    bench.now_us = granted_us = NOW_US + 10 * SECOND_US
    assert bench.decide(limit, cost=2).allowed
    bench.settle(limit, was=2, actual=4)
    bench.now_us = NOW_US + 60 * SECOND_US - 1
    bench.settle(limit, was=4, actual=0, granted_us=granted_us)
    assert (bench.units_left(limit), bench.look(limit).retry_us) == (0, NOW_US + 60 * SECOND_US)
    bench.now_us += 1
    assert bench.units_left(limit) == 1
    bench.settle(limit, was=4, actual=2, granted_us=granted_us)
    assert bench.count_admitted(limit) == 3


@each_case
def test_a_pause_admits_no_unit_until_its_end(bench: Bench, case: Case) -> None:
    """
    A pause admits no unit until its last microsecond. The longer of two pauses applies. The counts stay, but a pause
    after a 429 empties the limit.
    """
    limit, bench.now_us = case.limit, case.start_us
    assert bench.decide(limit, key="pause").allowed
    before = bench.use(limit, "pause")
    for key, emptied in (("pause", False), ("429", True)):
        bench.pause(limit, HOUR_US, key=key, emptied=emptied)
        bench.pause(limit, SECOND_US, key=key)
        assert bench.decide(limit, key=key, job="waits").reason is Reason.PAUSED
    assert bench.use(limit, "pause") == before
    bench.now_us += HOUR_US - 1
    for key in ("pause", "429"):
        assert [bench.look(limit, key=key).reason, bench.decide(limit, key=key).reason] == [Reason.PAUSED] * 2
        assert bench.woken_jobs(limit, key) == []
    bench.now_us += 1
    assert bench.woken_jobs(limit, "pause") == ["waits"]
    bench.forget(limit, job="waits")
    assert bench.look(limit, key="429", cost=limit.capacity).reason is Reason.EXHAUSTED
    bench.pause(limit, HOUR_US, key="resumed")
    bench.pause(limit, None, key="resumed")
    assert bench.count_admitted(limit, key="resumed") == limit.capacity


@each_case
def test_a_slowdown_spreads_units_and_ends(bench: Bench, case: Case) -> None:
    """The partner's remaining units are spread until its reset. Refusals reduce the rate. Both are forgotten later."""
    limit, bench.now_us = case.limit, case.start_us
    far_us = 100 * limit.period_us
    bench.store.slow([Slowing(bench.claim(limit), Remaining(2, far_us))], now_us=bench.now_us)
    assert bench.look(limit).retry_us == case.start_us + far_us // 2
    bench.now_us = case.start_us + far_us // 2
    assert bench.decide(limit).allowed
    bench.now_us = case.start_us + far_us - 1
    assert not bench.look(limit).allowed
    bench.now_us += 1
    assert bench.look(limit, cost=limit.capacity).allowed
    for _ in range(9):
        refusal = Slowing(bench.claim(limit, "refused"), Refusal(None, 60 * SECOND_US, 1_000))
        bench.store.slow([refusal], now_us=bench.now_us)
    admitted, until_us = 0, bench.now_us + 10 * SECOND_US
    while bench.now_us < until_us:
        answer = bench.decide(limit, key="refused")
        admitted += answer.allowed
        bench.now_us = max(bench.now_us + 1, answer.retry_us)
    assert admitted <= 3 * SECOND_US * limit.amount / limit.period_us + 1
    bench.now_us += HOUR_US + 2 * limit.period_us
    assert bench.units_left(limit, "refused") == limit.capacity


@each_case
def test_a_clock_that_steps_admits_no_extra_unit(bench: Bench, case: Case) -> None:
    """If the clock steps back, no extra unit is admitted; after a clock that was far ahead, the limit is used up."""
    limit, bench.now_us = case.limit, case.start_us
    bench.drain(limit)
    for back_us in (1, 100_000, 30 * SECOND_US, 60 * SECOND_US, 1 - case.first_us):
        bench.now_us = case.start_us - back_us
        assert bench.count_admitted(limit) == 0, back_us
    bench.now_us = case.start_us + FAR_US
    bench.drain(limit, key="ahead")
    bench.now_us = case.start_us
    assert bench.decide(limit, key="ahead").retry_us == case.start_us + case.first_us
    bench.now_us += 2 * case.full_us
    assert 1 <= bench.count_admitted(limit, key="ahead") <= limit.capacity


@each_case
def test_threads_share_one_capacity(bench: Bench, case: Case) -> None:
    """With any number of threads, exactly the capacity is granted, and each waiting job has a different position."""
    limit, bench.now_us, answers = case.limit, case.start_us, list[Answer]()
    bench.decide(limit, cost=0, job="listens")

    def work(thread: int) -> None:
        answers.extend(bench.decide(limit, job=f"{thread}-{number}") for number in range(10))

    run_in_threads(8, work)
    retries = sorted(answer.retry_us for answer in answers if not answer.allowed)
    assert len(retries) == 80 - limit.capacity
    assert retries[: limit.amount] == [case.admitted_us(ahead) for ahead in range(limit.amount)]


def test_a_store_uses_its_own_clock(bench: Bench) -> None:
    """Without a time argument, each algorithm grants and denies by the store's clock, which advances."""
    for case in CASES:
        claim = bench.claim(case.limit, cost=case.limit.capacity)
        answers = [bench.store.decide([claim], WITHOUT_JOB) for _ in range(2)]
        assert [answer.allowed for answer in answers] == [True, False]
        assert 0 < answers[0].now_us <= answers[1].now_us


@pytest.mark.parametrize(
    ("limit", "waiting"),
    [
        (LeakyBucket(NAME, "10/s", queue=0), 0),
        (TokenBucket(NAME, "10/s", burst=5, queue=2), 2),
        (FixedWindow(NAME, "5/m", queue=2), 2),
        (SlidingWindow(NAME, "5/m", queue=2), 2),
        (SlidingLog(NAME, "5/m", queue=2), 2),
        (Concurrency(NAME, 5, cost=2, queue=2), 2),
    ],
    ids=lambda value: getattr(value, "algorithm", ""),
)
def test_a_full_queue_denies_newcomers(bench: Bench, limit: Limit, waiting: int) -> None:
    """
    At most `queue` jobs wait, whatever their costs. They keep their positions, and a job that ran before is no
    newcomer.
    """
    bench.drain(limit)
    assert [bench.decide(limit, cost=1, job=str(n)).reason for n in range(waiting)] == [Reason.EXHAUSTED] * waiting
    for answer in (bench.decide(limit, job="new", cost=1), bench.decide(limit, cost=1), bench.look(limit, cost=1)):
        assert answer.reason is Reason.FULL
    assert bench.store.list_waiting(bench.claim(limit)).jobs == waiting
    for n in range(waiting):
        assert bench.decide(limit, cost=1, job=str(n)).reason is Reason.EXHAUSTED
    assert bench.decide(limit, cost=1, job="ran", caller=Caller.AGAIN).reason is Reason.EXHAUSTED
    bench.forget(limit, job="ran")
    if waiting:
        bench.forget(limit, job="0")
        assert bench.decide(limit, cost=1, job="new").reason is Reason.EXHAUSTED


def _utc(text: str) -> int:
    at = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("rate", "options", "begin", "ends"),
    [
        ("5/6h", {}, "2027-03-14 15:09:26", ["2027-03-14 18:00:00", "2027-03-15 00:00:00"]),
        # The days on which the clocks go forward and back have 23 and 25 hours.
        ("5/d", {"tz": "Europe/Berlin"}, "2027-03-27 23:00:00", ["2027-03-28 22:00:00", "2027-03-29 22:00:00"]),
        ("5/d", {"tz": "Europe/Berlin"}, "2027-10-30 22:00:00", ["2027-10-31 23:00:00", "2027-11-01 23:00:00"]),
        # The hour that is skipped, and the hour that occurs twice.
        ("5/h", {"tz": "Europe/Berlin"}, "2027-03-28 00:59:59", ["2027-03-28 01:00:00", "2027-03-28 02:00:00"]),
        ("5/15m", {"tz": "Europe/Berlin"}, "2027-10-31 00:59:59", ["2027-10-31 01:00:00", "2027-10-31 01:15:00"]),
        ("5/week", {"tz": "Europe/Berlin"}, "2027-03-22 12:00:00", ["2027-03-28 22:00:00", "2027-04-04 22:00:00"]),
        ("5/month", {"starts": 15}, "2027-12-14 23:59:59", ["2027-12-15 00:00:00", "2028-01-15 00:00:00"]),
        ("5/year", {"tz": "Europe/Berlin"}, "2027-07-01 00:00:00", ["2027-12-31 23:00:00", "2028-12-31 23:00:00"]),
    ],
)
def test_windows_follow_the_calendar(
    bench: Bench, rate: str, options: dict[str, Any], begin: str, ends: Sequence[str]
) -> None:
    """Each window ends with the calendar's period in its time zone, and the next window has its whole amount."""
    limit, bench.now_us = FixedWindow(NAME, rate, **options), _utc(begin)
    for end_us in map(_utc, ends):
        bench.drain(limit)
        assert (bench.use(limit).full_us, bench.look(limit).retry_us) == (end_us, end_us)
        bench.now_us = end_us - 1
        assert not bench.look(limit).allowed
        bench.now_us = end_us


def test_long_periods_and_large_amounts_are_exact(bench: Bench) -> None:
    """A period of a day is exact to the microsecond in the store, and an amount of millions to the unit."""
    period_us = 100_000_000_003
    rate, window_us = (3, timedelta(microseconds=period_us)), NOW_US // period_us * period_us
    expected = {
        TokenBucket(NAME, rate, burst=3): [NOW_US + 7 + 33_333_333_335, NOW_US + 7 + 66_666_666_670],
        LeakyBucket(NAME, rate): [NOW_US + 7 + 33_333_333_335],
        SlidingWindow(NAME, rate): [window_us + period_us + 1, window_us + period_us + 33_333_333_335],
        SlidingLog(NAME, rate): [NOW_US + 7 + period_us] * 2,
    }
    bench.now_us += 7
    for limit, retries_us in expected.items():
        bench.drain(limit)
        assert [bench.look(limit, cost=1 + more).retry_us for more in range(len(retries_us))] == retries_us, limit
    day = "99999989/d"
    large: list[Limit] = [TokenBucket(NAME, day, burst=99_999_989), FixedWindow(NAME, day), SlidingWindow(NAME, day)]
    for limit in large:
        assert bench.decide(limit, cost=99_999_980).allowed
        assert bench.count_admitted(limit) == 9, limit


def test_a_job_of_two_units_waits_for_both(bench: Bench) -> None:
    """A cost of three is admitted when three units are free; a job of two units delays the next by two intervals."""
    bench.drain(TEN, ONE)
    assert bench.decide(TEN, cost=3).retry_us == NOW_US + 3 * STEP_US
    for id, cost in (("a", 1), ("b", 2), ("c", 1)):
        bench.decide(TEN, cost=cost, job=id)
    admitted: list[tuple[str, int]] = []
    for step in range(1, 5):
        bench.now_us = NOW_US + step * STEP_US
        for id in bench.woken_jobs(TEN):
            assert bench.decide(TEN, cost=2 if id == "b" else 1, job=id).allowed
            admitted.append((id, step))
    assert admitted == [("a", 1), ("b", 3), ("c", 4)]
