"""The common frame of the project's charts, and pictures of terminals."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

__all__ = ["grid", "picture", "terminal"]

_STYLE = """\
text{font:12px sans-serif;fill:#333}.h{font-weight:bold}.g{stroke:#8886;stroke-width:1}
.l{stroke:#333;stroke-dasharray:4 3}
@media(prefers-color-scheme:dark){text{fill:#ddd}.l{stroke:#ddd}}"""


def picture(wide: int, high: int, drawn: Iterable[str]) -> str:
    """Return an SVG of this size with the elements *drawn*."""
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"><style>{_STYLE}</style>'
    return "\n".join([begin, *drawn, "</svg>", ""])


def grid(wide: int, high: int, panels: Sequence[Iterable[str]]) -> str:
    """Return an SVG of *panels* of this size, two in a row."""
    drawn: list[str] = []
    for number, panel in enumerate(panels):
        drawn += [f'<g transform="translate({number % 2 * wide},{number // 2 * high})">', *panel, "</g>"]
    return picture(2 * wide, -(-len(panels) // 2) * high, drawn)


def terminal(title: str, id: str, width: int, show: Callable[[Console], object]) -> str:
    """Return a picture of what *show* prints on a terminal of that width. The picture has no font of another host."""
    own_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=width, record=True, file=nowhere, force_terminal=True, highlight=False)
        show(console)
        svg = console.export_svg(title=title, code_format=own_fonts, unique_id=id)
    return re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)
