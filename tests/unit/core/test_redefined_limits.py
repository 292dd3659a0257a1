"""A definition that changes on a live key: it applies at once, admits at most the new burst, and corrupts nothing."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from throttlekit import (
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

ALGORITHMS: tuple[Any, ...] = (TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog)
EVERY: dict[str, Limit] = {
    "token bucket": TokenBucket("api", "5/minute", burst=5),
    "leaky bucket": LeakyBucket("api", "5/minute"),
    "fixed window": FixedWindow("api", "5/minute"),
    "fixed window in Tokyo": FixedWindow("api", "5/minute", tz="Asia/Tokyo"),
    "sliding window": SlidingWindow("api", "5/minute"),
    "sliding log": SlidingLog("api", "5/minute"),
    "for each queue": SlidingLog("api", "5/minute", scope="queue"),
    "for each job": SlidingLog("api", "5/minute", scope="job"),
    "with tiers": SlidingLog("api", {"free": "5/minute"}, tier=lambda job: "free"),
}


def job(id: str = "1") -> Job:
    return Job(id=id, name="call", queue="call")


def drain(limiter: Limiter, limit: Limit) -> int:
    """Request until a denial; return the number of grants."""
    granted = 0
    while limiter.acquire(limit, job=job("")):
        granted += 1
    return granted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_raised_limit_takes_effect_at_once(store: MemoryStore, algorithm: Any) -> None:
    """From 1/day to 100/s: the next job is granted, although the waitlist was days long."""
    old, new = algorithm("api", "1/day"), algorithm("api", "100/s")
    before, after = Limiter(store), Limiter(store)
    drain(before, old)
    waiting = [before.acquire(old, job=job(str(n))) for n in range(9)]
    assert waiting[-1].delay > 0
    assert after.acquire(new, job=job("new"))
    assert after.acquire(new, job=job("8"), cost=0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lowered_limit_admits_its_new_burst_at_most(store: MemoryStore, clock: FakeClock, algorithm: Any) -> None:
    """From 100/s to 1/day: whatever the old limit had left, the new one admits at most its burst."""
    old, new = algorithm("api", "100/s"), algorithm("api", "1/day")
    before, after = Limiter(store), Limiter(store)
    before.acquire(old)
    assert drain(after, new) == 1
    clock.advance(3600)
    assert drain(after, new) == 0


@pytest.mark.parametrize(("old", "new"), list(permutations(EVERY, 2)))
def test_another_definition_never_uses_the_old_state(store: MemoryStore, old: str, new: str) -> None:
    """Another algorithm, option, scope or tier under the same name starts empty, and neither affects the other."""
    before, after = Limiter(store), Limiter(store)
    first, second = drain(before, EVERY[old]), drain(after, EVERY[new])
    assert first == drain(Limiter(MemoryStore(clock_us=FakeClock())), EVERY[old])
    assert second == drain(Limiter(MemoryStore(clock_us=FakeClock())), EVERY[new])
    assert not before.acquire(EVERY[old], job=job())
    assert not after.acquire(EVERY[new], job=job())


@pytest.mark.parametrize("name", ["token bucket", "leaky bucket", "fixed window", "sliding window", "sliding log"])
def test_two_definitions_side_by_side_are_independent(store: MemoryStore, clock: FakeClock, name: str) -> None:
    """While a fleet has two definitions, neither returns units that the other has taken."""
    old, new = EVERY[name], type(EVERY[name])("api", "3/minute")  # type: ignore[call-arg]
    before, after = Limiter(store), Limiter(store)
    drain(before, old)
    drain(after, new)
    for _ in range(5):
        assert not before.acquire(old)
        assert not after.acquire(new)
        clock.advance(0.1)


@pytest.mark.parametrize(("old", "new"), list(permutations(list(EVERY)[:6], 2)))
def test_jobs_of_the_old_definition_wait_again(store: MemoryStore, clock: FakeClock, old: str, new: str) -> None:
    """A job that waited under the old definition waits behind those of the new one, and is granted in its turn."""
    before, after = Limiter(store), Limiter(store)
    drain(before, EVERY[old])
    assert not before.acquire(EVERY[old], job=job("moved"))
    drain(after, EVERY[new])
    ahead = after.acquire(EVERY[new], job=job("ahead"))
    moved = after.acquire(EVERY[new], job=job("moved"))
    assert moved.reason == "exhausted"
    assert moved.delay >= ahead.delay  # the jobs of a fixed window are granted at its start
    clock.advance(ahead.delay)
    assert after.acquire(EVERY[new], job=job("ahead"))
    clock.advance(moved.delay - ahead.delay)
    assert after.acquire(EVERY[new], job=job("moved"))


def test_key_and_cost_may_change_and_positions_stay(store: MemoryStore, clock: FakeClock) -> None:
    """A queue, a cost and a key template do not affect the count: waiting jobs keep their positions."""
    old = LeakyBucket("api", "1/s", key="{account}", queue=9)
    new = LeakyBucket("api", "1/s", key=lambda job: job.kwargs["account"], queue=3)
    before, after = Limiter(store), Limiter(store)
    before.acquire(old, key=7)
    jobs = [Job(id=id, kwargs={"account": 7}) for id in "ab"]
    assert not any(before.acquire(old, job=job) for job in jobs)
    clock.advance(0.5)
    assert after.acquire(new, job=jobs[0]).delay == 0.45
    clock.advance(0.48)
    assert not after.acquire(new, job=jobs[1])
    assert after.acquire(new, job=jobs[0])


@pytest.mark.parametrize(("one", "other"), list(permutations(EVERY, 2)))
def test_one_name_has_one_definition_in_a_process(one: str, other: str) -> None:
    """In one process, two definitions under one name are a mistake; the message shows both."""
    limiter = Limiter()
    limiter.declare(EVERY[one])
    with pytest.raises(ConfigurationError) as caught:
        limiter.acquire(EVERY[other], job=job())
    assert str(caught.value) == (
        f"the name 'api' is used for two limits: {EVERY[one]!r} and {EVERY[other]!r}. "
        "The same name is the same budget: give one of them another name, or use one object for both."
    )


@pytest.mark.parametrize("verb", ["acquire", "peek", "reset"])
@pytest.mark.parametrize("name", EVERY)
def test_limit_given_twice_is_an_error(verb: str, name: str) -> None:
    """Each limit is given once, with a cost; this includes an equal object, and a limit together with its tier."""
    limit = EVERY[name]
    for again in (limit, limit.for_job(job())):
        with pytest.raises(ConfigurationError) as caught:
            getattr(Limiter(), verb)(limit, TokenBucket("other", "1/s"), again, job=job())
        assert str(caught.value) == "limit 'api' was given twice: name it once, with a cost"
