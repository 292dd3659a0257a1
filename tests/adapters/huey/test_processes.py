"""Real `huey_consumer` processes in a flood: the bound holds exactly; no waiting job is lost, even if workers die."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.flood.checks import assert_bound, assert_calm, in_order, starts_of
from support.flood.run import FloodLimit, run
from support.huey.flood import HueyFlood, HueyFlooding
from support.servers.flood import Servers, servers
from support.waiting import wait_until

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def where() -> Iterator[Servers]:
    with servers("redis") as found:
        yield found


@pytest.mark.parametrize(
    "how",
    [
        {"jobs": 500},
        {"jobs": 200, "worker_type": "process"},
        {"jobs": 200, "worker_type": "greenlet", "threads": 16},
        {"jobs": 200, "queue_sorted": True},
        {"jobs": 200, "skews": (-0.2, 3.0)},
    ],
    ids=["threads", "processes", "greenlets", "priorities", "skewed clocks"],
)
def test_a_backlog_keeps_the_bound_and_runs_once(where: Servers, how: dict[str, Any]) -> None:
    """
    Workers of each kind: never one grant over burst + elapsed / interval, nothing charged that was not granted, each
    job once, nothing left. How often a job is denied depends on the machine's load; the benchmark holds it to 1.1.
    """
    flood = HueyFlood(limits=(FloodLimit("one", "50/s", 10),), settle=0.5, **how)
    told = in_order(run(flood, where))
    assert assert_bound(told, "one", 20_000, 10) == flood.jobs
    assert starts_of(told) == {str(n): 1 for n in range(flood.jobs)}
    assert told.left == 0
    assert sum(told.counts.get(f"store: {reason}", 0) for reason in ("exhausted", "in line")) <= 3 * flood.jobs
    assert_calm(told.log)


def test_two_limits_at_once_both_hold(where: Servers) -> None:
    """10/s for each of four accounts and 25/s for all: both hold, and a denial by one charges nothing to the other."""
    flood = HueyFlood(
        limits=(FloodLimit("account", "10/s", 5, "{account}"), FloodLimit("all", "25/s", 10)),
        jobs=100,
        account_of=lambda index: f"a{index % 4}",
        settle=0.5,
    )
    told = in_order(run(flood, where))
    assert assert_bound(told, "account", 100_000, 5) == 100
    assert assert_bound(told, "all", 40_000, 10) == 100
    assert starts_of(told) == {str(n): 1 for n in range(100)}


def test_other_jobs_pass_a_backlog(where: Servers) -> None:
    """A job without limits, behind two thousand of a limit of 5/s, runs long before them."""
    flood = HueyFlood(limits=(FloodLimit("one", "5/s", 5),), jobs=2000, processes=1, others={"free": ()})
    with HueyFlooding(flood, where) as flooding:
        for n in range(2000):
            flooding.send("job", str(n))
        flooding.send("free", "free")
        flooding.start()
        wait_until(lambda: any(start.job == "free" for start in flooding.starts()), description="the free job has run")
        assert len(flooding.starts()) < 500


@pytest.mark.parametrize("how", [{}, {"worker_type": "process", "queue_sorted": True}], ids=["threads", "processes"])
def test_kills_lose_no_waiting_job(where: Servers, how: dict[str, Any]) -> None:
    """
    Every worker is killed with SIGKILL, amid the first denials and later: each job that had not begun runs once.

    What was granted and had not noted its begin counts as begun: huey itself loses a job that a killed worker runs.
    """
    flood = HueyFlood(limits=(FloodLimit("one", "50/s", 10),), jobs=200, settle=12.0, **how)
    with HueyFlooding(flood, where) as flooding:
        for n in range(200):
            flooding.send("job", str(n))
        for begun in (1, 12, 60):
            flooding.start()
            wait_until(lambda least=begun: len(flooding.starts()) >= least, description=f"{begun} have begun")
            flooding.kill()
        flooding.start()
        wait_until(lambda: flooding.left() == 0, description="nothing waits any more", timeout=90)
        told = in_order(flooding.stop())
    starts = starts_of(told)
    assert set(starts.values()) == {1}
    assert 200 - len(starts) <= len(told.grants) - len(starts)
    assert_bound(told, "one", 20_000, 10, unheard=3 * 8)
