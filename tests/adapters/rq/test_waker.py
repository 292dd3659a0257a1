"""
`throttlekit wake`: jobs that stock workers deny are woken, and are enqueued by their schedule if they are not woken.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from support.faults.processes import Command
from support.rq import jobs
from support.rq.helpers import QUIET, Site
from support.rq.workers import Fleet, rq_waker, rq_worker
from support.servers.processes import patient, redis_server
from support.waiting import wait_until
from throttlekit import Control, Limiter, TokenBucket
from throttlekit_rq import ThrottledQueue
from throttlekit_rq._holding import GRACE_S
from throttlekit_rq._waker import Announcement, WakerProcess, read_announcement
from throttlekit_rq._wire import notes_key, waker_key

pytestmark = [*QUIET, pytest.mark.workers, pytest.mark.flaky(reruns=1)]

SECONDLY = TokenBucket("secondly", "1/s", burst=1)
FOUR = TokenBucket("four", "4/hour", burst=4)
LIVELY = TokenBucket("lively", "20/s", burst=1)
PARTNER = TokenBucket("partner", "100/s", burst=100)

Start = Callable[..., Command]


@pytest.fixture
def start(redis_url: str, stack: contextlib.ExitStack) -> Start:
    """Return a function that starts workers and wakers on this test's Redis. All of them are stopped afterwards."""

    def start(kind: str, *, store: str = redis_url) -> Command:
        # A fork that imports throttlekit requests too late on a busy machine: other jobs are admitted before it.
        worker = rq_worker(redis_url, "work", kind=kind, options=["-c", "support.rq.preload"])
        command = Command(rq_waker(redis_url, "work") if kind == "waker" else worker, {"THROTTLEKIT_URL": store})
        return stack.enter_context(contextlib.closing(command))

    return start


def wait_until_announced(site: Site, but: str = "") -> Announcement:
    def other() -> bool:
        found = read_announcement(site.connection, "work")
        return found is not None and found.owner != but

    wait_until(other, description="a waker has announced itself", timeout=15)
    found = read_announcement(site.connection, "work")
    assert found is not None
    return found


@contextlib.contextmanager
def running_waker(connection: Any, limiter: Limiter) -> Iterator[WakerProcess]:
    """Run a waker in a thread. At the end, also close *connection* and *limiter*."""
    waker, stopped = WakerProcess(connection, limiter, ["work"]), threading.Event()
    thread = threading.Thread(target=waker.run, args=(stopped,))
    thread.start()
    try:
        wait_until(lambda: read_announcement(connection, "work"), description="the waker has announced itself")
        yield waker
    finally:
        stopped.set()
        thread.join()
        limiter.close()
        connection.close()


def start_both(site: Site, start: Start, kind: str = "rq.Worker") -> tuple[Command, Command]:
    """Start a worker and the waker, and return both after the waker has announced itself."""
    both = start(kind), start("waker")
    wait_until_announced(site)
    return both


@pytest.mark.parametrize("kind", ["rq.SimpleWorker", "rq.Worker", "rq.Worker+scheduler"])
def test_the_waker_enqueues_denied_jobs_in_order(stock_site: Site, start: Start, kind: str) -> None:
    """Each job is enqueued at its turn, which its schedule alone would do an hour later, and none exceeds the limit."""
    start_both(stock_site, start, kind)
    stock_site.limiter.pause(LIVELY, 3600)
    for n in range(12):
        stock_site.queue.enqueue(jobs.plain, n, throttle=[LIVELY])
    stock_site.wait_until_denied(12)
    stock_site.disable_schedule()
    stock_site.limiter.resume(LIVELY)
    stock_site.wait_until_noted(*map(str, range(12)))
    wait_until(lambda: not stock_site.deferrals_left(), description="the last job has ended")


def test_a_queue_that_is_created_later_is_found(stock_site: Site, start: Start, redis_url: str) -> None:
    """Without `--queue` the waker serves all existing queues."""
    with contextlib.closing(Command(rq_waker(redis_url), {"THROTTLEKIT_URL": redis_url})) as waker:
        wait_until(lambda: "no queue yet" in waker.log(), description="the waker runs")
        stock_site.queue.enqueue(jobs.plain)
        wait_until(lambda: "wake: work" in waker.log(), description="the waker has found the queue")


def test_a_released_slot_wakes_the_next_job(stock_site: Site, start: Start) -> None:
    """No cancelled or deleted job is woken in its place."""
    held = stock_site.limiter.acquire(jobs.SLOT)
    start_both(stock_site, start)
    names = ("first", "cancelled", "deleted", "second")
    waiting = [stock_site.queue.enqueue(jobs.plain, name, throttle=[jobs.SLOT]) for name in names]
    stock_site.wait_until_denied(4)
    stock_site.disable_schedule()
    stock_site.fetch(waiting[1]).cancel()
    stock_site.fetch(waiting[2]).delete()
    stock_site.limiter.release(held)
    stock_site.wait_until_noted("first", "second")


def test_a_job_of_two_limits_is_woken_when_both_admit_it(stock_site: Site, start: Start) -> None:
    """The job waits for the slot, and keeps its position for the rate."""
    held = stock_site.limiter.acquire(jobs.SLOT)
    start_both(stock_site, start)
    for n in range(3):
        stock_site.queue.enqueue(jobs.plain, n, throttle=[LIVELY, jobs.SLOT])
    stock_site.wait_until_denied(3)
    stock_site.disable_schedule()
    stock_site.limiter.release(held)
    wait_until(lambda: sorted(stock_site.noted) == ["0", "1", "2"], description="all jobs have run")


def test_a_job_fails_at_the_end_of_max_wait(stock_site: Site, start: Start) -> None:
    """The waker enqueues a job at the end of its max_wait, although its limit has no room."""
    stock_site.shut(FOUR)
    start_both(stock_site, start)
    job = stock_site.queue.enqueue(jobs.plain, throttle=[FOUR], throttle_max_wait=2)
    stock_site.wait_until_denied(1)
    stock_site.disable_schedule()
    wait_until(lambda: stock_site.queue.failed_job_registry.count == 1, description="the job has failed", timeout=10)
    assert "WaitedTooLong" in str(stock_site.fetch(job).latest_result().exc_string)


def test_another_waker_replaces_a_killed_one(stock_site: Site, start: Start) -> None:
    """Jobs of the killed waker are enqueued by their schedule. If one is denied again, it waits in the other waker."""
    start("rq.Worker")
    first = start("waker")
    killed = wait_until_announced(stock_site)
    second = start("waker")
    wait_until(lambda: "work" in second.log(), description="the second waker has found the queue")
    assert read_announcement(stock_site.connection, "work") == killed, (
        "the announcement of the first waker is used until it expires"
    )
    stock_site.limiter.pause(SECONDLY, 20)
    waiting = [stock_site.queue.enqueue(jobs.plain, n, throttle=[SECONDLY]) for n in range(3)]
    stock_site.wait_until_denied(3)
    registry = stock_site.queue.scheduled_job_registry
    delays = [registry.get_scheduled_time(job).timestamp() - time.time() for job in waiting]
    assert all(GRACE_S < seconds < GRACE_S + 25 for seconds in delays)
    first.kill()
    assert wait_until_announced(stock_site, but=killed.owner).owner != killed.owner
    wait_until(lambda: sorted(stock_site.noted) == ["0", "1", "2"], description="all jobs have run", timeout=60)


def test_a_waker_that_is_stopped_leaves_its_jobs_to_their_schedule(stock_site: Site, start: Start) -> None:
    """
    The jobs are enqueued at their turn, and not `GRACE_S` later. The waker exits with 0, and removes its announcement.
    """
    worker, waker = start_both(stock_site, start, "rq.SimpleWorker+scheduler")
    stock_site.limiter.pause(SECONDLY, 30)
    job = stock_site.queue.enqueue(jobs.plain, throttle=[SECONDLY])
    stock_site.wait_until_denied(1)
    waker.terminate()
    assert waker.ends_within(10)
    assert waker.exit_code == 0, waker.log()
    assert read_announcement(stock_site.connection, "work") is None
    assert stock_site.queue.scheduled_job_registry.get_scheduled_time(job).timestamp() - time.time() < 31
    stock_site.limiter.resume(SECONDLY)
    assert worker.running


def test_a_waker_that_is_stopped_strands_no_job(stock_site: Site, start: Start) -> None:
    """If no other process enqueues scheduled jobs, they are put at the front of their queue, in order."""
    stock_site.limiter.pause(FOUR, 3600)
    worker, waker = start_both(stock_site, start)
    waiting = [stock_site.queue.enqueue(jobs.plain, n, throttle=[FOUR]) for n in range(3)]
    stock_site.wait_until_denied(3)
    worker.stop()
    waker.terminate()
    assert waker.ends_within(10)
    assert stock_site.queue.job_ids == [job.id for job in waiting]


def test_the_waker_keeps_no_data_of_jobs_that_have_run(redis_url: str) -> None:
    """The waker keeps no data of jobs that have run, whether or not their grants had a note."""
    connection = redis.Redis.from_url(redis_url)
    queue = ThrottledQueue("work", connection=connection)
    with (
        running_waker(connection, Limiter(redis_url)) as waker,
        Fleet([rq_worker(redis_url, "work", kind="rq.SimpleWorker")], {"THROTTLEKIT_URL": redis_url}),
    ):
        for n in range(30):
            queue.enqueue(jobs.plain, n, throttle=[LIVELY])
        wait_until(lambda: connection.llen("noted") == 30, description="all jobs have run")
        room = waker._waker._here.room
        wait_until(lambda: not room._busy and not len(room), description="the waker has removed the jobs")


def test_due_jobs_are_enqueued_while_the_store_is_away(redis_url: str, stack: contextlib.ExitStack) -> None:
    """
    Denied jobs are scheduled again each second during an outage, and there may be no other process that enqueues them.
    """
    connection = redis.Redis.from_url(redis_url)
    queue = ThrottledQueue("work", connection=connection)
    with redis_server() as store:
        stack.enter_context(running_waker(connection, Limiter(patient(store))))
    wait_until(lambda: not read_announcement(connection, "work"), description="the announcement has expired")
    job = queue.enqueue_in(timedelta(seconds=0), jobs.plain)
    wait_until(lambda: queue.job_ids == [job.id], description="the job is enqueued", timeout=30)


def test_a_waker_with_another_store_is_not_used(stock_site: Site, start: Start, redis_url: str) -> None:
    """
    A waker with another store would never get a wake, so it is not used: a line is logged, and the job is enqueued
    after its delay.
    """
    worker = start("rq.SimpleWorker+scheduler")
    start("waker", store=redis_url.rpartition("/")[0] + "/15")
    wait_until_announced(stock_site)
    stock_site.shut(SECONDLY)
    stock_site.queue.enqueue(jobs.plain, throttle=[SECONDLY])
    stock_site.wait_until_noted("ran")
    assert "listens at the store" in worker.log()


def test_an_unreadable_note_is_skipped(stock_site: Site, start: Start) -> None:
    """The error is logged, and the next note is read."""
    held = stock_site.limiter.acquire(jobs.SLOT)
    start("rq.Worker")
    waker = start("waker")
    notes = notes_key(wait_until_announced(stock_site).owner)
    newer: dict[str, Any] = {"v": 1, "queue": "work", "grace": 1, "ends_in_us": None, "note": {"v": 2, "id": "newer"}}
    wrong = {**newer, "note": {"v": 1, "id": "x", "units": [["b", "t", 1]], "kept": [3, ""], "wakes": [], "looks": []}}
    stock_site.connection.rpush(notes, "no JSON", json.dumps({"v": 9}), json.dumps(newer), json.dumps(wrong))
    stock_site.queue.enqueue(jobs.plain, throttle=[jobs.SLOT])
    stock_site.wait_until_denied(1)
    stock_site.disable_schedule()
    stock_site.limiter.release(held)
    stock_site.wait_until_noted("ran")
    assert "cannot read a note" in waker.log()


def test_a_job_of_a_paused_limit_is_enqueued_after_the_pause(stock_site: Site, start: Start) -> None:
    """An operator's rule is applied without the store, so the job is not woken. It is enqueued after its delay."""
    start_both(stock_site, start)
    with Control(stock_site.limiter) as control:
        control.pause("partner", duration=2)
    stock_site.queue.enqueue(jobs.plain, throttle=[PARTNER])
    stock_site.wait_until_noted("ran")


def test_an_announcement_of_another_release_is_ignored(stock_site: Site) -> None:
    """An announcement in another format is read as none."""
    for text in ("no JSON", "[]", '{"v": 2}', '{"v": 1, "owner": "x"}'):
        stock_site.connection.set(waker_key("work"), text)
        assert read_announcement(stock_site.connection, "work") is None


def test_the_waker_names_a_server_that_does_not_answer() -> None:
    """If RQ's Redis does not answer, the exit code is 2, and the message is one line without the password."""
    with contextlib.closing(Command(rq_waker("redis://:secret@localhost:1/0"), {"THROTTLEKIT_URL": ""})) as command:
        assert command.ends_within(20)
        assert command.exit_code == 2
        assert "RQ's Redis does not answer" in command.log()
        assert "secret" not in command.log()
