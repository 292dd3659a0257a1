"""The output of benchmarks: Markdown tables, medians with their spread, promises, and the machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

__all__ = [
    "PROMISES",
    "Promise",
    "about",
    "page",
    "print_results",
    "promises",
    "ratios",
    "spread",
    "table",
    "version_of",
    "write_collected",
]

PROMISES = ("measured by", "what", "measured", "asked for", "kept")
"""The titles of the table that `tests/benchmarks/page.py` collects from all commands."""


@dataclass(frozen=True)
class Promise:
    """
    One line of the summary.

    Attributes:
        kept: None if there is no promise, or no measurement.
    """

    what: str
    measured: str
    asked: str
    kept: bool | None


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. The first column and a column named "what" are text; the others are right-aligned."""
    lines = [titles, [":--", *(":--" if title == "what" else "--:" for title in titles[1:])], *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def promises(script: str, kept: Iterable[Promise]) -> str:
    """Return the table of the promises of *script*."""
    words = {True: "yes", False: "NO", None: "-"}
    return table(PROMISES, [(script, each.what, each.measured, each.asked, words[each.kept]) for each in kept])


def print_results(script: str, head: str, parts: Sequence[str], kept: Iterable[Promise]) -> int:
    """Print the measurements and the promises of *script*. Return its exit code."""
    found = list(kept)
    print(f"{head}\n", *(f"{part}\n" for part in parts), promises(script, found), sep="\n")
    return 1 if any(each.kept is False for each in found) else 0


def ratios(values: Sequence[float], bases: Sequence[float]) -> list[float]:
    """Return the value of each round as a multiple of the same round's base."""
    return [value / base for value, base in zip(values, bases, strict=True)]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and the quartiles; for fewer than four values, the minimum and maximum."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    low, high = min(values), max(values)
    if len(values) > 3:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{statistics.median(values):.{digits}f} [{low:.{digits}f} … {high:.{digits}f}]"


def page(
    heading: str,
    packages: Sequence[str],
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: str,
    verdict: Sequence[str],
) -> str:
    """
    Return a page of docs/results with one table, as the output of this command. Continued lines of *notes* begin with
    two blanks.
    """
    lines = [
        f"# {heading}",
        "",
        f"Printed by `{' '.join(['python', *sys.argv])}` on {date.today()}; not edited by hand.",
        about(*packages),
        "",
        *("| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows)),
        "",
        *(f"* {note}" for note in notes.replace("\n  ", " ").splitlines()),
        "",
        *(line + "\n" for line in verdict),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def about(*packages: str, servers: Sequence[str] = ()) -> str:
    """Return the versions and the machine, in one line."""
    found = {name: version_of(name) for name in packages}
    shown = [
        f"Python {platform.python_version()}",
        *(f"{name} {version}" for name, version in found.items() if version),
    ]
    where = f"{os.cpu_count()} cores of {platform.system()} {platform.machine()}"
    return f"{', '.join([*shown, *servers])}, on {where}: read the ratios, not the times."


def write_collected(folder: Path, name: str, heading: str, packages: Sequence[str], parts: Sequence[str]) -> None:
    """Write the page of a benchmark whose rows may be from several runs."""
    given = sys.argv[1:]
    for option in ("--results", "--only", "--runs", "--way", "--workers"):  # they select the rows of one of the runs
        if option in given:
            at = given.index(option)
            del given[at : at + 2]
    command = " ".join(["python", f"tests/benchmarks/{name}.py", *given])
    printed = f"Printed by `{command}`, in one run or several, on {date.today()}; not edited by hand."
    (folder / "results").mkdir(exist_ok=True)
    page = [f"# {heading}", f"{printed}\n{about(*packages)}", *parts]
    (folder / f"results/{name}.md").write_text("\n\n".join(page) + "\n", "utf-8")


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
