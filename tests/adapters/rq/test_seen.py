"""What RQ's workers decide is seen by the fleet, though a work-horse ends without a word."""

from __future__ import annotations

import contextlib

import pytest

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from throttlekit.fleet.snapshot import look, look_up
from throttlekit.stores.redis import RedisStore

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
        job, key = look_up(opened, held.id)
        assert job is not None
        assert key is not None
        assert (job.deferrals, key.limit.name) == (1, jobs.HOURLY.name)
        assert look(opened).processes == (), "a process that ends at once is not listed"


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
