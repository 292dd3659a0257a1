"""Real `rq worker` processes in a flood: the bound holds exactly and no job is lost, even if workers die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from support.flood.checks import assert_bound, assert_calm, in_order, starts_of
from support.flood.run import Flood, Flooding, FloodLimit, run
from support.rq.flood import OURS, OURS_SIMPLE, STOCK, RqFlood, RqFlooding
from support.servers.flood import Servers, servers
from support.waiting import wait_until

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def where() -> Iterator[Servers]:
    with servers("redis") as found:
        yield found


def once(jobs: int) -> dict[str, int]:
    return {str(n): 1 for n in range(jobs)}


@pytest.mark.parametrize(
    ("kinds", "jobs", "rate", "burst"),
    [
        ((OURS, OURS), 200, 50, 10),
        ((OURS_SIMPLE, OURS_SIMPLE, OURS_SIMPLE), 400, 100, 10),
        ((STOCK, STOCK), 60, 20, 20),
        ((STOCK, OURS), 80, 20, 5),
        (("rq.SimpleWorker", "rq.Worker"), 60, 20, 5),
    ],
    ids=["ours", "ours-simple", "stock", "stock-and-ours", "no-scheduler"],
)
def test_a_backlog_keeps_the_bound_and_runs_once(
    where: Servers, kinds: tuple[str, ...], jobs: int, rate: int, burst: int
) -> None:
    """
    Workers of each kind, alone and mixed, with RQ's scheduler and with none: never one grant over
    burst + elapsed / interval, nothing charged that was not granted, each job once, nothing left.
    """
    flood = RqFlood(limits=(FloodLimit("one", f"{rate}/s", burst),), jobs=jobs, kinds=kinds, settle=0.5)
    told = in_order(run(flood, where))
    assert assert_bound(told, "one", 1_000_000 // rate, burst) == jobs
    assert starts_of(told) == once(jobs)
    assert told.left == 0
    assert_calm(told.log)


def test_two_limits_at_once_both_hold(where: Servers) -> None:
    """10/s for each of four accounts and 25/s for all: both hold, and a denial by one charges nothing to the other."""
    flood = RqFlood(
        limits=(FloodLimit("account", "10/s", 5, "{account}"), FloodLimit("all", "25/s", 10)),
        jobs=100,
        account_of=lambda n: f"a{n % 4}",
        settle=0.5,
    )
    told = in_order(run(flood, where))
    assert assert_bound(told, "all", 40_000, 10) == 100
    assert assert_bound(told, "account", 100_000, 5) == 100
    assert starts_of(told) == once(100)


def test_a_mixed_fleet_survives_schedulers_that_come_and_go(where: Servers) -> None:
    """
    400 jobs, workers of ours and stock ones side by side, and a stock worker with RQ's scheduler that is
    stopped and started every 2 seconds: no job runs twice, and none is lost but those that RQ's own worker had in
    its hands, and had not begun, as it was stopped (RQ's issue 2236): it leaves those in the intermediate queue.
    """
    limits = (FloodLimit("one", "40/s", 40),)
    fleet = RqFlood(limits=limits, jobs=400, kinds=(OURS, OURS_SIMPLE, "rq.Worker"))
    stops = 0
    with RqFlooding(fleet, where) as flooding:
        for n in range(400):
            flooding.send("job", str(n))
        flooding.start()
        deadline = time.monotonic() + 240
        orphans = set[str]()  # who was one all the while, and not only for the moment before it began
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
        told = in_order(flooding.stop())
        lost = len(flooding.orphans())
    assert lost <= stops + 1, "each stop of a stock worker orphans one job at most"
    assert_bound(told, "one", 25_000, 40)
    assert set(starts_of(told).values()) == {1}
    assert len(starts_of(told)) == 400 - lost


def test_rq_and_dramatiq_share_one_limit(where: Servers) -> None:
    """Workers of both frameworks at the same time, one limit by name: the sum of their grants holds the bound."""
    limits = (FloodLimit("shared", "50/s", 10),)
    with (
        Flooding(Flood(limits=limits, jobs=100, processes=1), where) as dramatiqs,
        servers("redis") as other,
        RqFlooding(RqFlood(limits=limits, jobs=100), Servers("redis", other.broker_url, where.redis_base)) as rqs,
    ):
        for n in range(100):
            dramatiqs.send("job", str(n))
            rqs.send("job", str(100 + n))
        dramatiqs.start()
        rqs.start()
        wait_until(lambda: len(rqs.starts()) == 200, description="all jobs of both have started")
        rqs.stop()
        told = in_order(dramatiqs.stop())
    assert assert_bound(told, "shared", 20_000, 10) == 200
    assert starts_of(told) == {str(n): 1 for n in range(200)}
    in_both = Counter(int(job) < 100 for job in starts_of(told))
    assert in_both == {True: 100, False: 100}


def test_sigterm_in_a_flood_loses_nothing_and_doubles_nothing(where: Servers) -> None:
    """Workers that are stopped and started as by a deployment, three times: every job exactly once."""
    flood = RqFlood(limits=(FloodLimit("one", "60/s", 10),), jobs=240, kinds=(OURS, OURS_SIMPLE))
    with RqFlooding(flood, where) as flooding:
        for n in range(240):
            flooding.send("job", str(n))
        for enough in (50, 110, 170, 240):
            flooding.start()
            wait_until(lambda: len(flooding.starts()) >= enough, description=f"{enough} have started")  # noqa: B023
            told = flooding.stop()
            flooding.kill()
        assert starts_of(told) == once(240)
        assert told.left == 0
        assert_calm(told.log)


@pytest.mark.parametrize("kind", [OURS, STOCK])
def test_sigkill_in_a_flood_loses_no_waiting_job(where: Servers, kind: str) -> None:
    """
    Every process killed at once, twice. Of the jobs that a worker had in its hands, RQ says what becomes;
    there are at most as many as workers, and with stock ones as many again at the end: SIGTERM may find them
    with a job that they have not begun (RQ's issue 2236). All others run, and none runs twice.
    """
    limits = (FloodLimit("one", "40/s", 10),)
    flood = RqFlood(limits=limits, jobs=120, kinds=(kind, kind), kills=(1.0, 2.2), give_up=8.0, settle=1.0)
    with RqFlooding(flood, where) as flooding:
        for n in range(120):
            flooding.send("job", str(n))
        flooding.start()
        for enough in (20, 60):
            wait_until(lambda: len(flooding.starts()) >= enough, description=f"{enough} have started")  # noqa: B023
            flooding.kill()
            flooding.unlock()
            flooding.start()
        wait_until(lambda: flooding.idle(), description="nothing waits any more")
        told = in_order(flooding.stop())
    starts = starts_of(told)
    assert max(starts.values()) == 1
    assert 120 - len(starts) <= told.left <= 2 * 2 + (2 if kind == STOCK else 0)
    assert assert_bound(told, "one", 25_000, 10, unheard=2 * 2) >= len(starts)
