"""Bodies that get a 429: the key is paused, and the job waits until the end of the pause, like a denied job."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from rq import Callback, Retry
from rq.job import JobStatus

from support.flood.checks import assert_calm
from support.rq import jobs
from support.rq.flood import OURS, OURS_SIMPLE
from support.rq.helpers import QUIET, Site
from support.rq.slots import RqSlotting, Slots
from support.servers.processes import redis_server
from throttlekit import ConfigurationError
from throttlekit.adapter import Throttling
from throttlekit_rq import ThrottledQueue, configure, throttled

pytestmark = QUIET

HELD = [jobs.DAILY]
CALLBACKS = {"on_success": Callback(jobs.succeeded), "on_failure": Callback(jobs.failed)}


def is_paused(site: Site, limit: Any = jobs.DAILY) -> bool:
    return site.limiter.peek(limit).reason == "paused"


@pytest.mark.parametrize("function", [jobs.receives_429, jobs.receives_429_async], ids=["plain", "async"])
def test_a_429_is_no_failure(rq_site: Site, function: Any) -> None:
    """
    The job is scheduled again, with no result, no callback and no retry used. Its dependents wait. Then it runs to its
    end.
    """
    job = rq_site.queue.enqueue(function, throttle=HELD, retry=Retry(max=1), **CALLBACKS)
    after = rq_site.queue.enqueue(jobs.plain, "after", depends_on=job)
    worker = rq_site.work()
    assert is_paused(rq_site)
    seen = rq_site.fetch(job)
    assert seen.get_status(refresh=True) == JobStatus.SCHEDULED
    assert seen.results() == []
    assert seen.retries_left == 1
    assert not seen.number_of_retries
    assert rq_site.queue.failed_job_registry.count == 0
    assert rq_site.fetch(after).get_status() == JobStatus.DEFERRED
    assert rq_site.noted == ["called"]
    worker.refresh()
    assert (worker.failed_job_count, worker.successful_job_count) == (0, 0)
    rq_site.open_and_work(jobs.DAILY)
    assert rq_site.noted == ["called", "called", f"success of {job.id}: result of called", "after"]
    assert rq_site.deferrals_left() == []


@pytest.mark.workers
def test_a_429_in_a_spawned_process_is_no_failure(spawn_site: Site) -> None:
    """A 429 in a spawned process reschedules the job, as in any other process."""
    job = spawn_site.queue.enqueue(jobs.receives_429, throttle=HELD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THROTTLEKIT_URL", spawn_site.url)
        spawn_site.work()
        assert is_paused(spawn_site)
        assert spawn_site.fetch(job).get_status() == JobStatus.SCHEDULED
        spawn_site.open_and_work(jobs.DAILY)
    assert spawn_site.fetch(job).get_status() == JobStatus.FINISHED


def test_the_option_names_the_limit_that_is_paused(simple_site: Site) -> None:
    """
    The option of the enqueue call takes precedence, then that of the function or the queue. By default, all limits but
    slots are paused.
    """
    both = [jobs.DAILY, jobs.SLOT]
    of_queue = ThrottledQueue("work", connection=simple_site.connection, throttle=both, on_429=jobs.SLOT)
    options: dict[str, Any]
    for queue, function, options, paused in (
        (simple_site.queue, jobs.receives_429, {"throttle": both}, jobs.DAILY),
        (simple_site.queue, jobs.receives_429, {"throttle": both, "throttle_on_429": jobs.SLOT}, jobs.SLOT),
        (simple_site.queue, jobs.receives_429_of_slot, {}, jobs.SLOT),
        (simple_site.queue, jobs.receives_429_of_slot, {"throttle_on_429": "daily"}, jobs.DAILY),
        (of_queue, jobs.receives_429, {}, jobs.SLOT),
        (of_queue, jobs.receives_429, {"throttle_on_429": "daily"}, jobs.DAILY),
    ):
        job = queue.enqueue(function, **options)
        simple_site.work()
        assert [limit.name for limit in both if is_paused(simple_site, limit)] == [paused.name]
        job.delete()
        simple_site.limiter.reset(*both)


def test_an_option_that_names_no_limit_of_the_job_is_refused(simple_site: Site) -> None:
    """An `on_429` that names no limit of the job raises where it is given."""
    with pytest.raises(ConfigurationError, match="on a 429 is 'other', which is not a limit of the job"):
        throttled(jobs.DAILY, on_429="other")(jobs.plain)
    with pytest.raises(ConfigurationError, match="pause on a 429"):
        ThrottledQueue("work", connection=simple_site.connection, throttle=HELD, on_429=jobs.SLOT)
    for options in ({"throttle": HELD}, {}):
        with pytest.raises(ConfigurationError, match="pause on a 429"):
            simple_site.queue.enqueue(jobs.plain, throttle_on_429=jobs.LIVELY, **options)


def test_a_429_in_a_function_without_limits_pauses_the_limit_of_its_queue(throttled_site: Site) -> None:
    """If a function without limits gets a 429, the limit of its queue is paused."""
    configure(throttled_site.limiter, queues={"work": jobs.DAILY})
    job = throttled_site.queue.enqueue(jobs.receives_429)
    throttled_site.work()
    assert is_paused(throttled_site)
    assert throttled_site.fetch(job).get_status() == JobStatus.SCHEDULED
    throttled_site.open_and_work(jobs.DAILY)
    assert throttled_site.fetch(job).get_status() == JobStatus.FINISHED


def test_a_429_does_not_prolong_the_ttl(throttled_site: Site) -> None:
    """The ttl is counted from the enqueueing of the job, however often it gets a 429."""
    job = throttled_site.queue.enqueue(jobs.receives_429, "called", 2, throttle=HELD, ttl=100)
    throttled_site.connection.pexpire(job.key, 50_000)
    throttled_site.shut(jobs.DAILY)
    throttled_site.work()
    for _ in range(2):
        throttled_site.open_and_work(jobs.DAILY)
        assert throttled_site.connection.pttl(job.key) <= 50_000
    assert throttled_site.noted == ["called", "called"]


def test_an_outage_of_rqs_redis_after_a_429_costs_no_retry(rq_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If RQ's Redis is available again when RQ ends the job, the job waits until the end of the pause."""
    site, real = rq_site, Throttling.pause

    def unavailable(*_: object) -> Any:
        raise redis.ConnectionError("gone")

    def pause(*args: Any, **options: Any) -> Any:
        stored = real(*args, **options)
        monkeypatch.setattr("throttlekit_rq._body.promoted_by", unavailable)
        monkeypatch.setattr("throttlekit_rq._waiting.logged_key", unavailable)
        monkeypatch.setattr(redis.Redis, "time", unavailable)  # reads of a ttl call it
        return stored

    monkeypatch.setattr(Throttling, "pause", pause)
    job = site.queue.enqueue(jobs.receives_429, "called", throttle=HELD, ttl=100, retry=Retry(max=1))
    site.work(max_jobs=1)
    monkeypatch.undo()
    assert site.noted == ["called"]
    assert is_paused(site)
    assert site.fetch(job).get_status() == (JobStatus.SCHEDULED if site.ours else JobStatus.QUEUED)
    assert site.fetch(job).retries_left == 1
    site.open_and_work(jobs.DAILY)
    assert site.fetch(job).get_status() == JobStatus.FINISHED


@pytest.mark.workers
def test_one_429_in_a_flood_pauses_its_key_in_the_fleet() -> None:
    """
    After the first 429, only jobs that the workers already have call the partner until the pause is over. Then the rate
    resumes without a burst. No job is lost or fails, and another key continues.
    """
    slots = Slots(rate="40/s", burst=10, kinds=(OURS_SIMPLE, OURS_SIMPLE, OURS))
    with redis_server() as base, RqSlotting(slots, base) as slotting:
        slotting.partner.be_angry("one", 2.0, from_call=25)
        slotting.start()
        for n in range(100):
            slotting.call(n)
            if n % 4 == 0:
                slotting.call(f"other-{n}", "other")
        slotting.until_ended(125)
        held = slotting.stop()
        one, other = slotting.partner.record_of("one"), slotting.partner.record_of("other")
    assert held.left == 0
    assert_calm(held.log)
    assert (sorted(one.answered), len(one.answered)) == (sorted(str(n) for n in range(100)), 100)
    assert len(other.answered) == 25
    first = one.refused[0].at_us
    assert len({call.job for call in one.refused}) == len(one.refused) <= 1 + 2 * len(slots.kinds)
    resumed = next(call.at_us for call in one.calls if call.status == 200 and call.at_us > first)
    assert resumed - first >= 2_000_000
    assert len(one.between(resumed, resumed + 500_000)) <= 20 + 1 + len(slots.kinds)
    assert other.between(first, resumed), "the other key continued"
