"""The table that `top` shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from throttlekit.fleet.snapshot import Fleet
from throttlekit_cli.formatting import format_duration, printable
from throttlekit_cli.top.rows import Row

__all__ = ["screen"]

_FULL_SHARE = 0.9


def screen(fleet: Fleet, rows: list[Row], *, order: str, most: int) -> RenderableType:
    """The head, the table and its notes. At most *most* rows of limits, and as many of keys."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("limit / key", "definition"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in ("now", "last minute", "waiting", "last starts in", "oldest wait"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("denied", overflow="ellipsis", no_wrap=True)
    for row in rows[:most]:
        _add(table, row)
        for key in row.keys:
            _add(table, key)
    parts: list[RenderableType] = [_head(fleet, order), Text(), table]
    if not rows:
        parts[-1] = Text("Nothing was decided in the last hour: no worker has used a limit with this store.")
    elif any(row.keys for row in rows):
        parts.append(Text("\nOnly the most pressing keys are shown; a limit's own row is the sum of all.", style="dim"))
    return Group(*parts)


def _head(fleet: Fleet, order: str) -> Text:
    kinds = Counter(each.framework for each in fleet.processes if each.framework != "-")
    frameworks = f" ({', '.join(f'{count} {name}' for name, count in sorted(kinds.items()))})" if kinds else ""
    latency = fleet.latency
    return Text.assemble(
        ("throttlekit top", "bold"),
        time.strftime("   %H:%M:%S UTC", time.gmtime(fleet.now)),
        f"   processes: {len(fleet.processes)}{frameworks}",
        "" if latency is None else f"   store: {latency * 1000:.1f} ms",
        f"   by {order}",
    )


def _add(table: Table, row: Row) -> None:
    minute = row.minute
    name = Text(printable(row.limit if row.key is None else f"  {row.key}"), style="bold" if row.key is None else "")
    used = "" if row.used is None else f"{row.used}/{row.capacity}"
    full = row.used is not None and row.used >= _FULL_SHARE * (row.capacity or 1)
    share = "" if row.share is None else f"  {row.share:4.0%}"
    denied = ", ".join(f"{reason} {count}" for reason, count in (minute.denied or {}).items())
    table.add_row(
        name,
        printable(row.definition),
        Text(used, style="yellow" if full else ""),
        f"{minute.used}{share}",
        "" if not row.waiting else f"about {row.waiting}",
        format_duration(row.starts),
        format_duration(minute.longest_wait or None),
        denied,
    )
    for note in _notes(row):
        table.add_row("", Text(note, style="magenta"))
    for warning in row.warnings:
        table.add_row("", Text(printable(warning), style="bold red"))


def _notes(row: Row) -> Iterator[str]:
    notes: list[str] = []
    if row.paused is not None:
        notes.append(f"paused for {format_duration(row.paused)} yet")
    if row.mean_hold is not None:
        notes.append(f"slots are held for {format_duration(row.mean_hold)} on average")
    if row.held is not None and row.used:
        notes.append(f"the last slot was given {format_duration(row.held)} ago")
    if notes or row.rules:
        yield printable("; ".join([*notes, *row.rules]))
    if row.oldest_hold is not None:  # in a row of its own: the column is as wide as its longest text
        yield f"the oldest slot is held for {format_duration(row.oldest_hold)}"
