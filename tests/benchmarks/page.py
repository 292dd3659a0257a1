"""
Write the output of benchmarks to a page of docs/results; such a page is never edited by hand.

    python tests/benchmarks/page.py docs/results/concurrency.md "Results: concurrency, and a 429" \\
        "dramatiq_concurrency.py --broker redis" rq_concurrency.py

Runs each command, prints its output, and writes the output to the page: Markdown as it is, other output as text. The
promises that the commands print (`support.reports.tables.promises`) are collected in one table at the top. Exits with 1
if a command exits with another code than 0; the page names that command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.reports.command import parser_of
from support.reports.tables import PROMISES, about, table

_HERE = Path(__file__).resolve().parent
_PACKAGES = ("dramatiq", "rq", "celery", "redis")


def printed(command: str) -> tuple[str, int]:
    """Return the output of the benchmark that *command* names, and its exit code."""
    script, *options = shlex.split(command)
    process = subprocess.Popen(
        [sys.executable, str(_HERE / script), *options],
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "150"},
    )
    lines: list[str] = []
    for line in process.stdout or ():
        print(line, end="", flush=True)
        lines.append(line.rstrip())
    return "\n".join(lines).strip(), process.wait()


def collected(text: str) -> tuple[str, list[list[str]]]:
    """*text* without its tables of promises, and the rows of these tables."""
    head, ruler = table(PROMISES, []).splitlines()
    kept: list[str] = []
    rows: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        inside = line.startswith("| ") and (inside or line == head)
        if not inside:
            kept.append(line)
        elif line not in (head, ruler):
            rows.append(line.strip("| ").split(" | "))
    return "\n".join(kept).strip(), rows


def formatted(text: str) -> str:
    """*text* unchanged if it contains a Markdown table, else as a block of plain text."""
    return text if "\n| :-- |" in text else f"```text\n{text}\n```"


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("title")
    parser.add_argument("commands", nargs="+")
    options = parser.parse_args()
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    parts = [
        f"# {options.title}",
        f"Printed by the commands below on {today}; not edited by hand.\n" + about(*_PACKAGES),
    ]
    failed, promised = False, list[list[str]]()
    for command in options.commands:
        text, code = printed(command)
        failed |= code != 0
        ended = "" if code == 0 else f"\n\nIt ended with exit code {code}."
        text, rows = collected(text)
        promised += rows
        parts.append(f"## `python tests/benchmarks/{command}`\n\n{formatted(text)}{ended}")
    if promised:
        parts.insert(2, table(PROMISES, promised))
    options.page.write_text("\n\n".join(parts) + "\n", "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
