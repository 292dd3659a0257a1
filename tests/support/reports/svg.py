"""The frame that all of the project's charts have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["grid", "picture"]

_STYLE = """\
text{font:12px sans-serif;fill:#333}.h{font-weight:bold}.g{stroke:#8886;stroke-width:1}
.l{stroke:#333;stroke-dasharray:4 3}
@media(prefers-color-scheme:dark){text{fill:#ddd}.l{stroke:#ddd}}"""


def picture(wide: int, high: int, drawn: Iterable[str]) -> str:
    """An SVG of this size with the elements *drawn*."""
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"><style>{_STYLE}</style>'
    return "\n".join([begin, *drawn, "</svg>", ""])


def grid(wide: int, high: int, panels: Sequence[Iterable[str]]) -> str:
    """An SVG of *panels* of this size, two in a row."""
    drawn: list[str] = []
    for number, panel in enumerate(panels):
        drawn += [f'<g transform="translate({number % 2 * wide},{number // 2 * high})">', *panel, "</g>"]
    return picture(2 * wide, -(-len(panels) // 2) * high, drawn)
