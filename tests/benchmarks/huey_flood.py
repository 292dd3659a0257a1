"""
A backlog under a limit, on real `huey_consumer` processes: throttlekit, huey's own `rate_limit`, and a naive task.

    python tests/benchmarks/huey_flood.py [--quick] [--only TEXT] [--json FILE] [--markdown FILE]

2 consumers of 4 workers. The full run takes about 10 minutes, --quick about 2. Exits with 1 if throttlekit breaks a
promise; the promises are in `Row.broken`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.run import FloodLimit
from support.huey.flood import HueyFlood
from support.reports.floods import Report, Row, denials, flood_options
from support.servers.flood import servers

LEAST_USE_TIGHT = 0.9
MOST_DENIALS = 1.1
SKEW = 0.2

_FOOTNOTES = """\
cmds: what the Redis of huey was asked per job done, what scripts call and all polling included.
CPU: of both consumers.
huey's own: `huey.rate_limit`, which counts in whole seconds of the worker's clock. skewed: the clock of one of the two
  consumers is 200 ms behind the other's. throttlekit does not read it: it goes by the clock of the limits' Redis.
naive: a task that asks, and raises RetryTask(delay=time to one token + U(0, 1) s)."""


def rows(quick: bool) -> Iterator[Row]:
    fast, tight = FloodLimit("partner", "50/s", 10), FloodLimit("partner", "10/s", 1)
    for jobs in (150,) if quick else (500, 5000):
        yield Row(f"throttlekit {jobs} 50/s burst 10", _flood(fast, jobs))
    jobs = 150 if quick else 500
    yield Row(f"processes {jobs} 50/s burst 10", _flood(fast, jobs, worker_type="process"))
    yield Row(f"greenlets {jobs} 50/s burst 10", _flood(fast, jobs, worker_type="greenlet"))
    yield Row(f"priorities {jobs} 50/s burst 10", _flood(fast, jobs, queue_sorted=True))
    flood = _flood(tight, 60 if quick else 120)
    yield Row("tight 10/s burst 1", flood, least_use=LEAST_USE_TIGHT, most_deliveries=None)
    yield Row(f"naive {jobs} 50/s burst 10", _flood(fast, jobs, mode="naive", give_up=60), ours=False)
    jobs = 150 if quick else 5000
    yield Row(f"skewed {jobs} 50/s burst 10", _flood(fast, jobs, skews=(-SKEW,)))
    for name, skews in (("huey's own", ()), ("huey's own, skewed", (-SKEW,))):
        yield Row(f"{name} {jobs} 50/s", _flood(fast, jobs, mode="native", skews=skews, give_up=60), ours=False)


def _flood(limit: FloodLimit, jobs: int, **options: Any) -> HueyFlood:
    return HueyFlood(limits=(limit,), jobs=jobs, **{"give_up": jobs / 50 + 60, **options})


def main() -> int:
    options = flood_options(__doc__)
    title = "A backlog under a limit: 2 consumers × 4 workers, per job done"
    report = Report(options, title, _FOOTNOTES, ("huey", "redis"), "Results: huey")
    with servers("redis") as where:
        for row, result, found in report.run(rows(options.quick), where):
            report.add("redis", row, found)
            if row.ours:
                each = denials(result) / max(1, found.done)
                fault = each > MOST_DENIALS and row.least_use == 0.97
                report.say(f"{row.name}: {each:.2f} denials a job", fault=fault)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
