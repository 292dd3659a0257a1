"""
Tasks that expire against one limit, with real `celery worker` commands: how much of the limit is used?

    python tests/benchmarks/celery_expiry.py [--quick]

The limit is 20/s. For 40 s a producer sends 40 tasks a second, and 90 % of them have `expires` of 3 s. All figures are
of the bodies' own records while it sends, by the clock of the recording Redis. Exits with 1 if less than 95 % of the
limit is used, or more than the limit and its burst ran, or a task without an expiry did not run. Takes about 2 minutes;
--quick sends for 20 s.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis
from celery import Celery

from support.celery.flood import CeleryFlood, CeleryWorkers
from support.flood.run import FloodLimit
from support.reports.command import parser_of
from support.servers.flood import Servers, servers
from support.waiting import wait_until

RATE, BURST, PER_SECOND, EXPIRES = 20, 20, 40, 3.0
LEAST_USE = 0.95
_LAST_ONES = 30.0
_SLICE = 4


def measure(where: Servers, pool: str, seconds: int) -> bool:
    """Send, print what ran, and return whether it is as promised."""
    flood = CeleryFlood(limits=(FloodLimit("partner", f"{RATE}/s", BURST),), jobs=0, pool=pool)
    record: Any = redis.Redis.from_url(f"{where.redis_base}/2")
    record.flushall()
    app = Celery("sender", broker=where.broker_url, set_as_current=False)
    environment = flood.environment(where, "expiry")
    options = ["--pool", pool, "--concurrency", "4", "--without-gossip", "--without-mingle"]
    workers = CeleryWorkers("support.celery.jobs", environment, count=2, options=options)
    try:
        wait_until(lambda: workers.log().count("ready for action") == 2, description="workers are up", timeout=60)
        began = _now(record)
        last = _send(app, seconds)
        wanted = {str(n) for n in range(last) if not _expires(n)}
        with contextlib.suppress(AssertionError):
            wait_until(lambda: wanted <= _ended(record), description="the last ones have run", timeout=_LAST_ONES)
        starts = [(float(at) / 1e6 - began, job) for at, job, _ in map(_words, record.lrange("starts", 0, -1))]
        lost = len(wanted - _ended(record))
    finally:
        workers.stop(20)
        workers.close()
        app.close()
        record.close()
    while_sent = [at for at, _ in starts if at <= seconds]
    use = len(while_sent) / (RATE * seconds)
    slices = [sum(1 for at in while_sent if at // _SLICE == n) for n in range(seconds // _SLICE)]
    print(f"celery {pool:8} used {use:.2f} of the limit; ran per {_SLICE} s of {RATE * _SLICE}: {slices}; "
          f"tasks without an expiry that did not run: {lost}", flush=True)  # fmt: skip
    return LEAST_USE <= use <= 1 + BURST / (RATE * seconds) and not lost


def _send(app: Any, seconds: int) -> int:
    began, number = time.monotonic(), 0
    while number < PER_SECOND * seconds:
        expires = EXPIRES if _expires(number) else None
        app.send_task("job", (str(number), "one"), queue="expiry", expires=expires)
        number += 1
        time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
    return number


def _expires(number: int) -> bool:
    return number % 10 != 0


def _ended(record: Any) -> set[str]:
    return {each.decode() for each in record.smembers("ended")}


def _words(line: bytes) -> list[str]:
    return line.decode().split()


def _now(record: Any) -> float:
    whole, micro = record.time()
    return float(whole + micro / 1e6)


def main() -> int:
    seconds = 20 if parser_of(__doc__, quick="send for 20 s").parse_args().quick else 40
    with servers("redis") as where:
        kept = [measure(where, pool, seconds) for pool in ("prefork", "threads")]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
