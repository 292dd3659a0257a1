"""The doctor's findings, how they are printed, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Finding", "Grade", "exit_code", "findings_about", "print_findings"]

Grade = Literal["ok", "note", "warning", "fault"]
_MARKS = {"ok": ("✓", "green"), "note": ("·", "dim"), "warning": ("!", "yellow"), "fault": ("✗", "bold red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """
    The result of one check.

    Attributes:
        grade: "ok", "note" if no action is needed, "warning" if there may be a problem, or "fault" if a guarantee is
            or will be broken.
        about: "install", "store", "limits", or the name of a framework.
        what: The finding, as a sentence without a URL or a password.
        remedy: The change to make. "" if nothing has to change.
    """

    grade: Grade
    about: str
    what: str
    remedy: str = ""


def findings_about(about: str) -> list[Callable[..., Finding]]:
    """Return four functions that make findings: "ok", notes, warnings and faults. Each takes `what` and `remedy`."""
    return [partial(Finding, grade, about) for grade in get_args(Grade)]


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print *findings*, as a table or as a JSON list of objects."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = _MARKS[finding.grade]
        table.add_row(Text(mark, style), Text(finding.about, "dim"), Text(finding.what))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}"))
    console.print(table)
    counts = {grade: sum(finding.grade == grade for finding in findings) for grade in ("fault", "warning")}
    text = ", ".join(f"{count} {grade}{'' if count == 1 else 's'}" for grade, count in counts.items())
    console.print(Text(f"{text}.", "bold"))


def exit_code(findings: Iterable[Finding], *, strict: bool) -> int:
    """Return 0 if nothing has to change, otherwise 1. Warnings count only if *strict*."""
    bad = {"fault", "warning"} if strict else {"fault"}
    return int(any(finding.grade in bad for finding in findings))
