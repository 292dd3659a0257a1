"""Prefetched tokens on a real server, from several processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from support.faults import histories
from support.servers.processes import Cluster
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit._wiring import wiring_of
from throttlekit.stores.cluster import RedisClusterStore

TESTS = Path(__file__).parents[1]
PROCESSES = 3
CLOCK_SLACK_US = 2_000  # one machine, but two of its clocks


def run_processes(
    url: str, folder: Path, limit: TokenBucket, *, count: int, at_once: int, killed: int
) -> list[list[list[int]]]:
    """Run several processes that make *count* decisions each, and kill one. Return what each process wrote."""
    assert limit.prefetch_for is not None
    arguments = [limit.rate, limit.burst, limit.prefetch, limit.prefetch_for]
    paths = [folder / str(number) for number in range(PROCESSES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    commands = [
        [*arguments, count if number else killed, at_once, path, "end" if number else "hang"]
        for number, path in enumerate(paths)
    ]
    processes = [
        subprocess.Popen([sys.executable, "-m", "support.jobs.leasing", url, *map(str, command)], env=environment)
        for command in commands
    ]

    def lines(path: Path) -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    try:
        wait_until(lambda: lines(paths[0]) >= killed, description="the first process has made its decisions")
        processes[0].send_signal(signal.SIGKILL)
        assert [process.wait(timeout=120) for process in processes] == [-signal.SIGKILL, *[0] * (PROCESSES - 1)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [[list(map(int, line.split())) for line in path.read_text().splitlines()] for path in paths]


def test_the_bound_is_kept_across_processes(redis_url: str, tmp_path: Path) -> None:
    """
    Every unit is charged within the bucket's bound by the server's clock, and used at most `prefetch_for` later. So no
    window of length w has more than `burst + (w + prefetch_for) / interval` units.
    """
    limit = TokenBucket("api", "3000/s", burst=600, prefetch=40, prefetch_for=0.25)
    made = run_processes(redis_url, tmp_path, limit, count=1500, at_once=150, killed=510)
    charged = [(at_us, 1) for each in made for at_us, _ in each]
    assert len(charged) >= 2 * 1500 + 510
    assert histories.check(histories.bucket(3000, 1_000_000, 600), charged) is None
    assert max(before_us - at_us for each in made for at_us, before_us in each) < 250_000 + CLOCK_SLACK_US
    at_once = [max(Counter(at_us for at_us, _ in each).values()) for each in made]
    assert max(at_once) > 1
    assert all(most <= 40 for most in at_once)


def test_a_killed_process_loses_at_most_its_prefetched_units(redis_url: str, client: Any, tmp_path: Path) -> None:
    """Each process, whether killed or ended, loses at most `prefetch` units that were charged and not used."""
    limit = TokenBucket("api", "10/s", burst=8000, prefetch=40, prefetch_for=60)
    made = run_processes(redis_url, tmp_path, limit, count=1000, at_once=1000, killed=310)
    grants = sum(map(len, made))
    (name,) = client.keys("tk1:{api:*")
    tat_us = int(client.get(name) or 0)
    # The bucket was in debt all the time, so the TAT shows the charge to the unit.
    charged = (tat_us - min(at_us for each in made for at_us, _ in each)) // 100_000
    assert grants <= charged <= grants + 40 * PROCESSES + 1  # a decision that was made and not written


def test_prefetched_units_on_a_cluster_are_returned(cluster: Cluster) -> None:
    """Limits in different hash slots are prefetched together, and a later denial returns the units."""
    limit = TokenBucket("api", "1000/s", burst=1000, prefetch=16, prefetch_for=60)
    limiter = Limiter(RedisClusterStore(cluster.url, timeout=5))
    other = TokenBucket("other", "1/h", burst=40)
    admitted = sum(limiter.acquire(limit, other).allowed for _ in range(60))
    assert admitted == 40
    prefetched = sum(entry.quota.left for entry in wiring_of(limiter).pipeline.prefetcher._held.entries.values())
    assert 1000 - limiter.peek(limit).remaining <= 40 + prefetched
    limiter.close()
