"""
A backlog under a limit, on real `rq worker` processes: stock, throttlekit's, and a naive job without throttlekit.

    python tests/benchmarks/rq_flood.py [--quick] [--only TEXT] [--json FILE] [--markdown FILE]

2 workers. The full run takes about 10 minutes, --quick about 2. Below the table: the cost of a denial that is decided
before the fork, and of one in the work-horse. Exits with 1 if throttlekit breaks a promise; the promises are in
`Row.broken`, and in `cost_of_denials`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis
from rq.job import JobStatus

from support.flood.run import FloodLimit
from support.reports.floods import Report, Row, flood_options
from support.rq import jobs as rq_jobs
from support.rq.flood import OURS, OURS_SIMPLE, STOCK, RqFlood
from support.rq.workers import Fleet, rq_worker
from support.servers.flood import Servers, servers
from support.waiting import wait_until
from throttlekit import Limiter
from throttlekit_rq import ThrottledQueue

LEAST_USE_STOCK = 0.85
LEAST_USE_TIGHT = 0.9
MOST_SHARE = 1 / 20
WOKEN = ("rq.Worker", "rq.Worker")

_FOOTNOTES = """\
cmds: what the Redis of RQ was asked per job done, RQ's own some 60 and all polling included.
CPU: of workers and work-horses, all processes.
ours: ThrottledWorker; ours simple: ThrottledSimpleWorker; stock: `rq worker --with-scheduler`;
  woken: `rq worker`, with `throttlekit wake` beside two of them.
naive: stock workers; a job that is denied enqueues another with enqueue_in(time to one token + U(0, 1) s), and ends."""


def rows(quick: bool) -> Iterator[Row]:
    fast, slow, tight = (FloodLimit("partner", *limit) for limit in (("50/s", 50), ("10/s", 10), ("10/s", 1)))
    for jobs in (150,) if quick else (500, 5000):
        flood = RqFlood(limits=(FloodLimit("partner", "50/s", 10),), jobs=jobs, give_up=jobs / 50 + 60)
        yield Row(f"ours {jobs} 50/s burst 10", flood)
    jobs = 150 if quick else 500
    yield Row(f"ours simple {jobs} 50/s burst 10", _flood("50/s", 10, jobs, OURS_SIMPLE))
    jobs = 60 if quick else 120
    yield Row(f"ours {jobs} 10/s burst 10", _flood("10/s", 10, jobs, OURS))
    flood = RqFlood(limits=(tight,), jobs=jobs, give_up=90)
    yield Row(f"ours tight {jobs} 10/s burst 1", flood, least_use=LEAST_USE_TIGHT, most_deliveries=None)
    # In a small flood, the first second, in which RQ's scheduler is late, weighs too much.
    least = None if quick else LEAST_USE_STOCK
    for jobs in (60,) if quick else (120, 600):
        yield Row(f"stock {jobs} 10/s burst 10", _flood("10/s", 10, jobs, STOCK), least_use=least)
    flood = RqFlood(limits=(tight,), jobs=60 if quick else 120, kinds=(STOCK, STOCK), give_up=90)
    yield Row(f"stock tight {flood.jobs} 10/s burst 1", flood, least_use=None, most_deliveries=None)
    for rate, burst, jobs in (("10/s", 10, 60 if quick else 120), ("20/s", 20, 100 if quick else 500)):
        flood = RqFlood(limits=(FloodLimit("partner", rate, burst),), jobs=jobs, kinds=WOKEN, wakes=True, give_up=120)
        yield Row(f"woken {jobs} {rate} burst {burst}", flood)
    flood = RqFlood(limits=(tight,), jobs=60 if quick else 120, kinds=WOKEN, wakes=True, give_up=90)
    yield Row(f"woken tight {flood.jobs} 10/s burst 1", flood, least_use=None, most_deliveries=None)
    for limit, jobs in ((slow, 60 if quick else 120), (fast, 150 if quick else 500)):
        naive = RqFlood(limits=(limit,), jobs=jobs, kinds=(STOCK, STOCK), mode="naive", give_up=60)
        yield Row(f"naive {jobs} {limit.rate} burst {limit.burst}", naive, ours=False)


def _flood(rate: str, burst: int, jobs: int, kind: str) -> RqFlood:
    return RqFlood(limits=(FloodLimit("partner", rate, burst),), jobs=jobs, kinds=(kind, kind), give_up=120)


def cost_of_denials(report: Report, where: Servers, quick: bool) -> None:
    """The cost of a denial for one worker before the fork, and in the work-horse, in seconds of its time."""
    jobs = {OURS: 400 if quick else 4000, STOCK: 40 if quick else 400}
    cost = {kind: _cost_of_denial(where, kind, count) for kind, count in jobs.items()}
    share = cost[OURS] / cost[STOCK]
    report.say(
        f"A denial takes {1000 * cost[OURS]:.2f} ms before the fork, and {1000 * cost[STOCK]:.1f} ms in the "
        f"work-horse: 1/{1 / share:.0f} of it. One worker, {jobs[OURS]} and {jobs[STOCK]} denials, first to last."
    )
    if share > MOST_SHARE:
        report.say(f"a denial before the fork costs {share:.3f} of one in the work-horse, more than 1/20", fault=True)


def _cost_of_denial(where: Servers, kind: str, jobs: int) -> float:
    client = redis.Redis.from_url(where.broker_url)
    client.flushall()
    limiter = Limiter(f"{where.redis_base}/1")
    limiter.reset(rq_jobs.HOURLY)
    assert limiter.acquire(rq_jobs.HOURLY).allowed
    queue = ThrottledQueue("denials", connection=client)
    queue.enqueue_many([queue.prepare_data(rq_jobs.plain, throttle=[rq_jobs.HOURLY]) for _ in range(jobs)])
    registry = queue.scheduled_job_registry
    command = rq_worker(where.broker_url, "denials", kind=kind, options=["-c", "support.rq.preload"])
    with Fleet([command], {"THROTTLEKIT_URL": f"{where.redis_base}/1"}):
        began, first = _when(lambda: registry.count > 0), registry.count
        ended = _when(lambda: registry.count == jobs)
    assert queue.job_ids == []
    assert queue.fetch_job(registry.get_job_ids()[0]).get_status() == JobStatus.SCHEDULED  # type: ignore[union-attr]
    limiter.close()
    client.close()
    return (ended - began) / (jobs - first)


def _when(condition: object) -> float:
    wait_until(condition, description="jobs are denied", timeout=120, every=0.001)  # type: ignore[arg-type]
    return time.monotonic()


def main() -> int:
    options = flood_options(__doc__)
    report = Report(
        options, "A backlog under a limit: 2 workers, per job done", _FOOTNOTES, ("rq", "redis"), "Results: RQ"
    )
    with servers("redis") as where:
        for row, _, found in report.run(rows(options.quick), where):
            report.add("redis", row, found)
        if options.only in "denials":
            cost_of_denials(report, where, options.quick)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
