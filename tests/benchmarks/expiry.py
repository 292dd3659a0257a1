"""
Jobs that expire against one limit, with real worker commands: how much of the limit is used?

    python tests/benchmarks/expiry.py [--quick] [--only dramatiq] [--no-figures]

The limit is 20/s. For 40 s a producer sends 40 jobs a second, and 90 % of them expire after 3 s: by Dramatiq's
`max_age`, RQ's `ttl`, Celery's `expires`. All figures are of the bodies' own records while it sends, by the clock of
the recording Redis. Exits with 1 if less than 95 % of the limit is used (stock RQ workers: 90 %), or more than the
limit and its burst ran, or a job without an expiry did not run. Takes about 5 minutes; --quick sends for 20 s.
With --no-figures how much is used does not count, and the last jobs have ten minutes: for a machine that is busy.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dramatiq
import redis
from celery import Celery

from support.celery.flood import CeleryFlood, CeleryWorkers
from support.dramatiq.workers import Workers, make_broker
from support.flood.run import Flood, FloodLimit
from support.reports.command import parser_of
from support.rq.flood import OURS, OURS_SIMPLE
from support.rq.workers import Fleet, rq_worker
from support.servers.flood import Servers, servers
from support.waiting import wait_until
from throttlekit import TokenBucket
from throttlekit_rq import ThrottledQueue

RATE, BURST, PER_SECOND, EXPIRES = 20, 20, 40, 3
_SLICE = 4
_QUEUE = "expiry"
_FLOOD = Flood(limits=(FloodLimit("partner", f"{RATE}/s", BURST),), jobs=0)

Send = Callable[[str, bool], object]


@contextlib.contextmanager
def _dramatiq(where: Servers) -> Any:
    environment = _FLOOD.environment(where, _QUEUE)
    workers = Workers("support.flood.jobs", environment, processes=2, threads=4)
    broker = make_broker(where.broker_url, middleware=[])
    broker.declare_queue(_QUEUE)

    def send(index: str, expires: bool) -> None:
        options = {"max_age": EXPIRES * 1000} if expires else {}
        broker.enqueue(dramatiq.Message(_QUEUE, "job", (index, "one"), {}, options))

    try:
        wait_until(lambda: workers.log().count("ready for action") >= 2, description="workers", timeout=60)
        yield send
    finally:
        workers.close()
        broker.close()


@contextlib.contextmanager
def _rq(kinds: list[str], where: Servers) -> Any:
    environment = _FLOOD.environment(where, _QUEUE)
    options = ["-c", "support.rq.flood_jobs"]
    connection: Any = redis.Redis.from_url(where.broker_url)
    connection.flushall()
    fleet = Fleet([rq_worker(where.broker_url, _QUEUE, kind=kind, options=options) for kind in kinds], environment)
    queue = ThrottledQueue(_QUEUE, connection=connection)
    limit = TokenBucket("partner", f"{RATE}/s", burst=BURST)

    def send(index: str, expires: bool) -> None:
        queue.enqueue(
            "support.rq.flood_jobs.job", throttle=[limit], ttl=EXPIRES if expires else None,
            kwargs={"index": index, "account": "one"},
        )  # fmt: skip

    try:
        wait_until(lambda: fleet.log().count("*** Listening on") >= len(kinds), description="workers", timeout=60)
        yield send
    finally:
        fleet.stop()
        fleet.close()
        connection.close()


@contextlib.contextmanager
def _celery(pool: str, where: Servers) -> Any:
    environment = CeleryFlood(limits=_FLOOD.limits, jobs=0, pool=pool).environment(where, _QUEUE)
    options = ["--pool", pool, "--concurrency", "4", "--without-gossip", "--without-mingle"]
    workers = CeleryWorkers("support.celery.jobs", environment, count=2, options=options)
    app = Celery("sender", broker=where.broker_url, set_as_current=False)

    def send(index: str, expires: bool) -> None:
        app.send_task("job", (index, "one"), queue=_QUEUE, expires=EXPIRES if expires else None)

    try:
        wait_until(lambda: workers.log().count("ready for action") == 2, description="workers", timeout=60)
        yield send
    finally:
        workers.stop(20)
        workers.close()
        app.close()


class Row(NamedTuple):
    """Real workers, the least share of the limit they use, and how many seconds the last ones may take."""

    make: Callable[[Servers], Any]
    least: float = 0.95
    last_ones: float = 60


ROWS = {
    "dramatiq": Row(_dramatiq),
    "rq ours": Row(lambda where: _rq([OURS_SIMPLE, OURS], where)),
    "rq stock": Row(lambda where: _rq(["rq.SimpleWorker+scheduler", "rq.SimpleWorker"], where), least=0.9),
    "celery prefork": Row(lambda where: _celery("prefork", where), last_ones=30),
    "celery threads": Row(lambda where: _celery("threads", where), last_ones=30),
}


def measure(where: Servers, name: str, seconds: int, *, figures: bool = True) -> bool:
    """Send, print what ran, and return whether it is as promised; without *figures*, whatever the pace."""
    row = ROWS[name] if figures else ROWS[name]._replace(least=0.0, last_ones=600)
    record: Any = redis.Redis.from_url(f"{where.redis_base}/2")
    record.flushall()
    try:
        with row.make(where) as send:
            began = _now(record)
            last = _send(send, seconds)
            wanted = {str(n) for n in range(last) if not _expires(n)}
            with contextlib.suppress(AssertionError):
                wait_until(lambda: wanted <= _ended(record), description="the last ones", timeout=row.last_ones)
            starts = [float(line.split()[0]) / 1e6 - began for line in record.lrange("starts", 0, -1)]
            lost = len(wanted - _ended(record))
    finally:
        record.close()
    while_sent = [at for at in starts if at <= seconds]
    use = len(while_sent) / (RATE * seconds)
    slices = [sum(1 for at in while_sent if at // _SLICE == n) for n in range(seconds // _SLICE)]
    print(f"{name:18} used {use:.2f} of the limit; ran per {_SLICE} s of {RATE * _SLICE}: {slices}; "
          f"jobs without an expiry that did not end: {lost}", flush=True)  # fmt: skip
    return row.least <= use <= 1 + BURST / (RATE * seconds) and not lost


def _send(send: Send, seconds: int) -> int:
    began, number = time.monotonic(), 0
    while number < PER_SECOND * seconds:
        send(str(number), _expires(number))
        number += 1
        time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
    return number


def _expires(number: int) -> bool:
    return number % 10 != 0


def _ended(record: Any) -> set[str]:
    return {each.decode() for each in record.smembers("ended")}


def _now(record: Any) -> float:
    whole, micro = record.time()
    return float(whole + micro / 1e6)


def main() -> int:
    parser = parser_of(__doc__, quick="send for 20 s", only="rows whose name begins with this")
    parser.add_argument("--no-figures", action="store_true", help="whatever the pace: for a machine that is busy")
    arguments = parser.parse_args()
    kept: list[bool] = []
    for name in ROWS:
        if name.startswith(arguments.only):
            with servers("redis") as where:
                kept.append(measure(where, name, 20 if arguments.quick else 40, figures=not arguments.no_figures))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
