"""
Concurrency limits on real Celery workers: the amount is never exceeded, and a slot is soon free, however a task ends.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from support.celery.quiet import QUIET
from support.celery.site import WITHIN, results
from support.flood.slot_record import LONG_LEASE, most_at_once
from support.waiting import wait_until

pytestmark = [pytest.mark.workers, *QUIET]


@pytest.mark.parametrize(
    ("pool", "costs"), [("prefork", ""), ("threads", ""), ("gevent", ""), ("solo", ""), ("prefork", ("", "*2", "*3"))]
)
def test_never_more_at_once_than_there_are_slots(make_slots: Any, pool: str, costs: Sequence[str]) -> None:
    """
    With two workers, the bodies' own records show no more at once than there are slots. Each job runs once, and most
    are delivered once.
    """
    site, record = make_slots(pool=pool, amount=3)
    for name in ("a", "b"):
        site.start("--concurrency", "4", name=name)
    jobs = [f"{number}{costs[number % len(costs)] if costs else ''}" for number in range(200)]
    assert results([site.send("work", job, 0.01) for job in jobs]) == jobs
    events = record.events()
    assert most_at_once(events) <= 3
    assert sorted(event.job for event in events if event.what == "start") == sorted(jobs)
    assert record.counts()["deliveries"] <= 5 * len(jobs)


def test_bodies_in_threads_can_run_for_longer_than_the_lease(make_slots: Any) -> None:
    """The lease is renewed, so no other task gets the slot in the meantime. (For processes: see contract/.)"""
    site, record = make_slots(pool="threads", amount=1, lease=4)
    site.start()
    sent = [site.send("work", str(number), seconds) for number, seconds in enumerate((9, 0, 0))]
    assert results(sent) == ["0", "1", "2"]
    assert most_at_once(record.events()) == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("lease", [1, LONG_LEASE])
def test_slots_of_each_worker_are_held_by_its_main_process(make_slots: Any, pool: str, lease: int) -> None:
    """
    With scope "process", the main process holds the slots, wherever the body runs. A slot lasts as long as the body,
    whatever the lease.
    """
    site, record = make_slots(pool=pool, amount=1, lease=lease, scope="process")
    site.start("--concurrency", "2")
    assert results([site.send("work", str(number), 2) for number in range(3)]) == ["0", "1", "2"]
    assert most_at_once(record.events()) == 1


@pytest.mark.parametrize("how", ["killed", "time limit", "terminated"])
def test_a_slot_is_free_at_once_when_the_bodys_process_dies(make_slots: Any, how: str) -> None:
    """The main process returns the slot, long before the lease is over."""
    site, record = make_slots()
    site.start()
    if how == "killed":
        site.send("dying")
    elif how == "time limit":
        site.send("work", "endless", 600, time_limit=1)
    else:
        endless = site.send("work", "endless", 600)
        wait_until(lambda: record.events(), description="the task runs")
        site.app.control.revoke(endless.id, terminate=True, signal="SIGKILL")
    assert site.send("work", "next", 0).get(timeout=WITHIN) == "next"


def test_a_slot_is_free_at_once_after_a_time_limit_with_gevent(make_slots: Any) -> None:
    """Celery reports the id of the greenlet, which is no process. The worker logs no error of its own."""
    site, _ = make_slots(pool="gevent")
    worker = site.start()
    site.send("work", "endless", 600, time_limit=1)
    assert site.send("work", "next", 0).get(timeout=WITHIN) == "next"
    assert "OverflowError" not in worker.log()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_celery_deduplicates_returns_its_slot(make_slots: Any, pool: str) -> None:
    """It has succeeded before, and is delivered again. Celery does not run it, and sends no signal of a run."""
    site, record = make_slots(pool=pool, conf={"worker_deduplicate_successful_tasks": True})
    site.start()
    first = site.send("late_work", "once", 0)
    assert first.get(timeout=WITHIN) == "once"
    other = f"{site.queue}other"
    site.app.send_task("late_work", ("once", 0), queue=other, task_id=first.id)
    with site.app.connection_for_read() as connection:
        client = connection.default_channel.client
        message = json.loads(client.rpop(other))
        message["properties"]["delivery_info"]["redelivered"] = True
        client.lpush(site.queue, json.dumps(message))
    assert site.send("work", "next", 0).get(timeout=WITHIN) == "next"
    assert record.counts()["deliveries"] == 3
    assert [event.job for event in record.events() if event.what == "start"] == ["once", "next"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_slot_is_free_after_a_warm_shutdown(make_slots: Any, pool: str) -> None:
    """The running body is completed, and the next worker gets its slot at once."""
    site, record = make_slots(pool=pool)
    first = site.start()
    site.send("work", "last", 1)
    wait_until(lambda: record.events(), description="the task runs")
    others = [site.send("work", str(number), 0) for number in range(3)]
    first.signal(signal.SIGTERM)
    first.wait(WITHIN)
    site.start(name="second")
    assert results(others) == ["0", "1", "2"]


def test_a_slot_is_free_after_a_cold_shutdown(make_slots: Any) -> None:
    """SIGQUIT kills the pool's processes. The worker returns the slots of their bodies as it ends."""
    site, record = make_slots()
    first = site.start()
    site.send("work", "endless", 600)
    wait_until(lambda: record.events(), description="the task runs")
    first.signal(signal.SIGQUIT)
    first.wait(WITHIN)
    site.start(name="second")
    assert site.send("work", "next", 0).get(timeout=WITHIN) == "next"


@pytest.mark.rabbitmq
def test_slots_of_a_killed_worker_are_free_when_their_leases_end(make_slots: Any) -> None:
    """
    One worker, which holds half of the slots, is killed with all of its processes by SIGKILL. Another one runs with the
    other half.
    """
    site, record = make_slots("rabbitmq", amount=8, lease=5)
    doomed = site.start("--concurrency", "4", name="doomed")
    for number in range(4):
        site.send("work", f"doomed {number}", 600)
    wait_until(lambda: len(record.events()) == 4, description="the first worker has its slots")
    site.start("--concurrency", "12", name="other")
    sent = [site.send("work", str(number), 0.2) for number in range(60)]
    wait_until(lambda: len(record.events()) > 20, description="the other worker runs tasks")
    before = record.events()
    doomed.kill()
    # Long enough for all slots to be in use together, on a busy machine too.
    sent += [site.send("work", f"long {number}", 2) for number in range(12)]
    results(sent)
    assert most_at_once(before) <= 8
    after = [event for event in record.events() if not event.job.startswith("doomed")]
    assert most_at_once(after) > 4, "the slots of the killed worker were never used again"
    assert most_at_once(after) <= 8


def test_a_killed_task_that_is_redelivered_gets_a_slot_again(make_slots: Any) -> None:
    """With acks_late and reject_on_worker_lost it runs again. The slot of its killed body does not block it."""
    site, record = make_slots()
    site.start()
    result = site.send("late_work", "it", 3)
    os.kill(int(wait_until(lambda: record.events(), description="the task runs")[0].more), signal.SIGKILL)
    assert result.get(timeout=WITHIN) == "it"
