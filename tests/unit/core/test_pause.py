"""
A pause denies every job, in the whole fleet. Afterwards the limit continues with its count; after a 429, it continues
as if it had been used at its rate until then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest

from support.claims import claim_of
from support.servers.blocking import either
from throttlekit import (
    Concurrency,
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core import decide, wait_control
from throttlekit._core.answer import Answer, Caller, Reason, Requester
from throttlekit._core.decide import Stored
from throttlekit._core.limit.base import Limit
from throttlekit._core.slowdown import Pause
from throttlekit._core.waitlist import KEPT_US, Waitlist
from throttlekit._engine.call import Call
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

NOW_US = 1_800_000_000_000_000
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US

RATES: list[Limit] = [
    TokenBucket("token", "60/minute", burst=20),
    TokenBucket("single", "10/s", burst=1),
    LeakyBucket("leaky", "60/minute"),
    FixedWindow("fixed", "60/minute"),
    SlidingWindow("sliding", "60/minute"),
    SlidingLog("log", "60/minute"),
    SlidingLog("long-log", "200/minute"),
]
every_rate = pytest.mark.parametrize("limit", RATES, ids=lambda limit: limit.name)
every_limit = pytest.mark.parametrize("limit", [*RATES, Concurrency("slots", 3)], ids=lambda limit: limit.name)


def is_listening(*_: object) -> bool:
    """Every owner listens."""
    return True


def pause(limit: Limit, state: Stored, now_us: int, for_us: int | None, *, emptied: bool = False) -> Stored:
    return wait_control.pause(claim_of(limit.bind(1, now_us)), deepcopy(state), now_us, for_us, emptied, is_listening)


pause_after_429 = partial(pause, emptied=True)
each_kind = pytest.mark.parametrize("begin", [pause, pause_after_429], ids=["pause", "429"])


def pause_of(state: Stored) -> Pause:
    return state.waitlist.pause if state.waitlist else Pause()


def request(
    limit: Limit, state: Stored, now_us: int, *, job: str = "new", caller: Caller = Caller.JOB, cost: int = 1
) -> tuple[Answer, Stored]:
    """Request units for *job*; *state* is not changed. All jobs have one owner, which has enough threads."""
    claim = claim_of(limit.bind(cost, now_us, f"holder-{now_us}-{job}"), cost, limit.queue)
    requester = Requester(caller) if caller is Caller.WITHOUT_JOB else Requester(caller, job, "owner", 99)
    answer, (after,) = decide.decide([claim], [deepcopy(state)], now_us, requester, is_listening, "epoch")
    return answer, after


def look_and_request(limit: Limit, state: Stored, now_us: int, job: str) -> tuple[Answer, Stored]:
    """Look as the owner of *job*, then request units for it."""
    _, state = decide.look(claim_of(limit.bind(1, now_us)), state, now_us, "owner", 99, (), is_listening)
    return request(limit, state, now_us, job=job)


def used(limit: Limit, times: int) -> Any:
    """Return the state after *times* requests at `NOW_US`."""
    state = Stored()
    for _ in range(times):
        _, state = request(limit, state, NOW_US, caller=Caller.WITHOUT_JOB)
    return state.taken


@pytest.fixture(params=["sync", "async"])
def limiter(request: pytest.FixtureRequest, store: MemoryStore) -> Iterator[Limiter]:
    with either(request.param, store) as limiter:
        yield limiter


# During a pause


@every_limit
@each_kind
@pytest.mark.parametrize("caller", [Caller.JOB, Caller.WITHOUT_JOB, Caller.PEEK])
@pytest.mark.parametrize("for_s", [1, 30, 7200 + 60, 86_400])
def test_no_job_is_granted_before_the_pause_is_over(limit: Limit, begin: Any, caller: Caller, for_s: int) -> None:
    """Until the last microsecond, new and waiting jobs are denied with the reason."""
    until_us = NOW_US + for_s * SECOND_US
    _, state = request(limit, begin(limit, Stored(), NOW_US, for_s * SECOND_US), NOW_US, job="waits")
    for now_us in (NOW_US, NOW_US + 1, (NOW_US + until_us) // 2, until_us - 1):
        for job in ("new", "waits"):
            answer, after = request(limit, state, now_us, caller=caller, job=job)
            assert answer.reason is Reason.PAUSED
            assert answer.retry_us >= until_us
            if caller is Caller.PEEK:
                assert wait_control.list_waiting(after, 9) == wait_control.list_waiting(state, 9)
                assert (after.taken, pause_of(after)) == (state.taken, pause_of(state))


@every_limit
def test_cost_zero_is_granted_during_a_pause(limit: Limit) -> None:
    """A request that takes no units does not reach the downstream service that the limit protects."""
    verdict, _ = request(limit, pause(limit, Stored(), NOW_US, SECOND_US), NOW_US, cost=0)
    assert verdict.allowed


def test_queue_of_length_zero_is_full_during_a_pause() -> None:
    """A `LeakyBucket` whose queue has room keeps jobs waiting behind the pause; otherwise it refuses them."""
    roomy, none = LeakyBucket("roomy", "1/s", queue=2), LeakyBucket("none", "1/s", queue=0)
    state, reasons = pause(roomy, Stored(), NOW_US, 10 * SECOND_US), list[Reason]()
    for number in range(5):
        verdict, state = request(roomy, state, NOW_US, job=f"{number}")
        reasons.append(verdict.reason)
    assert reasons == [Reason.PAUSED] * 2 + [Reason.FULL] * 3
    assert request(none, pause(none, Stored(), NOW_US, SECOND_US), NOW_US)[0].reason is Reason.FULL


# After a pause


@every_limit
@pytest.mark.parametrize("before", [0, 1, 1000])
@pytest.mark.parametrize("for_s", [1, 30, 90, 7200])
def test_count_continues_as_if_there_had_been_no_pause(limit: Limit, before: int, for_s: int) -> None:
    """After a pause without a 429, each request is decided as if there had been no pause."""
    state = Stored(used(limit, before))
    paused, until_us = pause(limit, state, NOW_US, for_s * SECOND_US), NOW_US + for_s * SECOND_US
    for now_us in range(until_us, until_us + limit.period_us + 1, max(1, limit.period_us // 97)):
        (actual, paused), (expected, state) = (
            request(limit, each, now_us, caller=Caller.WITHOUT_JOB) for each in (paused, state)
        )
        assert actual == expected
        assert paused.taken == state.taken


@every_rate
@pytest.mark.parametrize("before", [0, 1000])
def test_waiting_jobs_are_granted_as_units_become_free(limit: Limit, before: int) -> None:
    """Jobs get the units that are free at the end of the pause, then those that follow, each at its retry time."""
    state, until_us = Stored(used(limit, before)), NOW_US + 45 * SECOND_US
    free = limit.bind(1, until_us).there(state.taken, until_us)
    state = pause(limit, state, NOW_US, until_us - NOW_US)
    waiting: list[int] = []
    for number in range(free + 5):
        answer, state = request(limit, state, NOW_US, job=f"{number}")
        waiting.append(answer.retry_us)
    assert [retry_us == until_us for retry_us in waiting] == [True] * free + [False] * 5
    for number, retry_us in enumerate(waiting):
        answer, state = look_and_request(limit, state, retry_us, f"{number}")
        assert answer.allowed


@every_rate
@pytest.mark.parametrize("before", [0, 1, 1000])
def test_no_burst_after_a_429(limit: Limit, before: int) -> None:
    """
    Whatever was used before the 429, the limit continues as if it had been used evenly, at its rate, until the end of
    the pause: over any part of the first period it admits no more than its rate, to one unit. A fixed window has as
    much of its units left as of its time.
    """
    until_us = NOW_US + 30 * SECOND_US
    state = pause_after_429(limit, Stored(used(limit, before)), NOW_US, 30 * SECOND_US)
    step_us = limit.period_us // limit.amount
    runs_us: list[int] = []
    for now_us in range(until_us, until_us + limit.period_us + 1, max(1, step_us // 10)):
        verdict, state = request(limit, state, now_us, caller=Caller.WITHOUT_JOB)
        if verdict.allowed:
            runs_us.append(now_us)
    if isinstance(limit, FixedWindow):
        edge_us = -(-until_us // limit.period_us) * limit.period_us
        assert sum(run_us < edge_us for run_us in runs_us) == (0 if before == 1000 else 30)
        return
    # A log of many units stores one time for a group of them.
    group = 1 + limit.amount // 64 if isinstance(limit, SlidingLog) else 1
    for number, run_us in enumerate(runs_us, 1):
        assert number <= (run_us - until_us) / step_us + group
    assert len(runs_us) >= 0.45 * limit.amount


@every_rate
def test_limit_is_empty_after_a_429(limit: Limit) -> None:
    """At the end of a pause after a 429 no unit is free, except for the rest of a fixed window."""
    state = pause_after_429(limit, Stored(), NOW_US, 30 * SECOND_US)
    until_us = NOW_US + 30 * SECOND_US
    seen, _ = request(limit, state, until_us, caller=Caller.PEEK)
    if isinstance(limit, FixedWindow):
        assert limit.remaining(seen.uses[0], until_us) == 30
        return
    assert not seen.allowed
    assert seen.reason is Reason.EXHAUSTED
    assert limit.remaining(seen.uses[0], until_us) <= max(1, limit.capacity // 10)


@pytest.mark.parametrize("amount", [1, 3, 60, 200])
@pytest.mark.parametrize("seed", range(5))
def test_pauses_do_not_break_the_bound_of_a_log(amount: int, seed: int) -> None:
    """However often a log is paused and resumed, no window of its period admits more than the amount."""
    limit, rnd, state, now_us = SlidingLog("log", f"{amount}/minute"), random.Random(seed), Stored(), NOW_US
    runs_us: list[int] = []
    for _ in range(3000):
        now_us += rnd.choice([0, 0, 1, rnd.randrange(2 * limit.period_us // amount)])
        if rnd.random() < 0.02:
            for_us = rnd.choice([None, 1, SECOND_US, limit.period_us // 2])
            state = pause(limit, state, now_us, for_us, emptied=rnd.random() < 0.5)
        verdict, state = request(limit, state, now_us, caller=Caller.WITHOUT_JOB)
        if verdict.allowed:
            runs_us.append(now_us)
    assert len(runs_us) > amount
    assert all(later - first >= limit.period_us for first, later in zip(runs_us, runs_us[amount:], strict=False))


@every_rate
def test_heavier_use_is_not_forgotten(limit: Limit) -> None:
    """What was charged beyond the end of the pause, or settled beyond the limit, still counts afterwards."""
    charge = limit.bind(1, NOW_US)
    ahead_us = NOW_US + 40 * SECOND_US
    state: Any = None
    for _ in range(limit.capacity):
        state = charge.admit(state, ahead_us)
    state = charge.settle(state, ahead_us, ahead_us, 3 * charge.size)
    exhausted = charge.exhaust(state, NOW_US)
    assert charge.ready_us(exhausted, ahead_us) >= charge.ready_us(state, ahead_us)
    fresh = charge.exhaust(None, ahead_us)
    assert charge.ready_us(charge.exhaust(state, ahead_us), ahead_us) >= charge.ready_us(fresh, ahead_us)
    if isinstance(limit, SlidingWindow):
        later = charge.admit(None, NOW_US + 2 * limit.period_us)
        assert charge.exhaust(later, NOW_US) is later


@every_limit
@each_kind
def test_grant_ends_the_pause(limit: Limit, begin: Any) -> None:
    """The first grant afterwards removes the pause, but not the units that the pause counted as used."""
    state = begin(limit, Stored(), NOW_US, 7200 * SECOND_US + 1)
    now_us = NOW_US + 7200 * SECOND_US + 1
    while not (answer := request(limit, state, now_us))[0].allowed:
        now_us = answer[0].retry_us
    after = answer[1]
    assert after.waitlist is None
    again, _ = request(limit, after, now_us, caller=Caller.PEEK)
    if not isinstance(limit, Concurrency):
        assert again.uses[0] is not None
        assert again.uses[0].full_us > now_us


def test_denial_of_another_limit_leaves_the_limit_used_up() -> None:
    """If another limit denies the first job after a 429, the limit still counts as used up: no burst follows."""
    paused, other = TokenBucket("a", "1/s", burst=9), TokenBucket("b", "1/minute", burst=1)
    charges = [paused.bind(1), other.bind(1)]
    states = [pause_after_429(paused, Stored(), NOW_US, SECOND_US), Stored(other.bind(1).admit(None, NOW_US))]
    now_us, taken = NOW_US + 3 * SECOND_US, states[0].taken
    claims = [claim_of(charge) for charge in charges]
    answer, after = decide.decide(claims, states, now_us, Requester(Caller.JOB, "job", "owner"), is_listening, "epoch")
    assert answer.claim == 1
    assert after[0].taken is taken
    granted, state = 0, after[0]
    while (again := request(paused, state, now_us, caller=Caller.WITHOUT_JOB))[0].allowed:
        granted, state = granted + 1, again[1]
    assert granted == 2


@pytest.mark.parametrize("tz", [None, "Asia/Tokyo"])
@pytest.mark.parametrize(
    ("hours", "before", "there"), [(0, 0, 10_000), (12, 0, 5_000), (12, 8_000, 2_000), (23, 0, 416)]
)
def test_fixed_window_of_a_day_is_not_used_up_by_a_429(tz: str | None, hours: int, before: int, there: int) -> None:
    """After a 429, the day's window has the same part of its units left as of its time, unless more was used."""
    limit, ahead_us = FixedWindow("day", "10000/d", tz=tz), (9 if tz else 0) * 3600 * SECOND_US
    at_us = (NOW_US + ahead_us) // DAY_US * DAY_US - ahead_us + hours * 3600 * SECOND_US
    state = Stored(limit.bind(before, at_us).admit(None, at_us - hours))
    state = pause_after_429(limit, state, at_us - 5 * SECOND_US, 5 * SECOND_US)
    seen, _ = request(limit, state, at_us, caller=Caller.PEEK)
    assert 0 <= there - limit.remaining(seen.uses[0], at_us) <= 3, "rounded to 1/4096"


@pytest.mark.parametrize("before", [0, 3_000, 10_000])
@pytest.mark.parametrize("used", [0, 5_000, 8_000, 9_999])
def test_sliding_window_continues_at_once_after_a_429(before: int, used: int) -> None:
    """After a 429 a sliding window is full, however unevenly it was used; units become free no faster than its rate."""
    limit, at_us = SlidingWindow("day", "10000/d"), NOW_US // DAY_US * DAY_US + DAY_US // 2
    charge = limit.bind(1)
    taken = limit.bind(before).admit(None, at_us - DAY_US)
    taken = limit.bind(used).admit(taken, at_us - 1)
    after = charge.exhaust(taken, at_us)
    assert charge.use(after, at_us).units == max(10_000, charge.use(taken, at_us).units)
    if before // 2 + used < 10_000:
        assert at_us < charge.ready_us(after, at_us) <= at_us + DAY_US // (10_000 - used)
    assert charge.ready_us(after, at_us, 100) >= at_us + 100 * DAY_US // 10_000


# Merging, and ending


def test_pauses_merge_by_their_ends() -> None:
    """A later pause that ends sooner changes nothing; one that ends later replaces the first."""
    paused = Pause().change(NOW_US, 10, emptied=False)
    assert paused.change(NOW_US + 1, 5, emptied=False) is paused
    assert paused.change(NOW_US + 1, 10, emptied=False) == Pause(NOW_US + 11, NOW_US + 1)


RESUMED, CLOCK = (None, False), (0, None)
ORDERS: dict[str, tuple[list[tuple[int, Any]], tuple[int, int | None, int]]] = {
    # At which second a pause begins: its duration, and whether it is a 429. Then the end of the pause, the end of the
    # 429, and the beginning of the last one that was written.
    "a 429, then a longer pause": ([(0, (5, True)), (2, (60, False))], (62, 5, 2)),
    "a 429, then a shorter pause": ([(0, (60, True)), (2, (5, False))], (60, 60, 0)),
    "a pause, then a shorter 429": ([(0, (60, False)), (10, (5, True))], (60, 15, 10)),
    "a pause, then a longer 429": ([(0, (10, False)), (5, (60, True))], (65, 65, 5)),
    "a 429, then a longer one": ([(0, (5, True)), (2, (60, True))], (62, 62, 2)),
    "a 429, then a shorter one": ([(0, (60, True)), (2, (5, True))], (60, 60, 0)),
    "a 429 that is over, then a pause": ([(0, (5, True)), (20, (60, False))], (80, 5, 20)),
    "a pause that is over, then a 429": ([(0, (5, False)), (20, (60, True))], (80, 80, 20)),
    "a 429, resumed": ([(0, (60, True)), (3, RESUMED)], (3, 3, 3)),
    "a pause, resumed": ([(0, (60, False)), (3, RESUMED)], (3, None, 3)),
    "both, resumed before both are over": ([(0, (60, False)), (1, (30, True)), (3, RESUMED)], (3, 3, 3)),
    "both, resumed after the 429": ([(0, (60, False)), (1, (5, True)), (30, RESUMED)], (30, 6, 30)),
    "resumed when it is over": ([(0, (60, True)), (70, RESUMED)], (60, 60, 0)),
    "a 429 of no time": ([(0, (0, True))], (0, 0, 0)),
    "a later clock's 429": ([(0, (60, True)), (-1000, CLOCK)], (-940, -940, -1000)),
    "a later clock's pause": ([(0, (60, False)), (-1000, CLOCK)], (-940, None, -1000)),
    "a later clock's 429 and pause": ([(0, (5, True)), (20, (60, False)), (-1000, CLOCK)], (-940, -1015, -1000)),
    "a clock of sixty years later": ([(0, (5, True)), (2 * 10**9, (1, False)), (-1000, CLOCK)], (-999, None, -1000)),
    "a 429 after a later clock's": ([(0, (60, True)), (-1000, (5, True))], (-940, -940, -1000)),
    "a 429 after a later clock's pause": ([(0, (60, False)), (-1000, (5, True))], (-940, -995, -1000)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_429_and_a_pause_end_independently(order: str) -> None:
    """
    A pause and a 429 do not shorten each other; jobs are granted once both are over. A clock that steps back moves
    both.
    """
    limit, (events, (paused, emptied, begun)) = TokenBucket("x", "1/s"), ORDERS[order]
    state = Stored()
    for second, (for_s, is_429) in events:
        now_us, for_us = NOW_US + second * SECOND_US, None if for_s is None else for_s * SECOND_US
        if is_429 is None:
            state = Stored(None, Waitlist(pause=pause_of(state).at(now_us)))
        else:
            state = pause(limit, state, now_us, for_us, emptied=is_429)
    ends = NOW_US + paused * SECOND_US, NOW_US + begun * SECOND_US
    expected = Pause(*ends, 0 if emptied is None else NOW_US + emptied * SECOND_US)
    assert pause_of(state) == expected
    assert pause_of(wait_control.clear(state)) == expected, "removing all jobs keeps both"


def test_limit_refills_from_the_end_of_a_429_within_a_longer_pause() -> None:
    """A bucket with a 429 of 5 s and a pause of 8 s has the units of 3 s, and no more than its burst."""
    bucket = TokenBucket("bucket", "1/s", burst=5)
    for seconds, there in ((8, 3), (60, 5)):
        state, now_us = pause_after_429(bucket, Stored(), NOW_US, 5 * SECOND_US), NOW_US + seconds * SECOND_US
        state = pause(bucket, state, NOW_US + SECOND_US, (seconds - 1) * SECOND_US)
        use = request(bucket, state, now_us, cost=0)[0].uses[0]
        assert use is not None
        assert bucket.remaining(use, now_us) == there


def test_resume_ends_the_pause_at_once() -> None:
    """After `resume` the limit fills at its rate; resuming a limit that is not paused changes nothing."""
    resumed = Pause().change(NOW_US, 10_000_000, emptied=False).change(NOW_US + 5, None, emptied=False)
    assert resumed == Pause(NOW_US + 5, NOW_US + 5)
    assert resumed.change(NOW_US + 9, None, emptied=False) is resumed
    assert Pause().change(NOW_US, None, emptied=False) == Pause()


@every_limit
def test_pause_and_resume_keep_the_count_and_the_waitlist(limit: Limit) -> None:
    """A pause is stored beside the waitlist, and changes neither the count nor the entries."""
    before, number = Stored(), 0
    while before.waitlist is None or len(before.waitlist.entries) < 3:
        _, before = request(limit, before, NOW_US, job=f"{number}")
        number += 1
    paused = pause(limit, before, NOW_US, 7)
    resumed = pause(limit, paused, NOW_US, None)
    for after, until_us in ((paused, NOW_US + 7), (resumed, NOW_US)):
        assert after.waitlist is not None
        assert after.taken == before.taken
        assert wait_control.list_waiting(after, 9) == wait_control.list_waiting(before, 9)
        assert pause_of(after) == Pause(until_us, NOW_US)


# Waiting jobs


@every_rate
@each_kind
def test_jobs_keep_their_order_during_a_pause(limit: Limit, begin: Any) -> None:
    """Jobs that request again during the pause keep their positions; then they are granted in order, new ones last."""
    state, waiting, number = Stored(), dict[str, int](), 0
    while len(waiting) < 5:
        answer, state = request(limit, state, NOW_US, job=f"{number}")
        if not answer.allowed:
            waiting[f"{number}"] = answer.retry_us
        number += 1
    until_us = max(waiting.values()) + 600 * SECOND_US
    state = begin(limit, state, NOW_US, until_us - NOW_US)
    for job, retry_us in waiting.items():
        answer, state = request(limit, state, retry_us, job=job)
        assert answer.reason is Reason.PAUSED
    for job in (*waiting, "last"):
        answer, state = request(limit, state, until_us - 1, job=job)
        waiting[job] = answer.retry_us
    assert until_us <= min(waiting.values())
    assert [*waiting.values()] == sorted(waiting.values())
    for job, retry_us in waiting.items():
        answer, state = look_and_request(limit, state, retry_us, job)
        assert answer.allowed


@every_limit
@each_kind
def test_jobs_that_wait_for_the_end_stay_ahead_of_new_ones(limit: Limit, begin: Any) -> None:
    """A job that waits for the end is first, however long the pause lasts."""
    state = begin(limit, Stored(), NOW_US, 3600 * SECOND_US)
    first, state = request(limit, state, NOW_US, job="first")
    for seconds in (1000, 2000, 3500):
        late, state = request(limit, state, NOW_US + seconds * SECOND_US, job=f"{seconds}")
        assert late.retry_us >= first.retry_us
    assert wait_control.list_waiting(state, 9).jobs == 4


# How long a pause is stored


@every_limit
@each_kind
@pytest.mark.parametrize("for_s", [0, 1, 60, 10_000, 7 * 86_400])
def test_pause_is_stored_while_it_matters_and_no_longer(limit: Limit, begin: Any, for_s: int) -> None:
    """
    A pause is stored until it is over, and until the units that it counted as used count no more. Like every waitlist,
    it is stored for at least two days.
    """
    state, until_us = begin(limit, Stored(), NOW_US, for_s * SECOND_US), NOW_US + for_s * SECOND_US
    kept_us = wait_control.kept_until_us(limit.bind(1, NOW_US), state, NOW_US)
    assert kept_us >= until_us
    assert kept_us <= max(NOW_US + KEPT_US, until_us + 2 * max(limit.period_us, SECOND_US))
    fresh, _ = request(limit, Stored(), kept_us, caller=Caller.PEEK)
    known, _ = request(limit, state, kept_us, caller=Caller.PEEK)
    assert fresh.reason is known.reason is Reason.ALLOWED
    assert fresh.uses[0] is not None
    assert known.uses[0] is not None
    assert (fresh.uses[0].units, known.uses[0].units) == (0, 0), "forgetting the pause changes nothing"
    assert known.uses[0].full_us <= kept_us


# With the limiter


def test_pause_of_a_key_affects_that_key_only(limiter: Limiter) -> None:
    """Jobs of other keys, and of other limits, are still granted."""
    account = TokenBucket("account", "10/s", burst=5, key="{account}")
    limiter.pause(account, 30, key="42")
    assert limiter.peek(account, key="42").reason == "paused"
    assert limiter.acquire(account, key="43")
    assert limiter.acquire(account, job=Job(kwargs={"account": 43}))
    assert not limiter.acquire(account, job=Job(kwargs={"account": 42}))
    with pytest.raises(ConfigurationError, match="'account'"):
        limiter.pause(account, 30)


def test_resume_grants_the_units_that_accrued(limiter: Limiter, clock: FakeClock) -> None:
    """After `resume` the limit has the units that accrued; resuming a limit that is not paused does nothing."""
    partner = TokenBucket("partner", "1/s", burst=5)
    limiter.resume(partner)
    assert all(limiter.acquire(partner) for _ in range(5))
    limiter.pause(partner, 3600)
    clock.advance(3)
    limiter.resume(partner)
    assert [limiter.acquire(partner).allowed for _ in range(4)] == [True, True, True, False]


def test_resume_after_a_429_grants_at_the_rate(store: MemoryStore, clock: FakeClock) -> None:
    """Resuming after a 429 leaves the limit empty; it fills from then on."""
    limiter, partner = Limiter(store), TokenBucket("partner", "1/s", burst=5)
    limiter.pause_claims(limiter.claims(Call([partner])), 3600 * SECOND_US, emptied=True)
    clock.advance(1)
    limiter.resume(partner)
    decision = limiter.peek(partner)
    assert (decision.allowed, decision.reason, decision.retry_after) == (False, "exhausted", 1.0)
    clock.advance(2)
    assert [limiter.acquire(partner).allowed for _ in range(3)] == [True, True, False]


def test_pause_without_a_job_affects_every_tier(limiter: Limiter) -> None:
    """A pause of a limit with tiers affects all of them; with a job, only the job's tier."""
    plan = TokenBucket("plan", {"free": "1/s", "pro": "9/s"}, tier="{tier}")
    free, pro = Job(kwargs={"tier": "free"}), Job(kwargs={"tier": "pro"})
    limiter.pause(plan, 30, job=free)
    assert (limiter.peek(plan, job=free).reason, limiter.peek(plan, job=pro).reason) == ("paused", "allowed")
    limiter.pause(plan, 30)
    assert limiter.peek(plan, job=pro).reason == "paused"
    limiter.resume(plan)
    assert "paused" not in (limiter.peek(plan, job=free).reason, limiter.peek(plan, job=pro).reason)


def test_limit_of_a_process_is_paused_in_the_process(store: MemoryStore) -> None:
    """The pause of a limit of scope "process" is in that process alone, because no other counts the limit."""
    here, there, own = Limiter(store), Limiter(store), TokenBucket("own", "10/s", burst=9, scope="process")
    here.pause(own, 60)
    assert here.peek(own).reason == "paused"
    assert there.acquire(own)
    assert len(store) == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "30", None, True, 1_800_000_000])
def test_invalid_duration_is_refused(limiter: Limiter, seconds: Any) -> None:
    """A Unix timestamp in place of a duration raises at once, like a value that is not a number."""
    with pytest.raises(ConfigurationError, match=r"duration must be a number of seconds.*, not "):
        limiter.pause(TokenBucket("x", "1/s"), seconds)
    limiter.pause(TokenBucket("x", "1/s"), 366 * 86_400)


def test_memory_store_removes_a_pause_that_no_longer_matters(store: MemoryStore, clock: FakeClock) -> None:
    """The store keeps a pause for as long as it matters."""
    limiter, partner = Limiter(store), TokenBucket("partner", "1/s", burst=5)
    limiter.pause_claims(limiter.claims(Call([partner])), 7200 * SECOND_US, emptied=True)
    clock.advance(7204.9)
    assert limiter.peek(partner).remaining == 4
    clock.advance(6)
    assert limiter.peek(partner).remaining == 5


def test_debt_of_the_previous_window_outlives_a_pause() -> None:
    """A sliding window that was settled far beyond its amount still owes it when a pause ends in the next window."""
    limit, begin_us = SlidingWindow("partner", "10/m"), 60_000_000 * 30_000_000
    charge = limit.bind(1)
    owing = charge.settle(charge.admit(None, begin_us), begin_us, begin_us, 49)
    after = charge.exhaust(owing, begin_us + 70_000_000)
    assert charge.ready_us(after, begin_us + 70_000_000) >= charge.ready_us(owing, begin_us + 70_000_000)
    assert after.before == 50
