"""Real `dramatiq` worker processes in a flood. Other floods: fleet/test_floods.py; kills with Redis: faults/."""

from __future__ import annotations

import pytest
import redis

from support.flood import run as floods
from support.flood.checks import assert_bound, assert_calm, in_order, starts_of
from support.flood.run import Flood, Flooding, FloodLimit, run
from support.servers.flood import Servers
from support.waiting import wait_until

pytestmark = pytest.mark.workers


def test_32_threads_in_4_processes_hold_one_key_to_its_bound(on_redis: Servers) -> None:
    """
    A backlog on one key, four processes of eight threads: never one grant over burst + elapsed / interval,
    one EVALSHA a decision, and few besides to find out whom to wake; every job once.
    """
    client = redis.Redis.from_url(on_redis.redis_base)
    client.config_resetstat()
    limits = (FloodLimit("one", "250/s", 25),)
    told = in_order(run(Flood(limits=limits, jobs=1200, processes=4, threads=8), on_redis))
    stats = client.info("commandstats")
    client.close()
    assert assert_bound(told, "one", 4000, 25) == 1200
    assert starts_of(told) == {str(n): 1 for n in range(1200)}
    assert told.left == 0
    decisions = sum(count for name, count in told.counts.items() if name.startswith("store: "))
    evalsha, asked = stats["cmdstat_evalsha"], decisions + len(told.starts)
    # What fails with NOSCRIPT runs nothing, and is followed by one EVAL; what the fleet is told is one, too.
    assert asked - 2 * 32 <= evalsha["calls"] - evalsha["failed_calls"] <= 1.25 * asked
    assert evalsha["failed_calls"] <= 2 * 32


def test_clocks_that_are_minutes_wrong_do_not_move_the_bound(
    on_redis: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers two minutes fast and two minutes slow: jobs may come late, but never one too many passes."""
    monkeypatch.setattr(floods, "_MODULE", "support.dramatiq.skewed_jobs")
    with Flooding(Flood(limits=(FloodLimit("one", "20/s", 10),), jobs=300), on_redis) as flooding:
        for n in range(300):
            flooding.send("job", str(n))
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 60, description="far more than the burst have started")
        told = in_order(flooding.stop())
    assert assert_bound(told, "one", 50_000, 10) >= 60
    assert max(starts_of(told).values()) == 1


def test_sigterm_in_a_flood_loses_nothing_and_doubles_nothing(on_rabbitmq: Servers) -> None:
    """Workers that are stopped and started as by a deployment, three times: every job exactly once."""
    with Flooding(Flood(limits=(FloodLimit("one", "60/s", 10),), jobs=300), on_rabbitmq) as flooding:
        for n in range(300):
            flooding.send("job", str(n))
        for enough in (60, 130, 200, 300):
            flooding.start()
            wait_until(lambda: len(flooding.starts()) >= enough, description=f"{enough} have started")  # noqa: B023
            told = flooding.stop()
            flooding.kill()
        assert starts_of(told) == {str(n): 1 for n in range(300)}
        assert told.left == 0
        assert_calm(told.log)


def test_sigkill_in_a_flood_loses_nothing(on_rabbitmq: Servers) -> None:
    """Every process killed at once, three times: each job still comes to its end."""
    flood = Flood(limits=(FloodLimit("one", "60/s", 10),), jobs=250, body=0.02, kills=(0.7, 1.6, 2.8), settle=1.0)
    told = in_order(run(flood, on_rabbitmq))
    assert set(told.ends) == {str(n) for n in range(250)}
    # Each has ended: what is left would run a second time.
    assert sum(starts_of(told).values()) + told.left <= 250 + 3 * 8 * 2
