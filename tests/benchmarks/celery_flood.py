"""
A backlog under a limit, on real brokers and real `celery worker` commands: throttlekit and alternatives, in one run.

    python tests/benchmarks/celery_flood.py [--quick] [--broker redis|rabbitmq|both] [--only TEXT] [--json FILE]

2 workers of 2 processes or threads. The full run takes about 25 minutes, --quick about 6. Exits with 1 if
throttlekit breaks a promise; the promises are in `Row.broken` and `deferrals`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.celery.flood import CeleryFlood
from support.flood.figures import Figures
from support.flood.run import FloodLimit, FloodRecord
from support.reports.command import each_broker
from support.reports.floods import Report, Row, denials, flood_options

MOST_DEFERRALS = 1.1
_PATIENCE = 120.0

_FOOTNOTES = """\
ops: publish and acknowledgement per job done. cmds: what the broker's Redis was asked per job done, polling included.
cpu: of all processes. A task that is held is delivered once, whatever it waits; deferrals are shown below the table.
recipe: a Task base class that asks in the pool and retries after time to one token + U(0, 1) s.
rate_limit: Celery's own, at the same rate, which counts in each worker by itself; the bound is the fleet's, without a
  burst. Floods that take too long are stopped."""


def rows(quick: bool) -> Iterator[Row]:
    small, large = (150, 300) if quick else (300, 3000)
    limits: tuple[FloodLimit, ...] = (FloodLimit("partner", "50/s", 50),)
    patience = 30.0 if quick else _PATIENCE
    for pool in ("prefork", "threads"):
        for jobs in (small, large):
            flood = CeleryFlood(limits=limits, jobs=jobs, pool=pool, give_up=jobs / 50 + 60)
            yield Row(f"throttlekit {pool} {jobs} 50/s", flood)
    for workers in (1, 8):
        flood = CeleryFlood(limits=limits, jobs=small, processes=workers, threads=2, give_up=90)
        yield Row(f"throttlekit prefork {small} 50/s, {workers} workers", flood)
    limits_slow = (FloodLimit("slow", "100/minute", 20),)
    flood = CeleryFlood(limits=limits_slow, jobs=30 if quick else 120, give_up=120)
    yield Row("throttlekit prefork 100/minute burst 20", flood)
    for jobs in (small, large):
        naive = CeleryFlood(limits=limits, jobs=jobs, mode="naive", give_up=patience)
        yield Row(f"recipe prefork {jobs} 50/s", naive, ours=False)
        native = CeleryFlood(limits=limits, jobs=jobs, mode="native", give_up=patience)
        yield Row(f"rate_limit prefork {jobs} 50/s", native, ours=False)


def deferrals(report: Report, kind: str, row: Row, result: FloodRecord, found: Figures) -> None:
    """Report the mean number of deferrals of a task below the table; too many are a fault."""
    each = denials(result) / row.flood.jobs if row.ours else found.deliveries - 1
    success = result.counts.get("SUCCESS", 0)
    report.say(f"{kind} {row.name}: {each:.2f} deferrals a task, {success:.0f} of {row.flood.jobs} results SUCCESS.")
    if row.ours and each > MOST_DEFERRALS:
        report.say(f"{kind} {row.name}: {each:.2f} deferrals a task, more than {MOST_DEFERRALS}", fault=True)
    if row.ours and success != row.flood.jobs:
        report.say(f"{kind} {row.name}: {success:.0f} of {row.flood.jobs} results are SUCCESS", fault=True)


def main() -> int:
    options = flood_options(__doc__, broker=True)
    title = "A backlog under a limit: 2 workers × 2, per job done"
    report = Report(options, title, _FOOTNOTES, ("celery", "kombu", "redis"), "Results: Celery")
    for where in each_broker(options):
        for row, result, found in report.run(rows(options.quick), where):
            # A task that waits for long is also returned once, so that it keeps its position if the worker is killed.
            limit, jobs = row.flood.limits[0], row.flood.jobs
            report.add(where.kind, row, found, denials(result) / max(1, jobs - limit.burst))
            deferrals(report, where.kind, row, result, found)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
