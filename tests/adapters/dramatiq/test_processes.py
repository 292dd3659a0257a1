"""Real `dramatiq` worker processes in a flood. Other floods: fleet/test_floods.py; kills with Redis: faults/."""

from __future__ import annotations

import pytest
import redis

from support.flood import run as floods
from support.flood.checks import assert_bound, assert_calm, starts_of
from support.flood.run import Flood, Flooding, FloodLimit, run
from support.servers.flood import Servers
from support.waiting import wait_until

pytestmark = pytest.mark.workers


def test_32_threads_in_4_processes_hold_one_key_to_its_bound(on_redis: Servers) -> None:
    """
    With a backlog on one key and four processes of eight threads, no grant exceeds burst + elapsed / interval. There is
    one EVALSHA for each decision, and few others to find the next job to wake. Every job runs once.
    """
    client = redis.Redis.from_url(on_redis.redis_base)
    client.config_resetstat()
    limits = (FloodLimit("one", "250/s", 25),)
    record = run(Flood(limits=limits, jobs=1200, processes=4, threads=8), on_redis)
    stats = client.info("commandstats")
    client.close()
    assert assert_bound(record, "one", 4000, 25) == 1200
    assert starts_of(record) == {str(n): 1 for n in range(1200)}
    assert record.left == 0
    decisions = sum(count for name, count in record.counts.items() if name.startswith("store: "))
    evalsha, expected_calls = stats["cmdstat_evalsha"], decisions + len(record.starts)
    # A call that fails with NOSCRIPT runs nothing, and is followed by one EVAL. A report to the fleet is one EVAL too.
    assert expected_calls - 2 * 32 <= evalsha["calls"] - evalsha["failed_calls"] <= 1.25 * expected_calls
    assert evalsha["failed_calls"] <= 2 * 32


def test_clocks_that_are_minutes_wrong_do_not_change_the_bound(
    on_redis: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With workers two minutes fast and two minutes slow, jobs can be late, but the bound is never exceeded."""
    monkeypatch.setattr(floods, "_MODULE", "support.dramatiq.skewed_jobs")
    with Flooding(Flood(limits=(FloodLimit("one", "20/s", 10),), jobs=300), on_redis) as flooding:
        flooding.send_backlog()
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 60, description="many more jobs than the burst have started")
        record = flooding.stop()
    assert assert_bound(record, "one", 50_000, 10) >= 60
    assert max(starts_of(record).values()) == 1


def test_sigterm_in_a_flood_runs_every_job_exactly_once(on_rabbitmq: Servers) -> None:
    """Workers are stopped and started three times, as by a deployment. Every job runs exactly once."""
    with Flooding(Flood(limits=(FloodLimit("one", "60/s", 10),), jobs=300), on_rabbitmq) as flooding:
        flooding.send_backlog()
        for enough in (60, 130, 200, 300):
            flooding.start()
            wait_until(lambda: len(flooding.starts()) >= enough, description=f"{enough} jobs have started")  # noqa: B023
            record = flooding.stop()
            flooding.kill()
        assert starts_of(record) == {str(n): 1 for n in range(300)}
        assert record.left == 0
        assert_calm(record.log)


def test_sigkill_in_a_flood_loses_nothing(on_rabbitmq: Servers) -> None:
    """Every process is killed at once, three times. Each job still ends."""
    flood = Flood(limits=(FloodLimit("one", "60/s", 10),), jobs=250, body=0.02, kills=(0.7, 1.6, 2.8), settle=1.0)
    record = run(flood, on_rabbitmq)
    assert set(record.ends) == {str(n) for n in range(250)}
    # Each job has ended. A message that is left would run a second time.
    assert sum(starts_of(record).values()) + record.left <= 250 + 3 * 8 * 2
