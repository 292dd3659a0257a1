"""The report of the rows of `tests/benchmarks/adapt.py`: a table, a picture, and the page with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from support.reports.svg import grid
from support.reports.tables import spread, table, write_collected

__all__ = ["picture", "rows", "write"]

SIMULATED = (
    "Use of a simulated partner that bears 20 calls at once, of 40 declared, and how much longer calls take than alone."
)
_WIDE, _HIGH, _LEFT, _TOP, _BOTTOM = 380, 190, 44, 34, 26
_SENT = "#3274d9"

Run = Mapping[str, Any]
"""The figures of one run: refused, use and settled, and one value per second of sent and rate."""


def rows(
    found: Mapping[str, Mapping[str, Sequence[Run]]], aims: Mapping[str, tuple[float, float]], ours: Collection[str]
) -> tuple[str, bool]:
    """
    Return a table with a line for each way on each partner, and whether any aim is missed. A cell has the median with
    the minimum and maximum, and is bold if its aim is missed.

    Args:
        aims: The maximum of 429s per 1 000 calls and the minimum use, for each partner.
        ours: The ways to which the aims apply.
    """
    lines: list[list[str]] = []
    any_missed = False
    for partner, ways in found.items():
        for number, (way, runs) in enumerate(ways.items()):
            refused, use = ([run[what] for run in runs] for what in ("refused", "use"))
            most, least = aims.get(partner, (inf, 0.0)) if way in ours else (inf, 0.0)
            many, little = median(refused) > most, median(use) < least
            any_missed |= many or little
            settled = "; ".join(map(_seconds, zip(*(run["settled"] for run in runs), strict=True)))
            lines.append(
                [
                    "" if number else partner,
                    way,
                    _bold(spread(refused, 1), many),
                    _bold(spread(use), little),
                    settled,
                    str(len(runs)),
                ]
            )
    return table(["the partner", "what", "429s per 1 000", "use", "settled after, s", "runs"], lines), any_missed


def _bold(text: str, missed: bool) -> str:
    return f"**{text}**" if missed else text


def _seconds(values: Sequence[float | None]) -> str:
    """Return the median as text; None counts as the longest."""
    found = median(inf if value is None else value for value in values)
    return "never" if found == inf else f"{found:.1f}"


def picture(panels: Mapping[str, Run], highest: float) -> str:
    """Return an SVG in which each panel has the calls sent in each second, and the true limit as a dashed line."""
    return grid(_WIDE, _HIGH, [_panel(title, run, highest) for title, run in panels.items()])


def _panel(title: str, run: Run, highest: float) -> Iterator[str]:
    sent, true = run["sent"], run["rate"]
    right, bottom = _WIDE - 14, _HIGH - _BOTTOM
    across, up = (right - _LEFT) / max(1, len(sent)), (bottom - _TOP) / (1.15 * highest)
    yield f'<text class="h" x="{_LEFT}" y="18">{escape(title)}</text>'
    edge = [f"{_LEFT + (n + 0.5) * across:.1f} {bottom - min(y, 1.15 * highest) * up:.1f}" for n, y in enumerate(sent)]
    yield f'<path d="M{"L".join(edge)}" fill="none" stroke="{_SENT}" stroke-width="1.5"/>'
    steps = [f"{bottom - y * up:.1f}H{_LEFT + (n + 1) * across:.1f}" for n, y in enumerate(true)]
    yield f'<path class="l" fill="none" d="M{_LEFT} {"V".join(steps)}"/>'
    for value in sorted({0.0, true[0], highest}):
        y = bottom - value * up
        yield f'<path class="g" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:g}/s</text>'
    yield f'<text x="{_LEFT}" y="{bottom + 17}">0 s</text>'
    yield f'<text x="{right}" y="{bottom + 17}" text-anchor="end">{len(sent)} s</text>'


def write(folder: Path, shown: str, notes: str, panels: Mapping[str, Run], highest: float, simulated: str) -> None:
    """Write the page of this benchmark and its picture. *simulated* is the table of the rules for slots."""
    (folder / "adapt.svg").write_text(picture(panels, highest), "utf-8")
    packages = "dramatiq", "celery", "rq", "redis", "botocore"
    parts = [shown, notes, "## Rules for slots, simulated", SIMULATED, simulated]
    write_collected(folder, "adapt", "Results: a limit that is not known", packages, parts)
