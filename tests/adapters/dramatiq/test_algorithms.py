"""Every algorithm, scope and outcome as a job of Dramatiq's meets it; and a body that settles its cost."""

from __future__ import annotations

from typing import Any

import pytest
from dramatiq.middleware.asyncio import AsyncIO

from support.dramatiq.helpers import Recording, Site, dead_letters
from support.waiting import wait_until
from throttlekit import FixedWindow, LeakyBucket, Limit, Limiter, SlidingLog, SlidingWindow, TokenBucket, current
from throttlekit_dramatiq import Throttle

EVERY = [
    TokenBucket("token", "10/s", burst=4),
    LeakyBucket("leaky", "10/s"),
    FixedWindow("fixed", "10/s"),
    SlidingWindow("sliding", "20/s"),
    SlidingLog("log", "20/s"),
]


def throttled(site: Site, **options: Any) -> Recording:
    store = Recording()
    site.broker.add_middleware(Throttle(Limiter(store), **options))
    return store


@pytest.mark.parametrize("limit", EVERY, ids=lambda limit: limit.algorithm)
def test_every_algorithm_holds_jobs_back_and_lets_each_run_once(site: Site, limit: Limit) -> None:
    """More jobs than pass at once: each runs once, after the store's own yes, and some have waited."""
    store = throttled(site)

    @site.actor(throttle=limit)
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(2 * limit.capacity + 3):
        job.send(n)
    with site.working():
        site.until_ran(2 * limit.capacity + 3)
    assert sorted(site.ran) == list(range(2 * limit.capacity + 3))
    assert store.grants == len(site.ran)
    assert store.denials > 0


def test_rate_of_the_application_changes_while_the_worker_runs(site: Site) -> None:
    """Jobs run at the rate that their tenant has when they are decided, and are counted in one place at every rate."""
    rates = {"acme": "5/s"}
    store = throttled(site)

    @site.actor(throttle=TokenBucket("varying", lambda job: rates[job.arguments["tenant"]], key="{tenant}"))
    def job(n: int, tenant: str) -> None:
        site.ran.append(n)

    for n in range(8):
        job.send(n, "acme")
    with site.working():
        site.until_ran(3)
        rates["acme"] = "20/s"
        for n in range(8, 20):
            job.send(n, "acme")
        site.until_ran(20)
    assert sorted(site.ran) == list(range(20))
    assert (store.grants, store.denials > 0) == (20, True)
    assert len({claim.bucket for request, _ in store.asked for claim in request.claims}) == 1


def test_five_limits_of_five_algorithms_are_one_decision(stub: Site) -> None:
    """A job under five limits asks once, and is charged by all of them."""
    store = throttled(stub)

    @stub.actor(throttle=EVERY)
    def job() -> None:
        stub.ran.append(1)

    job.send()
    with stub.working():
        stub.until_ran(1)
    assert [len(request.claims) for request, _ in store.asked] == [5]


@pytest.mark.parametrize(("when_over", "ran", "dead"), [("fail", 3, 4), ("drop", 3, 0), ("run", 7, 0)])
def test_a_full_queue_refuses_by_the_outcome_chosen(stub: Site, when_over: Any, ran: int, dead: int) -> None:
    """A leaky bucket with room for two: of seven jobs one passes, two wait, and four end as `when_over` says."""
    stub.broker.add_middleware(Throttle(Limiter(), when_over=when_over))

    @stub.actor(throttle=LeakyBucket("leaky", "2/3s", queue=2))
    def job(n: int) -> None:
        stub.ran.append(n)

    for n in range(7):
        job.send(n)
    with stub.working(threads=1):
        stub.until_ran(ran)
    assert len(stub.ran) == ran
    assert len(dead_letters(stub.broker, stub.queue)) == dead


def test_a_body_settles_what_it_took(stub: Site) -> None:
    """`current().settle()` gives back what the job did not need: the next one passes at once."""
    store = Recording()
    limiter = Limiter(store)
    tokens = TokenBucket("tokens", "100/hour", burst=100, cost=lambda job: job.kwargs["most"])
    stub.broker.add_middleware(Throttle(limiter))

    @stub.actor(throttle=tokens)
    def job(*, most: int, actual: int) -> None:
        current().settle(actual)
        stub.ran.append(limiter.peek(tokens, cost=1).remaining)

    with stub.working(threads=1):
        for number, most in enumerate((90, 90, 80), 1):
            job.send(most=most, actual=10)
            stub.until_ran(number)
    assert stub.ran == [90, 80, 70]


def test_an_async_body_settles_too(stub: Site) -> None:
    """An async body runs in the event loop's thread, and finds its own decision there all the same."""
    store = Recording()
    limiter = Limiter(store)
    tokens = TokenBucket("tokens", "100/hour", burst=100, cost=50)
    stub.broker.add_middleware(Throttle(limiter))
    stub.broker.add_middleware(AsyncIO())

    @stub.actor(throttle=tokens)
    async def job() -> None:
        current().settle(1)
        current().settle(3)
        stub.ran.append(limiter.peek(tokens, cost=1).remaining)

    job.send()
    with stub.working():
        stub.until_ran(1)
    assert stub.ran == [97]


def test_a_decision_ends_with_its_job(stub: Site) -> None:
    """A job without limits that the same thread runs next finds no decision of the one before."""
    throttled(stub)

    @stub.actor(throttle=TokenBucket("any", "100/s"))
    def limited() -> None:
        stub.ran.append(current().decision)

    @stub.actor
    def free() -> None:
        stub.ran.append(current().decision)

    with stub.working(threads=1):
        limited.send()
        stub.until_ran(1)
        free.send()
        stub.until_ran(2)
    assert stub.ran[0].allowed
    assert stub.ran[1] is None


def test_tiers_and_queues_are_counted_apart(stub: Site) -> None:
    """A job is held to its tier's rate, and a limit per queue counts this queue only."""
    store = throttled(stub)
    plan = TokenBucket("plan", {"free": "1/hour", "pro": "100/hour"}, tier="{plan}", burst=1, scope="queue")

    @stub.actor(throttle=plan)
    def job(plan: str) -> None:
        stub.ran.append(plan)

    for plan_name in ("free", "pro"):
        job.send(plan_name)
    with stub.working():
        stub.until_ran(2)
    assert len(store.names()) == 2
    assert all(stub.queue in name for name in store.names())


def test_a_limit_of_the_process_asks_nobody(stub: Site) -> None:
    """A job that its own process's share denies costs no call to the shared store, and comes back."""
    store = throttled(stub)

    @stub.actor(throttle=[TokenBucket("share", "20/s", burst=1, scope="process"), TokenBucket("all", "1000/s")])
    def job(n: int) -> None:
        stub.ran.append(n)

    for n in range(6):
        job.send(n)
    with stub.working():
        wait_until(lambda: len(stub.ran) == 6, description="all have run")
    assert (store.grants, store.denials) == (6, 0)
