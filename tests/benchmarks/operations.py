"""
A million random operations by eight processes on one server with injected faults: is every bound kept?

    python tests/benchmarks/operations.py [--operations 1000000] [--processes 8] [--seed 1]

Requests (of one to three limits of all algorithms, with and without a job), returns of denied jobs, peeks and settles,
while scripts are flushed, connections are killed, and the server hangs for up to 0.6 s. Each grant is recorded with the
instant at which the server charged it, and checked by `support.faults.histories`, which shares no code with the limits.
Exits with 1 if a bound is broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.faults.operations import operate
from support.reports.command import parser_of


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = operate(options.operations, processes=options.processes, seed=options.seed)
    print(found)
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
