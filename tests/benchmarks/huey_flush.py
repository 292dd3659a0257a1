"""
How long does a new job wait after `huey.flush()` has removed a backlog of the same limit? With two worker threads.

    python tests/benchmarks/huey_flush.py

Prints a table with the figures of docs/huey.md. It takes a minute.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from huey import RedisHuey

from support.servers.processes import redis_server
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_huey import install

__all__ = ["seconds_after_flush"]

CASES = (("10/s", 20, 400), ("10/s", 1, 400), ("1/s", 5, 60), ("1/s", 1, 60), ("10/minute", 1, 30))


def seconds_after_flush(url: str, rate: str, burst: int, backlog: int) -> float:
    """Send *backlog* jobs, flush what waits of them, and send another one at once; return how long that one waited."""
    huey: Any = RedisHuey("flushed", url=f"{url}/0")
    ran: list[str] = []
    with Limiter(f"{url}/1") as limiter:
        install(huey, limiter)
        task = huey.task(name="job", throttle=TokenBucket(f"{rate} {burst}", rate, burst=burst))(ran.append)
        for _ in range(backlog):
            task("old")
        consumer = huey.create_consumer(workers=2, check_worker_health=False)
        consumer.start()
        wait_until(lambda: len(huey) == 0 and len(ran) >= burst, description="all others wait")
        huey.flush()
        began = time.monotonic()
        task("new")
        wait_until(lambda: "new" in ran, description="the new job has run", timeout=600)
        took = time.monotonic() - began
        consumer.stop(graceful=True)
    huey.storage.pool.disconnect()
    return took


def main() -> None:
    print("| limit | burst | flushed jobs | a new job waits, s |\n| :-- | --: | --: | --: |")
    with redis_server() as url:
        for rate, burst, backlog in CASES:
            print(
                f"| {rate} | {burst} | {backlog} | {seconds_after_flush(url, rate, burst, backlog):.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
