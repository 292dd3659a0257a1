"""
Draw the charts of docs/benchmarks.md from the tables in docs/results; measure nothing.

    python tests/benchmarks/charts.py [--docs docs]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.reports.svg import picture

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
_WIDE, _LEFT, _RIGHT, _TOP, _BAR = 760, 300, 60, 34, 22
_OURS, _OTHER = "#3274d9", "#9aa5b1"

_DECISIONS = (
    "throttlekit `TokenBucket`",
    "throttlekit 3 × `TokenBucket`",
    "throttled-py, fixed window",
    "limits, fixed window",
    "limits, moving window",
    "throttled-py, token bucket",
    "steindamm, token bucket",
    "pyrate-limiter, RedisBucket",
    "Dramatiq `WindowRateLimiter`",
    "Dramatiq `BucketRateLimiter`",
)
_FLOODS = (
    ("dramatiq", "throttlekit 400 50/s burst 50", "Dramatiq, throttlekit"),
    ("dramatiq", "native tuned 400 50/s", "Dramatiq, WindowRateLimiter, tuned"),
    ("dramatiq", "native 400 50/s", "Dramatiq, WindowRateLimiter"),
    ("dramatiq", "naive 400 50/s burst 50", "Dramatiq, retry with a random delay"),
    ("rq", "ours 500 50/s burst 10", "RQ, throttlekit"),
    ("rq", "naive 500 50/s burst 50", "RQ, enqueued again with a random delay"),
    ("celery", "throttlekit prefork 300 50/s", "Celery, throttlekit"),
    ("celery", "rate_limit prefork 300 50/s", "Celery, rate_limit"),
    ("taskiq", "throttlekit stream 500 50/s", "taskiq, throttlekit"),
    ("huey", "throttlekit 500 50/s burst 10", "huey, throttlekit"),
    ("huey", "naive 500 50/s burst 10", "huey, retry with a random delay"),
)


class Bar(NamedTuple):
    """One bar: its label, and its length as in the table."""

    label: str
    value: str


def cells(page: Path, row: str, column: str) -> str:
    """Return the cell of *column* in the first row of *page* that begins with *row*, or whose second cell is *row*."""
    titles: Sequence[str] = ()
    for line in page.read_text("utf-8").splitlines():
        if not line.startswith("|"):
            titles = ()
            continue
        found = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if not titles:
            titles = found
        elif column in titles and row in (found[0].partition(" (")[0], *found[1:2]):
            return found[titles.index(column)]
    raise SystemExit(f"{page} has no row {row!r} with a column {column!r}")


def chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars with their values, throttlekit's in another colour; the dashed line is at 1."""
    high = _TOP + _BAR * len(bars) + 12
    return picture(_WIDE, high, _drawn(title, bars, high))


def _drawn(title: str, bars: Sequence[Bar], high: int) -> Iterator[str]:
    per_unit = (_WIDE - _LEFT - _RIGHT) / max(float(bar.value) for bar in bars)
    yield f'<text class="h" x="8" y="18">{escape(title)}</text>'
    for number, bar in enumerate(bars):
        y = _TOP + number * _BAR
        width = float(bar.value) * per_unit
        colour = _OURS if "throttlekit" in bar.label else _OTHER
        yield f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>'
        yield f'<rect x="{_LEFT}" y="{y + 3}" width="{width:.1f}" height="{_BAR - 6}" fill="{colour}"/>'
        yield f'<text x="{_WIDE - _RIGHT + 12}" y="{y + 14}">{bar.value}</text>'
    yield f'<path class="l" d="M{_LEFT + per_unit:.1f} {_TOP - 6}V{high - 6}"/>'


def charts() -> dict[str, str]:
    """Return the SVG of each picture, by its name."""
    decisions = [
        Bar(row.replace("`", ""), cells(_RESULTS / "decisions.md", row, "allowed × INCR").partition(" ")[0])
        for row in _DECISIONS
    ]
    floods = [Bar(label, cells(_RESULTS / f"{page}.md", row, "use")) for page, row, label in _FLOODS]
    return {
        "benchmarks-decision.svg": chart("Latency of one allowed decision, as a multiple of a Redis INCR", decisions),
        "benchmarks-use.svg": chart("Share of a limit of 50/s that a backlog of 300 to 500 jobs used", floods),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=_RESULTS.parent, help="the folder to write the pictures to")
    options = parser.parse_args()
    for name, svg in charts().items():
        (options.docs / name).write_text(svg, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
