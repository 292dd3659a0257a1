"""
What benchmarks print, as a page of the docs: written by a command, never by hand.

    python tests/benchmarks/page.py docs/benchmarks-concurrency.md "Benchmarks: concurrency, and a 429" \\
        "dramatiq_concurrency.py --broker redis" rq_concurrency.py

Runs each command, shows what it prints, and writes all of it to the page. Exits with 1 if one of them does not end
with 0; the page says which.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PACKAGES = ("dramatiq", "rq", "celery", "redis")


def printed(command: str) -> tuple[str, int]:
    """What the benchmark that *command* names prints, and its exit code."""
    script, *options = shlex.split(command)
    process = subprocess.Popen(
        [sys.executable, str(_HERE / script), *options],
        stdout=subprocess.PIPE, text=True, encoding="utf-8", env={**os.environ, "COLUMNS": "150"},
    )  # fmt: skip
    lines: list[str] = []
    for line in process.stdout or ():
        print(line, end="", flush=True)
        lines.append(line.rstrip())
    return "\n".join(lines).strip(), process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("title")
    parser.add_argument("commands", nargs="+")
    options = parser.parse_args()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES)
    machine = f"{os.cpu_count()} cores of {platform.system()} {platform.machine()}"
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    parts = [
        f"# {options.title}",
        f"Printed by the commands below on {today}; not edited by hand.\n"
        f"Python {platform.python_version()}, {versions}, on {machine}.",
    ]
    failed = False
    for command in options.commands:
        text, code = printed(command)
        failed |= code != 0
        ended = "" if code == 0 else f"\n\nIt ended with exit code {code}."
        parts.append(f"## `python tests/benchmarks/{command}`\n\n```text\n{text}\n```{ended}")
    options.page.write_text("\n\n".join(parts) + "\n", "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
