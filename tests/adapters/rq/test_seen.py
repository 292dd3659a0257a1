"""What RQ's workers decide is seen by the fleet, though a work-horse ends without a word."""

from __future__ import annotations

import contextlib
import time

import pytest

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit.fleet.activity import Activity
from throttlekit.fleet.downstream import total
from throttlekit.fleet.snapshot import look
from throttlekit.fleet.waiting_job import look_up
from throttlekit.stores.redis import RedisStore as RedisStore
from throttlekit_rq import ThrottledSimpleWorker

pytestmark = QUIET


@pytest.fixture
def store(stock_site: Site) -> contextlib.closing[RedisStore]:
    return contextlib.closing(RedisStore(stock_site.url))


def test_what_a_work_horse_decides_is_seen(stock_site: Site, store: contextlib.closing[RedisStore]) -> None:
    """Its grant is counted, and of a job that it denied it is known why that waits."""
    stock_site.queue.enqueue(jobs.plain, "x", throttle=[jobs.HOURLY])
    stock_site.work()
    held = stock_site.queue.enqueue(jobs.plain, "y", throttle=[jobs.HOURLY])
    stock_site.work()
    with store as opened:
        (limit,) = look(opened).limits
        assert limit.limit.name == jobs.HOURLY.name
        assert (limit.minute.allowed, limit.minute.denials) == (1, 1)
        _, job, key, *_ = look_up(opened, held.id)
        assert job is not None
        assert key is not None
        assert (job.deferrals, key.limit.name) == (1, jobs.HOURLY.name)
        assert look(opened).processes == (), "a process that ends at once is not listed"


def test_what_a_body_settles_and_hears_is_seen(rq_site: Site) -> None:
    """Units that it gave back, and the 429 that it heard, in whatever process of whatever worker it ran."""
    _check_settled_and_heard(rq_site)


def test_what_a_body_in_a_spawned_process_settles_and_hears_is_seen(spawn_site: Site) -> None:
    """A process that begins anew for each job reports it too."""
    _check_settled_and_heard(spawn_site)


def _check_settled_and_heard(site: Site) -> None:
    site.queue.enqueue(jobs.settles, kwargs={"most": 80, "actual": 10}, throttle=[jobs.TOKENS])
    site.work()
    site.queue.enqueue(jobs.hears_429, throttle=[jobs.DAILY])
    site.work()
    with contextlib.closing(RedisStore(patient(site.url))) as opened:

        def seen() -> tuple[int, int]:
            fleet = look(opened)
            used = sum(each.minute.used for each in fleet.limits if each.limit.name == jobs.TOKENS.name)
            return used, sum(total(each) for each in fleet.partner_429s.values())

        wait_until(lambda: seen() == (10, 1), description="what was settled and heard is reported")


def test_a_worker_that_runs_jobs_itself_reports_them_as_it_ends(
    stock_site: Site, store: contextlib.closing[RedisStore]
) -> None:
    """And not after each of them, as a work-horse does: that would be one round trip more for a job."""
    for number in range(5):
        stock_site.queue.enqueue(jobs.plain, number, throttle=[jobs.DAILY])
    before = _reports(stock_site)
    stock_site.work(worker=ThrottledSimpleWorker(["work"], connection=stock_site.connection))
    assert _reports(stock_site) - before <= 4, "the last report and one in between, of two scripts each"
    with store as opened:
        assert [each.minute.allowed for each in look(opened).limits] == [5]


def _reports(site: Site) -> int:
    return int(site.connection.info("commandstats").get("cmdstat_eval", {}).get("calls", 0))


@pytest.mark.parametrize("age", [0.0, 60.0])
def test_a_process_that_ends_reports_its_first_job(redis_url: str, age: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that took: a work-horse ends with it. Later ones of an old process wait for its next report."""
    with contextlib.closing(RedisStore(redis_url)) as store:
        activity = Activity(store)
        began = time.monotonic()
        activity.report()
        monkeypatch.setattr("throttlekit.fleet.activity.time.monotonic", lambda: began + age)
        for counted in (1, 1 if age else 2):
            activity.counts.downstream_429(jobs.DAILY)
            activity.last_word()
            assert sum(total(each) for each in look(store).partner_429s.values()) == counted


def test_meta_says_what_a_job_waits_for(simple_site: Site) -> None:
    """While it waits, its meta shows the limit, since when, when it is due and its deferrals, beside the user's own."""
    site = simple_site
    site.shut(jobs.HOURLY)
    job = site.queue.enqueue(jobs.plain, "x", throttle=[jobs.HOURLY], meta={"user": 7})
    site.work()
    meta = site.fetch(job).meta
    assert meta["user"] == 7
    told = meta["throttlekit"]
    assert (told["limit"], told["deferrals"]) == (jobs.HOURLY.name, 1)
    assert told["slot"] > told["since"] > 1_600_000_000
    site.open(jobs.HOURLY)
    site.work()
    assert site.noted == ["x"]
    assert site.fetch(job).meta == {"user": 7}
