"""The table that `top` shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from throttlekit.fleet.snapshot import Fleet
from throttlekit_cli.top.lines import Line
from throttlekit_cli.top.words import lasting, plainly

__all__ = ["screen"]

_FULL = 0.9


def screen(fleet: Fleet, lines: list[Line], *, order: str, most: int) -> RenderableType:
    """Everything at a glance. At most *most* lines of limits, and as many of keys."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("limit / key", "definition"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in ("now", "last minute", "waiting", "last starts in", "oldest wait"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("denied", overflow="ellipsis", no_wrap=True)
    for line in lines[:most]:
        _add(table, line)
        for key in line.keys:
            _add(table, key)
    parts: list[RenderableType] = [_head(fleet, order), Text(), table]
    if not lines:
        parts[-1] = Text("Nothing was decided in the last hour: no worker with this store has asked for a limit.")
    elif any(line.keys for line in lines):
        parts.append(Text("\nOf keys the most pressing are shown; a limit's own line is the sum of all.", style="dim"))
    return Group(*parts)


def _head(fleet: Fleet, order: str) -> Text:
    kinds = Counter(each.framework for each in fleet.processes if each.framework != "-")
    told = f" ({', '.join(f'{count} {name}' for name, count in sorted(kinds.items()))})" if kinds else ""
    latency = fleet.latency
    return Text.assemble(
        ("throttlekit top", "bold"),
        time.strftime("   %H:%M:%S UTC", time.gmtime(fleet.now)),
        f"   processes: {len(fleet.processes)}{told}",
        "" if latency is None else f"   store: {latency * 1000:.1f} ms",
        f"   by {order}",
    )


def _add(table: Table, line: Line) -> None:
    minute = line.minute
    name = Text(plainly(line.limit if line.key is None else f"  {line.key}"), style="bold" if line.key is None else "")
    used = "" if line.used is None else f"{line.used}/{line.capacity}"
    full = line.used is not None and line.used >= _FULL * (line.capacity or 1)
    share = "" if line.share is None else f"  {line.share:4.0%}"
    denied = ", ".join(f"{reason} {count}" for reason, count in (minute.denied or {}).items())
    table.add_row(
        name,
        plainly(line.definition),
        Text(used, style="yellow" if full else ""),
        f"{minute.units}{share}",
        "" if not line.waiting else f"about {line.waiting}",
        lasting(line.starts),
        lasting(minute.longest_wait or None),
        denied,
    )
    for note in _notes(line):
        table.add_row("", Text(note, style="magenta"))


def _notes(line: Line) -> Iterator[str]:
    notes: list[str] = []
    if line.paused is not None:
        notes.append(f"paused for {lasting(line.paused)} yet")
    if line.mean_hold is not None:
        notes.append(f"held for {lasting(line.mean_hold)} on average")
    if line.held is not None and line.used:
        notes.append(f"last given {lasting(line.held)} ago")
    if notes or line.rules:
        yield plainly("; ".join([*notes, *line.rules]))
    if line.oldest_hold is not None:  # on a line of its own: the column is as wide as the longest
        yield f"the oldest is held for {lasting(line.oldest_hold)}"
