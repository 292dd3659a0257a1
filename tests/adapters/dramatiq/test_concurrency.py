"""Slots of concurrency limits: they are held only while a body runs, however it ends, and the next message is woken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from dramatiq.middleware import AsyncIO, Middleware, MiddlewareError, SkipMessage

import throttlekit
from support.dramatiq.helpers import Site, dead_letters, left_over, working
from support.waiting import wait_until
from throttlekit import Concurrency, Limiter, TokenBucket
from throttlekit._core.storage_keys import bucket_name
from throttlekit._core.waitlist import Wake
from throttlekit_dramatiq import Throttle

SLOTS = Concurrency("reports-db", 2, lease=30)
ONE = Concurrency("one", 1, lease=30)
FLOW = Concurrency("flow", 1, lease=30, held_by=lambda job: "flow-1")
HOURLY = TokenBucket("hourly", "1/hour", burst=1)


class Refused(MiddlewareError):
    """An error that a middleware of a user can raise."""


class UserMiddleware(Middleware):
    """A middleware of a user, after Throttle, that runs a given function."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def before_process_message(self, broker: Any, message: Any) -> None:
        self._act()


class Operations(Middleware):
    """Counts the operations on the broker."""

    def __init__(self) -> None:
        self.enqueued = 0
        self.acked = 0

    def after_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        self.enqueued += 1

    def after_ack(self, broker: Any, message: Any) -> None:
        self.acked += 1


def are_slots_free(limiter: Limiter, limit: Concurrency = SLOTS) -> bool:
    """Return whether all slots are free, and no lease is renewed any more."""
    kept = [heartbeat._known.kept for heartbeat in limiter._leases._heartbeats.values()]
    return limiter.peek(limit).remaining == limit.amount and not any(kept)


def skip() -> None:
    raise SkipMessage("not today")


def test_a_slot_is_held_while_the_body_runs_and_free_after_a_skip(site: Site, limiter: Limiter) -> None:
    """One of the two slots is taken while the body runs. When the body has skipped its message, both are free."""
    site.broker.add_middleware(Throttle(limiter))

    @site.actor(throttle=SLOTS, max_retries=0)
    def job() -> None:
        site.ran.append((limiter.peek(SLOTS).remaining, throttlekit.current().decision is not None))
        skip()

    job.send()
    with site.working():
        site.until_ran(1)
        wait_until(lambda: are_slots_free(limiter), description="the slot is free")
    assert site.ran == [(1, True)]


def test_a_body_that_was_replaced_after_its_declaration_is_charged(site: Site) -> None:
    """Throttle does not see how such a body begins. It runs, so its unit is not refunded when it ends."""
    limiter = Limiter()
    site.broker.add_middleware(Throttle(limiter))

    @site.actor(throttle=HOURLY, max_retries=0)
    def job() -> None:
        raise AssertionError("replaced")

    job.fn = lambda: site.ran.append(1)
    job.send()
    with site.working() as worker:
        site.until_ran(1)
        wait_until(lambda: worker.broker and site.idle(worker), description="the message is done")
    assert limiter.peek(HOURLY).remaining == 0


def test_a_body_that_exceeds_its_time_limit_returns_its_slot(stub: Site, limiter: Limiter) -> None:
    """The body is interrupted in its thread. The slot is free, and the message fails as without throttlekit."""
    stub.broker.add_middleware(Throttle(limiter))
    stub.broker.emit_after("process_boot")

    @stub.actor(throttle=SLOTS, max_retries=0, time_limit=100)
    def job() -> None:
        stub.ran.append(1)
        wait_until(lambda: False, description="the time limit interrupts the body", timeout=20)

    job.send()
    with stub.working():
        stub.until_ran(1)
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
        wait_until(lambda: are_slots_free(limiter), description="the slot is free")


def refuse() -> None:
    raise Refused("no")


@pytest.mark.parametrize("act", [skip, refuse], ids=["skipped", "refused"])
def test_a_message_that_a_later_middleware_stops_returns_its_charge(site: Site, act: Callable[[], None]) -> None:
    """
    The message was granted, and stopped before its body began. The slot and the slot of its workflow are free, no lease
    is renewed, and the unit of the rate is not charged.
    """
    limiter = Limiter()
    site.broker.add_middleware(Throttle(limiter))
    site.broker.add_middleware(UserMiddleware(act))
    job = site.recorder(throttle=[SLOTS, FLOW, HOURLY], max_retries=0)
    job.send()
    with site.working() as worker:
        wait_until(lambda: worker.broker and site.idle(worker), description="the message is gone")
        wait_until(lambda: are_slots_free(limiter), description="the slot is free")
        wait_until(lambda: limiter.peek(FLOW).remaining == 1, description="the slot of the workflow is free")
        wait_until(lambda: limiter.peek(HOURLY).remaining == 1, description="the unit is refunded")
        if act is refuse:
            wait_until(lambda: dead_letters(site.broker, site.queue), description="the message is dead-lettered")
    assert site.ran == []


def test_an_async_body_holds_its_slot_and_sees_its_decision(stub: Site, limiter: Limiter) -> None:
    """The body of an async actor runs in another thread, and holds a slot like any other."""
    stub.broker.add_middleware(AsyncIO())
    stub.broker.add_middleware(Throttle(limiter))

    @stub.actor(throttle=SLOTS)
    async def job() -> None:
        decision = throttlekit.current().decision
        stub.ran.append((limiter.peek(SLOTS).remaining, len(decision.leases) if decision else 0))

    job.send()
    with stub.working():
        stub.until_ran(1)
        wait_until(lambda: are_slots_free(limiter), description="the slot is free")
    assert stub.ran == [(1, 1)]


def test_a_job_that_runs_beyond_its_limit_holds_no_slot(stub: Site, limiter: Limiter) -> None:
    """
    With on_waited_too_long="run", the third job runs while two hold the slots. It holds no slot, and returns none.
    """
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
        wait_until(lambda: are_slots_free(limiter), description="the slots are free")
    assert sorted(stub.ran) == [False, 1, 1]


Waiting = tuple[Site, Throttle, Operations, threading.Event, Any]


@pytest.fixture
def waiting(site: Site) -> Waiting:
    """One slot, and a body that holds it until `go` is set."""
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


def test_a_waiting_message_is_woken_when_a_slot_is_free(waiting: Waiting) -> None:
    """
    Five messages wait. When a body ends, the next one runs, in their order. `Worker.join` returns when all have run.
    """
    site, throttle, _, go, job = waiting
    with site.working(threads=2) as worker:
        site.until_ran(1)
        for n in range(1, 6):
            job.send(n)
            site.until_held(worker, n)
        go.set()
        worker.join()
        assert site.ran == [0, 1, 2, 3, 4, 5]
        wait_until(lambda: are_slots_free(throttle.limiter, ONE), description="the slot is free")


def test_a_message_that_is_woken_too_early_waits_again_without_the_broker(waiting: Waiting) -> None:
    """The slot is not free: the message is held as before, and nothing is enqueued or acknowledged."""
    site, throttle, operations, go, job = waiting
    bucket = bucket_name(ONE.name, "", ONE.fingerprint)
    with site.working(threads=2) as worker:
        waker = throttle._holding.waker
        site.until_ran(1)
        id_ = job.send(1).message_id
        site.until_held(worker, 1)
        before = operations.enqueued, operations.acked
        for _ in range(20):
            denials = waker.waited_of(id_).denials
            waker.on_wakes(bucket, [Wake(id_, 0)])
            wait_until(
                lambda: waker.waited_of(id_).denials > denials and site.held(worker) == 1,  # noqa: B023
                description="the message was denied again, and waits",
            )
        assert (operations.enqueued, operations.acked) == before
        go.set()
        site.until_ran(2)
    assert site.ran == [0, 1]


def test_a_worker_that_stops_puts_waiting_messages_back(waiting: Waiting) -> None:
    """When the worker has stopped, the waiting messages and those that were just woken are in the broker, each once."""
    site, throttle, _, go, job = waiting
    with working(site.broker, 2) as worker:
        site.until_ran(1)
        for n in range(1, 201):
            job.send(n)
        site.until_held(worker, 200)
        go.set()
        site.until_ran(20)
    ran = len(site.ran)
    if site.kind != "rabbitmq":
        assert left_over(site.broker, site.queue) == 201 - ran
    else:
        wait_until(
            lambda: left_over(site.broker, site.queue) == 201 - ran, description="the other messages are in the broker"
        )
    assert sorted(set(site.ran)) == sorted(site.ran)
    assert are_slots_free(throttle.limiter, ONE)
