"""
The units and slots that requests during a stall of the server take, and for how long: the table of docs/guarantees.md.

    python tests/benchmarks/stalls.py [--write docs/guarantees.md]

A Redis is stopped for 0.3, 0.6 and 2 s, by SIGSTOP, while the limiters of ten processes request once each. Prints a
table; with --write, it replaces the table in that page. Exits with 1 if more is lost than guaranteed. Takes a minute.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.faults.stalls import PROCESSES, STALLS, lost_prefetch, lost_release, lost_slots, lost_units
from support.reports.command import parser_of
from support.reports.tables import table
from support.servers.processes import RedisProcess
from throttlekit import Concurrency, Limit, SlidingLog, TokenBucket

_MARKED = re.compile(r"(?<=<!-- stalls -->\n\n).*?(?=\n\n *<!-- stalls: end -->)", re.DOTALL)
_SOON = 2.0
_PREFETCH = 10

RATES: list[tuple[str, Limit]] = [
    ("`TokenBucket`, cost 1", TokenBucket("bucket", "100/h", burst=100)),
    ("`SlidingLog`, cost 1", SlidingLog("log", "100/h")),
]


def measured(server: RedisProcess) -> tuple[list[list[str]], bool]:
    """Return the rows of the table, and whether no more is lost than guaranteed."""
    rows: list[list[str]] = []
    kept = True
    for name, limit in RATES:
        lost = [lost_units(server, seconds, limit) for seconds in STALLS]
        kept &= all(granted + units <= PROCESSES for granted, units in lost)
        rows.append([name, *[f"{granted} granted, {units} units lost" for granted, units in lost]])
    charged = [lost_prefetch(server, seconds) for seconds in STALLS]
    kept &= all(units <= _PREFETCH * PROCESSES + 2 for units in charged)
    rows.append([f"a bucket with `prefetch={_PREFETCH}`", *[f"{units} units lost" for units in charged]])
    for lease in (30, 600):
        slots = [lost_slots(server, seconds, Concurrency("slots", 8, lease=lease)) for seconds in STALLS]
        kept &= all(took <= _SOON for _, took in slots)
        rows.append(
            [f'`Concurrency("slots", 8, lease={lease})`', *[f"{n} granted, all free after {s:.1f} s" for n, s in slots]]
        )
    releases = [lost_release(server, seconds) for seconds in STALLS]
    kept &= all(took <= _SOON for took in releases)
    rows.append(["a release, lease of 600 s", *[f"free after {took:.1f} s" for took in releases]])
    return rows, kept


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page whose table is replaced")
    page: Path | None = parser.parse_args().write
    logging.getLogger("throttlekit").addHandler(logging.NullHandler())  # each limiter logs a warning for each stall
    server = RedisProcess()
    server.start()
    try:
        rows, kept = measured(server)
    finally:
        server.close()
    text = table([f"{PROCESSES} processes ask once in a stall of", *[f"{seconds} s" for seconds in STALLS]], rows)
    print(text)
    if page is not None:
        found, number = _MARKED.subn(lambda _: "\n".join(f"  {line}" for line in text.splitlines()), page.read_text())
        if number != 1:
            raise SystemExit(f"{page} must have one pair of the comments <!-- stalls --> and <!-- stalls: end -->")
        page.write_text(found, "utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
