"""Slots of concurrency limits: held while a body runs and no longer, whatever becomes of it; and who is woken next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from dramatiq.middleware import AsyncIO, Middleware, MiddlewareError, SkipMessage

import throttlekit
from support.dramatiq.helpers import Site, dead_letters, left_over, working
from support.waiting import wait_until
from throttlekit import Concurrency, Limiter
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.waitlist import Wake
from throttlekit_dramatiq import Throttle

SLOTS = Concurrency("reports-db", 2, lease=30)
ONE = Concurrency("one", 1, lease=30)


class Refused(MiddlewareError):
    """What a middleware of the user's may raise."""


class Behind(Middleware):
    """A middleware of the user's, behind ours: does to messages what it is told to."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def before_process_message(self, broker: Any, message: Any) -> None:
        self._act()


class Operations(Middleware):
    """Counts what the broker is asked."""

    def __init__(self) -> None:
        self.enqueued = 0
        self.acked = 0

    def after_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self.enqueued += 1

    def after_ack(self, broker: Any, message: Any) -> None:
        self.acked += 1


def free(limiter: Limiter, limit: Concurrency = SLOTS) -> bool:
    """Whether all slots are free, and no lease is renewed any more."""
    kept = [heartbeat._known.kept for heartbeat in limiter._leases._heartbeats.values()]
    return limiter.peek(limit).remaining == limit.amount and not any(kept)


def fail() -> None:
    raise RuntimeError("broken")


def skip() -> None:
    raise SkipMessage("not today")


@pytest.mark.parametrize("end", [lambda: None, fail, skip], ids=["returns", "fails", "skips"])
def test_a_slot_is_held_while_the_body_runs_and_free_afterwards(site: Site, end: Callable[[], None]) -> None:
    """One of the two slots is taken while the body runs; however it ends, both are free soon after."""
    limiter = Limiter()
    site.broker.add_middleware(Throttle(limiter))

    @site.actor(throttle=SLOTS, max_retries=0)
    def job() -> None:
        site.ran.append((limiter.peek(SLOTS).remaining, throttlekit.current().decision is not None))
        end()

    job.send()
    with site.working():
        site.until_ran(1)
        wait_until(lambda: free(limiter), description="the slot is free")
    assert site.ran == [(1, True)]


def test_a_body_that_runs_into_its_time_limit_gives_its_slot_back(stub: Site) -> None:
    """Interrupted in its thread: the slot is free, and the message fails as it does without us."""
    limiter = Limiter()
    stub.broker.add_middleware(Throttle(limiter))
    stub.broker.emit_after("process_boot")

    @stub.actor(throttle=SLOTS, max_retries=0, time_limit=100)
    def job() -> None:
        stub.ran.append(1)
        wait_until(lambda: False, description="the time limit strikes", timeout=20)

    job.send()
    with stub.working():
        stub.until_ran(1)
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="it is dead-lettered")
        wait_until(lambda: free(limiter), description="the slot is free")


def refuse() -> None:
    raise Refused("no")


@pytest.mark.parametrize("act", [skip, refuse], ids=["skipped", "refused"])
def test_a_message_that_a_later_middleware_stops_gives_its_slot_back(site: Site, act: Callable[[], None]) -> None:
    """Granted, and then stopped before its body began: the slot is free, and nobody renews it."""
    limiter = Limiter()
    site.broker.add_middleware(Throttle(limiter))
    site.broker.add_middleware(Behind(act))

    @site.actor(throttle=SLOTS, max_retries=0)
    def job() -> None:
        site.ran.append(1)

    job.send()
    with site.working() as worker:
        wait_until(lambda: worker.broker and site.idle(worker), description="the message is gone")
        wait_until(lambda: free(limiter), description="the slot is free")
        if act is refuse:
            wait_until(lambda: dead_letters(site.broker, site.queue), description="it is dead-lettered")
    assert site.ran == []


def test_an_async_body_holds_its_slot_and_sees_its_decision(stub: Site) -> None:
    """The body of an async actor runs in another thread: it holds a slot as any does."""
    limiter = Limiter()
    stub.broker.add_middleware(AsyncIO())
    stub.broker.add_middleware(Throttle(limiter))

    @stub.actor(throttle=SLOTS)
    async def job() -> None:
        decision = throttlekit.current().decision
        stub.ran.append((limiter.peek(SLOTS).remaining, len(decision.leases) if decision else 0))

    job.send()
    with stub.working():
        stub.until_ran(1)
        wait_until(lambda: free(limiter), description="the slot is free")
    assert stub.ran == [(1, 1)]


def test_a_job_that_runs_beyond_its_limit_holds_no_slot(stub: Site) -> None:
    """on_waited_too_long="run": the third of three runs while two hold the slots, and takes none when it ends."""
    limiter = Limiter()
    stub.broker.add_middleware(Throttle(limiter, max_wait=0, on_waited_too_long="run"))
    go = threading.Event()

    @stub.actor(throttle=SLOTS)
    def job() -> None:
        decision = throttlekit.current().decision
        stub.ran.append(decision is not None and len(decision.leases))
        go.wait(60)

    for _ in range(3):
        job.send()
    with stub.working(threads=3):
        stub.until_ran(3)
        assert limiter.peek(SLOTS).remaining == 0
        go.set()
        wait_until(lambda: free(limiter), description="the slots are free")
    assert sorted(stub.ran) == [False, 1, 1]


def test_never_more_at_once_than_the_limit_says_on_one_worker(site: Site) -> None:
    """Thirty jobs, two slots, six threads: two at once at the most, and each runs once."""
    limiter = Limiter()
    site.broker.add_middleware(Throttle(limiter))
    inside, most = list[int](), list[int]()

    @site.actor(throttle=SLOTS)
    def job(n: int) -> None:
        inside.append(n)
        most.append(len(inside))
        throttlekit.current().check()
        inside.remove(n)
        site.ran.append(n)

    for n in range(30):
        job.send(n)
    with site.working(threads=6):
        site.until_ran(30)
        wait_until(lambda: free(limiter), description="the slots are free")
    assert sorted(site.ran) == list(range(30))
    assert max(most) <= 2


@pytest.fixture
def waiting(site: Site) -> tuple[Site, Throttle, Operations, threading.Event, Any]:
    """One slot, and a body that holds it until it is told to go on."""
    throttle, operations, go = Throttle(Limiter()), Operations(), threading.Event()
    site.broker.add_middleware(operations)
    site.broker.add_middleware(throttle)

    @site.actor(throttle=ONE)
    def job(n: int) -> None:
        site.ran.append(n)
        if n == 0:
            go.wait(120)

    job.send(0)
    return site, throttle, operations, go, job


def held(worker: Any, site: Site) -> int:
    """How many messages the worker holds: as many as `Worker.join` waits for."""
    return int(worker.consumers[site.queue].delay_queue.unfinished_tasks)


def test_a_waiting_message_is_woken_when_a_slot_comes_free(
    waiting: tuple[Site, Throttle, Operations, threading.Event, Any],
) -> None:
    """Five wait: as each body ends the next one runs, in their order. `Worker.join` returns when all have run."""
    site, throttle, _, go, job = waiting
    with site.working(threads=2) as worker:
        site.until_ran(1)
        for n in range(1, 6):
            job.send(n)
            wait_until(lambda: held(worker, site) == n, description=f"{n} wait")  # noqa: B023
        go.set()
        worker.join()
        assert site.ran == [0, 1, 2, 3, 4, 5]
        wait_until(lambda: free(throttle.limiter, ONE), description="the slot is free")


def test_a_message_that_is_woken_in_vain_waits_on_and_the_broker_hears_nothing(
    waiting: tuple[Site, Throttle, Operations, threading.Event, Any],
) -> None:
    """The slot is not free: the message is held as before, and nothing was enqueued or acknowledged."""
    site, throttle, operations, go, job = waiting
    bucket = bucket_name(ONE.name, "", ONE.fingerprint)
    with site.working(threads=2) as worker:
        waker = throttle._holding.waker
        site.until_ran(1)
        id_ = job.send(1).message_id
        wait_until(lambda: held(worker, site) == 1, description="it waits")
        before = operations.enqueued, operations.acked
        for _ in range(20):
            denials = waker.waited_of(id_).denials
            waker.on_wakes(bucket, [Wake(id_, 0)])
            wait_until(
                lambda: waker.waited_of(id_).denials > denials and held(worker, site) == 1,  # noqa: B023
                description="it was denied once more, and waits again",
            )
        assert (operations.enqueued, operations.acked) == before
        go.set()
        site.until_ran(2)
    assert site.ran == [0, 1]


def test_a_slot_that_another_process_gives_back_is_found(site: Site) -> None:
    """No body runs here whose end would wake anybody: the store wakes those that wait."""
    limiter = Limiter()
    site.broker.add_middleware(Throttle(limiter))
    elsewhere = [limiter.acquire(SLOTS) for _ in range(2)]

    @site.actor(throttle=SLOTS)
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(6):
        job.send(n)
    with site.working(threads=4) as worker:
        wait_until(lambda: held(worker, site) == 6, description="they wait")
        for decision in elsewhere:
            assert decision.allowed
            limiter.release(decision)
        site.until_ran(6)
        wait_until(lambda: free(limiter), description="the slots are free")
    assert sorted(site.ran) == list(range(6))


def test_nobody_is_woken_for_a_slot_of_another_limit(
    waiting: tuple[Site, Throttle, Operations, threading.Event, Any],
) -> None:
    """A body that ends wakes those that wait for what it held; a job of another limit, or of none, wakes nobody."""
    site, throttle, _, go, job = waiting
    other = site.actor(lambda: site.ran.append("other"), actor_name="other", throttle=SLOTS)
    plain = site.actor(lambda: site.ran.append("plain"), actor_name="plain")
    with site.working(threads=2) as worker:
        site.until_ran(1)
        job.send(1)
        wait_until(lambda: held(worker, site) == 1, description="it waits")
        other.send()
        plain.send()
        site.until_ran(3)
        wait_until(lambda: throttle.limiter.peek(SLOTS).remaining == 2, description="the other's slot is free")
        assert 1 not in site.ran
        go.set()
        site.until_ran(4)


def test_a_worker_that_stops_gives_back_whom_it_did_not_wake(
    waiting: tuple[Site, Throttle, Operations, threading.Event, Any],
) -> None:
    """Those that still wait when the worker is stopped are in the broker, with those just woken: each once."""
    site, throttle, _, go, job = waiting
    with working(site.broker, 2) as worker:
        site.until_ran(1)
        for n in range(1, 201):
            job.send(n)
        wait_until(lambda: held(worker, site) == 200, description="they wait")
        go.set()
        site.until_ran(20)
    ran = len(site.ran)
    if site.kind != "rabbitmq":
        assert left_over(site.broker, site.queue) == 201 - ran
    else:
        wait_until(lambda: left_over(site.broker, site.queue) == 201 - ran, description="the others are in the broker")
    assert sorted(set(site.ran)) == sorted(site.ran)
    assert free(throttle.limiter, ONE)
