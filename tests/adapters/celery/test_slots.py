"""Concurrency limits on real Celery workers: never one too many; a slot is soon free, however a task ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest

from support.celery.site import CelerySite, celery_site
from support.flood.slot_record import SlotRecord, most_at_once
from support.servers.processes import patient
from support.waiting import wait_until

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the collector to find.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

WITHIN = 120.0
LONG_LEASE = 600
"""Longer than any test waits: a slot that has to wait for it fails the test."""


@pytest.fixture
def make(redis_base: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make a site with slots, and what its bodies note."""
    with ExitStack() as stack:

        def made(kind: str = "redis", **told: Any) -> tuple[CelerySite, SlotRecord]:
            told = {
                "module": "support.celery.slots", "store": patient(f"{redis_base}/12"), "amount": 1,
                "lease": LONG_LEASE,
                "rate": "1000/s", "burst": 1000, **told,
            }  # fmt: skip
            broker = redis_base if kind == "redis" else request.getfixturevalue("rabbitmq_url")
            site = stack.enter_context(celery_site(kind, broker, redis_base, **told))
            return site, stack.enter_context(closing(SlotRecord(site.told["record"], site.queue)))

        yield made


def results(sent: list[Any]) -> list[Any]:
    return [result.get(timeout=WITHIN) for result in sent]


@pytest.mark.parametrize(
    ("pool", "costs"), [("prefork", ""), ("threads", ""), ("gevent", ""), ("solo", ""), ("prefork", ("", "*2", "*3"))]
)
def test_never_more_at_once_than_there_are_slots(make: Any, pool: str, costs: Sequence[str]) -> None:
    """By the bodies' own records, over two workers; each job runs once, and is delivered once but for the far ones."""
    site, record = make(pool=pool, amount=3)
    for name in ("a", "b"):
        site.start("--concurrency", "4", name=name)
    jobs = [f"{number}{costs[number % len(costs)] if costs else ''}" for number in range(200)]
    assert results([site.send("work", job, 0.01) for job in jobs]) == jobs
    events = record.events()
    assert most_at_once(events) <= 3
    assert sorted(event.job for event in events if event.what == "start") == sorted(jobs)
    assert record.counts()["deliveries"] <= 5 * len(jobs)


def test_waiters_are_woken_when_slots_come_free_sooner_than_was_thought(make: Any) -> None:
    """
    While the first holds its slot for 6 s, 40 others get instants some 10 s apart, most of them minutes off. Each is
    put back once: that its estimate is another whenever it asks does not send it round and round.
    """
    site, record = make(amount=1)
    site.start()
    first = site.send("work", "first", 6)
    wait_until(lambda: record.events(), description="the first has its slot")
    others = [site.send("work", str(number), 0.01) for number in range(40)]
    assert results([first, *others]) == ["first", *map(str, range(40))]
    assert most_at_once(record.events()) == 1
    assert record.counts()["deliveries"] <= 5 * 41


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_bodies_may_last_longer_than_the_lease(make: Any, pool: str) -> None:
    """It is renewed where the body runs: nobody else gets the slot meanwhile."""
    site, record = make(pool=pool, amount=1, lease=4)
    site.start()
    sent = [site.send("work", str(number), seconds) for number, seconds in enumerate((9, 0, 0))]
    assert results(sent) == ["0", "1", "2"]
    assert most_at_once(record.events()) == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("lease", [1, LONG_LEASE])
def test_slots_of_each_worker_are_held_by_its_main_process(make: Any, pool: str, lease: int) -> None:
    """Only there they count, wherever the body runs: they last as long as it does, whatever the lease."""
    site, record = make(pool=pool, amount=1, lease=lease, scope="process")
    site.start("--concurrency", "2")
    assert results([site.send("work", str(number), 2) for number in range(3)]) == ["0", "1", "2"]
    assert most_at_once(record.events()) == 1


@pytest.mark.parametrize("how", ["killed", "time limit", "terminated"])
def test_a_slot_is_free_at_once_when_the_bodys_process_dies(make: Any, how: str) -> None:
    """The main process gives it back: long before the lease is over."""
    site, record = make()
    site.start()
    if how == "killed":
        site.send("dying")
    elif how == "time limit":
        site.send("work", "endless", 600, time_limit=1)
    else:
        endless = site.send("work", "endless", 600)
        wait_until(lambda: record.events(), description="it runs")
        site.app.control.revoke(endless.id, terminate=True, signal="SIGKILL")
    assert site.send("work", "next", 0).get(timeout=WITHIN) == "next"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_slot_is_free_when_the_worker_has_stopped_in_peace(make: Any, pool: str) -> None:
    """What runs comes to its end, and what it held the next worker gets at once."""
    site, record = make(pool=pool)
    first = site.start()
    site.send("work", "last", 1)
    wait_until(lambda: record.events(), description="it runs")
    others = [site.send("work", str(number), 0) for number in range(3)]
    first.signal(signal.SIGTERM)
    first.wait(WITHIN)
    site.start(name="second")
    assert results(others) == ["0", "1", "2"]


def test_a_slot_is_free_after_a_cold_stop(make: Any) -> None:
    """SIGQUIT kills the pool's processes; the slots of their bodies are given back as the worker ends."""
    site, record = make()
    first = site.start()
    site.send("work", "endless", 600)
    wait_until(lambda: record.events(), description="it runs")
    first.signal(signal.SIGQUIT)
    first.wait(WITHIN)
    site.start(name="second")
    assert site.send("work", "next", 0).get(timeout=WITHIN) == "next"


@pytest.mark.rabbitmq
def test_slots_of_a_killed_worker_are_free_when_their_leases_end(make: Any) -> None:
    """SIGKILL of all processes of a worker that holds half of the slots, while another runs on the other half."""
    site, record = make("rabbitmq", amount=8, lease=5)
    doomed = site.start("--concurrency", "4", name="doomed")
    for number in range(4):
        site.send("work", f"doomed {number}", 600)
    wait_until(lambda: len(record.events()) == 4, description="the doomed have their slots")
    site.start("--concurrency", "12", name="other")
    sent = [site.send("work", str(number), 0.2) for number in range(60)]
    wait_until(lambda: len(record.events()) > 20, description="the other is at work")
    before = record.events()
    doomed.kill()
    # Long enough to be at work together, however busy the machine.
    sent += [site.send("work", f"long {number}", 2) for number in range(12)]
    results(sent)
    assert most_at_once(before) <= 8
    after = [event for event in record.events() if not event.job.startswith("doomed")]
    assert most_at_once(after) > 4, "the slots of the dead were never used again"
    assert most_at_once(after) <= 8


def test_a_task_that_was_killed_and_goes_back_gets_a_slot_again(make: Any) -> None:
    """With acks_late and reject_on_worker_lost it runs once more; what the dead body held does not stand in its way."""
    site, record = make()
    site.start()
    result = site.send("late_work", "it", 3)
    os.kill(int(wait_until(lambda: record.events(), description="it runs")[0].more), signal.SIGKILL)
    assert result.get(timeout=WITHIN) == "it"
