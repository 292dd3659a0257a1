"""
Jobs that expire while they wait for one limit, with real worker commands: how much of the limit is used?

    python tests/benchmarks/expiry.py [--quick] [--only dramatiq] [--no-figures]

The limit is 20/s. For 40 s a producer sends 40 jobs a second, and 90 % of them expire after 3 s: by Dramatiq's
`max_age`, RQ's `ttl`, Celery's `expires`. All figures are from the records of the job functions while the producer
sends, by the clock of the recording Redis. Exits with 1 if less than 95 % of the limit is used (stock RQ workers:
90 %), or more jobs than the limit and its burst ran, or a job without an expiry did not run. Takes about 5 minutes;
--quick sends for 20 s. With --no-figures the use is not judged, and the last jobs have ten minutes: for a busy machine.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.celery.flood import CeleryFlood
from support.flood.run import Flood, Flooding, FloodLimit
from support.reports.command import parser_of
from support.rq.flood import OURS, OURS_SIMPLE, RqFlood
from support.servers.flood import Servers, servers
from support.waiting import wait_until

RATE, BURST, PER_SECOND, EXPIRES = 20, 20, 40, 3
_SLICE = 4


class Row(NamedTuple):
    """Real workers, the least share of the limit that they must use, and the seconds that the last jobs may take."""

    make: Callable[..., Flood]
    least: float = 0.95
    last_ones: float = 60


ROWS = {
    "dramatiq": Row(Flood),
    "rq ours": Row(partial(RqFlood, kinds=(OURS_SIMPLE, OURS))),
    "rq stock": Row(partial(RqFlood, kinds=("rq.SimpleWorker+scheduler", "rq.SimpleWorker")), least=0.9),
    "celery prefork": Row(partial(CeleryFlood, pool="prefork", threads=4), last_ones=30),
    "celery threads": Row(partial(CeleryFlood, pool="threads", threads=4), last_ones=30),
}


def measure(where: Servers, name: str, seconds: int, *, figures: bool = True) -> bool:
    """Send jobs, print what ran, and return whether the promises are kept; without *figures*, the use is not judged."""
    row = ROWS[name] if figures else ROWS[name]._replace(least=0.0, last_ones=600)
    flood = row.make(limits=(FloodLimit("partner", f"{RATE}/s", BURST),), jobs=0)
    wanted = {str(n) for n in range(PER_SECOND * seconds) if not _expires(n)}
    with flood.flooding(flood, where) as flooding:

        def missing() -> set[str]:
            return wanted - flooding.record.smembers("ended")

        flooding.start()
        whole, micro = flooding.record.time()
        _send(flooding, seconds)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not missing(), description="the last ones", timeout=row.last_ones)
        starts = [(start.at_us - micro) / 1e6 - whole for start in flooding.starts()]
        lost = len(missing())
        flooding.fleet.stop(20)
    while_sent = [at for at in starts if at <= seconds]
    use = len(while_sent) / (RATE * seconds)
    slices = [sum(1 for at in while_sent if at // _SLICE == n) for n in range(seconds // _SLICE)]
    print(
        f"{name:18} used {use:.2f} of the limit; ran per {_SLICE} s of {RATE * _SLICE}: {slices}; "
        f"jobs without an expiry that did not end: {lost}",
        flush=True,
    )
    return row.least <= use <= 1 + BURST / (RATE * seconds) and not lost


def _send(flooding: Flooding, seconds: int) -> None:
    began = time.monotonic()
    for number in range(PER_SECOND * seconds):
        flooding.send("job", str(number), "one", expires=EXPIRES if _expires(number) else None)
        time.sleep(max(0.0, began + (number + 1) / PER_SECOND - time.monotonic()))


def _expires(number: int) -> bool:
    return number % 10 != 0


def main() -> int:
    parser = parser_of(__doc__, quick="send for 20 s", only="rows whose name begins with this")
    parser.add_argument("--no-figures", action="store_true", help="do not judge the use: for a busy machine")
    arguments = parser.parse_args()
    kept: list[bool] = []
    for name in ROWS:
        if name.startswith(arguments.only):
            with servers("redis") as where:
                kept.append(measure(where, name, 20 if arguments.quick else 40, figures=not arguments.no_figures))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
