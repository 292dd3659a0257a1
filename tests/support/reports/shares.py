"""The report of the rows of `tests/benchmarks/shares.py`: two tables, a picture, and the page with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from support.reports.svg import grid
from support.reports.tables import table, write_collected

__all__ = ["EACH", "Figure", "beside", "by_workers", "picture", "write"]

EACH = 2
"""The seconds of each point of the picture."""

_WIDE, _HIGH, _LEFT, _TOP, _BOTTOM = 380, 210, 40, 34, 26
_COLOURS = ("#3274d9", "#e0752d", "#56a64b", "#c9a227", "#8f3bb8", "#2aa198", "#d6567d", "#7c8794")


class Figure(NamedTuple):
    """One figure of a row. *kept* is None if there is no promise for it."""

    what: str
    measured: str
    asked: str
    kept: bool | None = None


Rows = Mapping[str, Mapping[str, Sequence[Figure]]]


def by_workers(rows: Rows, workers: Sequence[str]) -> str:
    """
    Return a table with a line for each figure of each row, and a column for each kind of workers. Missed aims are bold.
    """
    lines: list[list[str]] = []
    for name, found in rows.items():
        figures = {each.what: each.asked for of in found.values() for each in of}
        for number, (what, asked) in enumerate(figures.items()):
            cells = [next((each for each in found.get(kind, ()) if each.what == what), None) for kind in workers]
            shown = ["-" if c is None else f"**{c.measured}**" if c.kept is False else c.measured for c in cells]
            lines.append(["" if number else name, what, *shown, asked])
    return table(["", "what", *workers, "asked for"], lines)


def beside(rows: Rows) -> str:
    """Return a table with a line for each way."""
    titles = [each.what for found in rows.values() for of in found.values() for each in of if each.what != "the bound"]
    titles = list(dict.fromkeys(titles))
    lines = [
        [name, kind, *(next((each.measured for each in of if each.what == what), "-") for what in titles)]
        for name, found in rows.items()
        for kind, of in found.items()
    ]
    return table(["", "on", *titles], lines)


def picture(panels: Mapping[str, Mapping[str, Sequence[int]]], rate: int) -> str:
    """
    Return an SVG in which each panel has the stacked service of each tenant over time. The dashed line is the limit.
    """
    return grid(_WIDE, _HIGH, [_panel(title, service, rate) for title, service in panels.items()])


def _panel(title: str, service: Mapping[str, Sequence[int]], rate: int) -> Iterator[str]:
    points = max(map(len, service.values()), default=2)
    right, bottom = _WIDE - 14, _HIGH - _BOTTOM
    across, up = (right - _LEFT) / max(1, points - 1), (bottom - _TOP) / (1.2 * rate)
    yield f'<text class="h" x="{_LEFT}" y="18">{escape(title)}</text>'
    below = [0.0] * points
    for number, counts in enumerate(service.values()):
        above = [under + count / EACH for under, count in zip(below, counts, strict=True)]
        edge = [f"{_LEFT + n * across:.1f} {bottom - y * up:.1f}" for n, y in enumerate(above)]
        floor = [f"{_LEFT + n * across:.1f} {bottom - y * up:.1f}" for n, y in enumerate(below)]
        yield f'<path d="M{"L".join(edge)}L{"L".join(reversed(floor))}Z" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        below = above
    for value in (0, rate):
        y = bottom - value * up
        yield f'<path class="{"l" if value else "g"}" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value}/s</text>'
    yield f'<text x="{_LEFT}" y="{bottom + 17}">0 s</text>'
    yield f'<text x="{right}" y="{bottom + 17}" text-anchor="end">{EACH * points} s</text>'


def write(
    folder: Path, rows: Rows, others: Rows, workers: Sequence[str], panels: Mapping[str, Any], rate: int, notes: str
) -> None:
    """Write the page of this benchmark, and its picture."""
    (folder / "shares.svg").write_text(picture(panels, rate), "utf-8")
    parts = [
        by_workers(rows, workers),
        notes,
        "## Other ways",
        beside(others),
        "## The service of each tenant",
        "Each colour is a tenant, and the dashed line is the limit.",
        "![Service of each tenant over time](../shares.svg)",
    ]
    write_collected(folder, "shares", "Results: shares", ("dramatiq", "celery", "rq", "redis"), parts)
