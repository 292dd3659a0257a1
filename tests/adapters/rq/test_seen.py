"""The decisions of RQ's workers are reported to the fleet, although a work-horse ends at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit.fleet.activity import Activity
from throttlekit.fleet.snapshot import look
from throttlekit.fleet.waiting_job import look_up
from throttlekit.stores.redis import RedisStore
from throttlekit_rq import ThrottledSimpleWorker

pytestmark = QUIET


@pytest.fixture
def store(stock_site: Site) -> Iterator[RedisStore]:
    with contextlib.closing(RedisStore(stock_site.url)) as store:
        yield store


def test_decisions_of_a_work_horse_are_reported(stock_site: Site, store: RedisStore) -> None:
    """The grant of a work-horse is counted, and the reason why a denied job waits is known."""
    stock_site.queue.enqueue(jobs.plain, "x", throttle=[jobs.HOURLY])
    stock_site.work()
    held = stock_site.queue.enqueue(jobs.plain, "y", throttle=[jobs.HOURLY])
    stock_site.work()
    (limit,) = look(store).limits
    assert limit.limit.name == jobs.HOURLY.name
    assert (limit.minute.allowed, limit.minute.denials) == (1, 1)
    _, job, key, *_ = look_up(store, held.id)
    assert job is not None
    assert key is not None
    assert (job.deferrals, key.limit.name) == (1, jobs.HOURLY.name)
    assert look(store).processes == (), "a process that ends at once is not listed"


def test_settled_units_and_429s_of_a_body_are_reported(any_site: Site) -> None:
    """The returned units and the 429 are reported, in any process of any worker, also in a new one for each job."""
    any_site.queue.enqueue(jobs.settles, kwargs={"most": 80, "actual": 10}, throttle=[jobs.TOKENS])
    any_site.work()
    any_site.queue.enqueue(jobs.receives_429, throttle=[jobs.DAILY])
    any_site.work()
    with contextlib.closing(RedisStore(patient(any_site.url))) as opened:

        def reported() -> tuple[int, int]:
            fleet = look(opened)
            used = sum(each.minute.used for each in fleet.limits if each.limit.name == jobs.TOKENS.name)
            return used, sum(fleet.partner_429s.values())

        wait_until(lambda: reported() == (10, 1), description="the settled units and the 429 are reported")


def test_a_worker_that_runs_jobs_itself_reports_them_as_it_ends(stock_site: Site, store: RedisStore) -> None:
    """
    A worker that runs jobs itself does not report after each of them, as a work-horse does: that would cost one more
    round trip for each job.
    """
    for number in range(5):
        stock_site.queue.enqueue(jobs.plain, number, throttle=[jobs.DAILY])
    before = _reports(stock_site)
    stock_site.work(worker=ThrottledSimpleWorker(["work"], connection=stock_site.connection))
    assert _reports(stock_site) - before <= 4, "the last report and one in between, of two scripts each"
    assert [each.minute.allowed for each in look(store).limits] == [5]


def _reports(site: Site) -> int:
    return int(site.connection.info("commandstats").get("cmdstat_eval", {}).get("calls", 0))


@pytest.mark.parametrize("age", [0.0, 60.0])
def test_a_process_that_ends_reports_its_first_job(redis_url: str, age: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A work-horse ends with its job, so it reports that job, however long it took. Later jobs of an old process are
    reported with its next report.
    """
    with contextlib.closing(RedisStore(redis_url)) as store:
        activity = Activity(store)
        began = time.monotonic()
        activity.report()
        monkeypatch.setattr("throttlekit.fleet.activity.time.monotonic", lambda: began + age)
        for counted in (1, 1 if age else 2):
            activity.counts.downstream_429(jobs.DAILY)
            activity.last_word()
            assert sum(look(store).partner_429s.values()) == counted


def test_meta_shows_what_a_job_waits_for(simple_site: Site) -> None:
    """
    While the job waits, its meta has the limit, since when it waits, its turn and its deferrals, beside the user's own
    data.
    """
    job = simple_site.enqueue_denied(jobs.plain, "x", meta={"user": 7})
    meta = simple_site.fetch(job).meta
    assert meta["user"] == 7
    waiting = meta["throttlekit"]
    assert (waiting["limit"], waiting["deferrals"]) == (jobs.HOURLY.name, 1)
    assert waiting["slot"] > waiting["since"] > 1_600_000_000
    simple_site.open_and_work(jobs.HOURLY)
    assert simple_site.noted == ["x"]
    assert simple_site.fetch(job).meta == {"user": 7}
