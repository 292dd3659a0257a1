"""If the first jobs on a waitlist cannot run, the jobs behind them do, on stock workers of RQ."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from rq.job import JobStatus

from support.rq import jobs
from support.rq.helpers import QUIET, Site
from support.servers.processes import free_port, patient
from support.waiting import wait_until
from throttlekit import Control, Limit, Limiter, TokenBucket
from throttlekit_rq import configure

pytestmark = QUIET

_SHARED = TokenBucket("shared", "20/s", burst=1)
_KEYED = TokenBucket("keyed", "1000/s", burst=1000, key="{account}")
_OTHER = TokenBucket("other", "1000/s", burst=1000)
_AWAY = TokenBucket("away-1", "1000/s", burst=1000)

Break = Callable[[Site, pytest.MonkeyPatch], object]


def _is_gone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(jobs, "renamed")


def _low_rate(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with Control(site.limiter) as control:
        site.limiter.declare(_OTHER)
        control.set("other", "1/hour", burst=1)


FAULTS: dict[str, tuple[list[Limit], str, Break]] = {
    "its own key is paused": ([_KEYED], "ran_for", lambda site, _: site.limiter.pause(_KEYED, 3600, key="first")),
    "its own key has a 429": ([_KEYED], "refused_for", lambda *_: None),
    "its second limit is paused": ([_OTHER], "ran_for", lambda site, _: site.limiter.pause(_OTHER, 3600)),
    "its second limit has a low rate": ([_OTHER], "ran_for", _low_rate),
    "its function is gone": ([], "renamed", _is_gone),
    "the store of its second limit is away": ([_AWAY], "ran_for", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_jobs_behind_a_fault_run(fault: str, stock_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five jobs wait in front of five others of the same limit. After a fault of the first five, the others run."""
    site = stock_site
    limits, function, strike = FAULTS[fault]
    monkeypatch.setattr(jobs, "renamed", jobs.ran_for, raising=False)
    away = patient(f"redis://127.0.0.1:{free_port()}/0")
    with contextlib.closing(Limiter(patient(site.url), stores={"away-*": away})) as limiter:
        configure(limiter)
        limiter.pause(_SHARED, 4.0)
        for n in range(5):
            site.queue.enqueue(f"support.rq.jobs.{function}", account="first", number=n, throttle=[_SHARED, *limits])
        others: list[Any] = [
            site.queue.enqueue(jobs.ran_for, account="other", number=n, throttle=[_SHARED]) for n in range(5)
        ]
        site.work()
        assert site.noted == []
        strike(site, monkeypatch)

        def others_ran() -> bool:
            site.work()
            return all(site.fetch(job).get_status() == JobStatus.FINISHED for job in others)

        wait_until(others_ran, description="the other jobs have run", every=0.1)
    first_ran = [noted for noted in site.noted if noted.startswith("first")]
    assert len(first_ran) <= ("low rate" in fault)  # it leaves one unit
