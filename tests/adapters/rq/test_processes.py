"""Real `rq worker` processes that die in a flood: no job is lost. Other floods: fleet/test_floods.py."""

from __future__ import annotations

import time

import pytest

from support.flood.checks import assert_bound, starts_of
from support.flood.run import FloodLimit
from support.rq.flood import OURS, OURS_SIMPLE, STOCK, RqFlood, RqFlooding
from support.servers.flood import Servers
from support.waiting import wait_until

pytestmark = pytest.mark.workers


def test_a_mixed_fleet_survives_restarts_of_schedulers(on_redis: Servers) -> None:
    """
    400 jobs run on workers of throttlekit and of RQ, while a stock worker with RQ's scheduler is stopped and started
    every 2 seconds. No job runs twice. The only lost jobs are those that RQ's own worker had taken, and had not begun,
    when it was stopped (RQ's issue 2236): it leaves them in the intermediate queue.
    """
    limits = (FloodLimit("one", "40/s", 40),)
    fleet = RqFlood(limits=limits, jobs=400, kinds=(OURS, OURS_SIMPLE, "rq.Worker"))
    stops = 0
    with RqFlooding(fleet, on_redis) as flooding:
        for n in range(400):
            flooding.send("job", str(n))
        flooding.start()
        deadline = time.monotonic() + 240
        orphans = set[str]()  # jobs that were orphans all the time, and not only for a moment before they began
        while len(flooding.starts()) + len(orphans) < 400:
            assert time.monotonic() < deadline, f"{len(flooding.starts())} of 400 jobs have started"
            before = flooding.orphans()
            with flooding.extra(STOCK) as passing:
                until = time.monotonic() + 2.0
                wait_until(
                    lambda: time.monotonic() > until or len(flooding.starts()) >= 400,  # noqa: B023
                    description="the scheduler has had its time",
                )
                passing.stop()
            stops += 1
            orphans = before & flooding.orphans()
            assert flooding.running
        record = flooding.stop()
        lost = len(flooding.orphans())
    assert lost <= stops + 1, "each stop of a stock worker orphans at most one job"
    assert_bound(record, "one", 25_000, 40)
    assert set(starts_of(record).values()) == {1}
    assert len(starts_of(record)) == 400 - lost


def test_sigkill_of_stock_workers_in_a_flood_loses_no_waiting_job(on_redis: Servers) -> None:
    """
    Every process is killed at once, twice. RQ decides about jobs that a worker had taken. There are at most as many as
    workers, and as many again at the end: SIGTERM can stop workers with a job that they have not begun (RQ's issue
    2236). All other jobs run, and none runs twice. faults/test_rq.py has workers of throttlekit.
    """
    limits = (FloodLimit("one", "40/s", 10),)
    flood = RqFlood(limits=limits, jobs=120, kinds=(STOCK, STOCK), kills=(1.0, 2.2), give_up=8.0, settle=1.0)
    with RqFlooding(flood, on_redis) as flooding:
        for n in range(120):
            flooding.send("job", str(n))
        flooding.start()
        for enough in (20, 60):
            wait_until(lambda: len(flooding.starts()) >= enough, description=f"{enough} jobs have started")  # noqa: B023
            flooding.kill()
            flooding.unlock()
            flooding.start()
        wait_until(lambda: flooding.idle(), description="no job waits any more")
        record = flooding.stop()
    starts = starts_of(record)
    assert max(starts.values()) == 1
    assert 120 - len(starts) <= record.left <= 2 * 2 + 2
    assert assert_bound(record, "one", 25_000, 10, unrecorded=2 * 2) >= len(starts)
