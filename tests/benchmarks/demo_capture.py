"""
Record the output of `throttlekit demo` as an animated image, in which each line appears when it was printed.

    python tests/benchmarks/demo_capture.py [--svg docs/images/demo.svg] [--options "--framework rq"]

Where the reader's system requests reduced motion, the image shows all lines at once.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console

from support.reports.command import parser_of
from support.reports.svg import terminal

_WIDTH = 100
_STYLE = """
    @media (prefers-reduced-motion: no-preference) {
        .line { animation: appear 0.01s both }
        @keyframes appear { from { opacity: 0 } to { opacity: 1 } }
    }
"""


def recorded(options: list[str]) -> list[tuple[float, str]]:
    """Return each line that the demo prints, with the seconds since the start."""
    command = [sys.executable, "-m", "throttlekit_cli", "demo", *options]
    lines = [(0.0, shlex.join(["$ throttlekit", "demo", *options]).replace("'", "")), (0.0, "")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        began = time.monotonic()
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append((time.monotonic() - began, line.rstrip()))
    if process.returncode:
        raise SystemExit(f"the demo ended with {process.returncode}")
    return lines


def svg_of(lines: list[tuple[float, str]]) -> str:
    """Return the lines as an animated SVG."""
    at: list[float] = []

    def show(console: Console) -> None:
        for seconds, line in lines:
            for part in re.findall(rf".{{1,{_WIDTH}}}(?:\s|$)|^$", line) or [""]:
                console.print(part.rstrip(), markup=False, no_wrap=True, overflow="crop")
                at.append(seconds)

    svg = terminal("throttlekit demo", "demo", _WIDTH, show).replace("</style>", _STYLE + "</style>", 1)

    def with_delay(found: re.Match[str]) -> str:
        delay = f"animation-delay: {at[int(found[2])]:.1f}s"
        return f'class="demo-r1 line" style="{delay}"{found[1]}url(#demo-line-{found[2]})"'

    return re.sub(r'class="demo-r1"([^>]*?clip-path=")url\(#demo-line-(\d+)\)"', with_delay, svg)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--options", default="")
    options = parser.parse_args()
    svg = svg_of(recorded(shlex.split(options.options)))
    if options.svg:
        options.svg.write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
