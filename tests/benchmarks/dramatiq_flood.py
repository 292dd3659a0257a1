"""
A backlog under a limit, on real brokers and real `dramatiq` workers: throttlekit and alternatives, in one run.

    python tests/benchmarks/dramatiq_flood.py [--quick] [--broker redis|rabbitmq|both] [--only TEXT] [--json FILE]

2 processes of 4 threads. The full run takes about 20 minutes, --quick about 5. Exits with 1 if throttlekit breaks
a promise; the promises are in `Row.broken`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.run import Flood, FloodLimit
from support.reports.command import each_broker
from support.reports.floods import Report, Row, flood_options

LEAST_USE_TIGHT = 0.9
_TUNED = {"min_backoff": 500, "max_backoff": 2000, "max_retries": 10_000}
_PATIENCE = 90.0

_FOOTNOTES = """\
ops: enqueue, ack and nack per job done. cmds: what the broker's Redis was asked per job done, polling included.
naive: time to one token + U(0, 1) s, polling every 50 ms, with our prefetch.
native: WindowRateLimiter(limit=rate, window=1), with Dramatiq's default retries; tuned: back-off 0.5 to 2 s,
  10 000 retries. Floods that take too long are stopped."""


def account_of(index: int) -> str:
    """Five accounts; the first has two jobs in five, so that its own limit binds as well."""
    return f"a{(0, 1, 0, 2, 0, 3, 0, 4, 1, 2)[index % 10]}"


def rows(quick: bool) -> Iterator[Row]:
    backlogs = (100, 300) if quick else (400, 4000)
    for burst in (10, 50):
        for jobs in backlogs:
            limits: tuple[FloodLimit, ...] = (FloodLimit("partner", "50/s", burst),)
            yield Row(f"throttlekit {jobs} 50/s burst {burst}", Flood(limits=limits, jobs=jobs, give_up=jobs / 50 + 60))
    limits = (FloodLimit("partner", "10/s", 1),)
    flood = Flood(limits=limits, jobs=60 if quick else 300, give_up=90)
    yield Row("throttlekit tight 10/s burst 1", flood, least_use=LEAST_USE_TIGHT, most_deliveries=None)
    limits = (FloodLimit("partner", "30/s", 30), FloodLimit("account", "10/s", 10, "{account}"))
    flood = Flood(limits=limits, jobs=200 if quick else 800, account_of=account_of, give_up=90)
    yield Row("throttlekit two limits", flood, least_use=None, most_deliveries=None)
    limits = (FloodLimit("partner", "50/s", 50),)
    patience = 20.0 if quick else _PATIENCE
    for jobs in backlogs:
        naive = Flood(limits=limits, jobs=jobs, mode="naive", give_up=patience)
        yield Row(f"naive {jobs} 50/s burst 50", naive, ours=False)
        for name, options in (("native", {}), ("native tuned", _TUNED)):
            native = Flood(limits=limits, jobs=jobs, mode="native", options=options, give_up=patience)
            yield Row(f"{name} {jobs} 50/s", native, ours=False)


def main() -> int:
    options = flood_options(__doc__, broker=True)
    title = "A backlog under a limit: 2 processes × 4 threads, per job done"
    report = Report(options, title, _FOOTNOTES, ("dramatiq", "redis", "pika"), "Results: Dramatiq")
    for where in each_broker(options):
        for row, _, found in report.run(rows(options.quick), where):
            report.add(where.kind, row, found)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
