"""
The parts of the screen that `top` shows, for any width.

Columns are shown in the order of `_COLUMNS` until the width is full. Names may be cut, numbers never. At 80 columns,
the name, the units used now, the waiting jobs and the longest wait are shown. The definition is below the name if there
is no room beside it. A terminal shows one page of the lines, and the notes below the limits on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from throttlekit_cli.formatting import format_duration, format_time, printable
from throttlekit_cli.state import Counts, FleetState, LimitState, TenantState

__all__ = ["Row", "foot_of", "head_of", "help_of", "pages_of", "rows_of", "table_of", "wrap"]

_FULL_SHARE = 0.9
_GAP = 2
_MIN_NAME, _MAX_NAME = 14, 40
_ALWAYS = 3
"""The number of columns, the first of `_COLUMNS`, that are shown at any width."""
_BAR_CELLS = 10
_SPARKS, _SPARKS_TITLE = "▁▂▃▄▅▆▇█", "recent use"
_INDENT = 4
_WRAPS = Console(force_terminal=False)


class Row(NamedTuple):
    """
    A line of the table: a limit, or one of its keys.

    Attributes:
        id: The name of the limit, and the key, or None for the line of a limit.
        limit: The limit, or None for the line of a key.
    """

    id: tuple[str, str | None]
    counts: Counts
    limit: LimitState | None = None


def rows_of(limits: Sequence[LimitState]) -> list[Row]:
    """Return the lines of *limits*. Each key of a limit with keys has its own line, with use and waiting jobs."""
    rows = list[Row]()
    for limit in limits:
        counts: Counts = limit
        if limit.has_keys:
            counts = Counts(last_minute=limit.last_minute, oldest_wait_seconds=limit.oldest_wait_seconds)
        rows.append(Row((limit.limit, None), counts, limit))
        rows += [Row((limit.limit, key.key), key) for key in limit.keys if limit.has_keys]
    return rows


@dataclass(frozen=True, slots=True)
class _Column:
    """
    A column of the table.

    Attributes:
        place: The column's position on the screen, from the left. Its position in `_COLUMNS` is its priority.
    """

    title: str
    place: int
    text: Callable[[Row], str]
    left: bool = False


def _used_text(row: Row) -> str:
    return "" if row.counts.used is None else f"{row.counts.used}/{row.counts.capacity}"


def _waiting_text(row: Row) -> str:
    jobs, units = row.counts.waiting_jobs, row.counts.waiting_units
    return "" if not jobs else f"~{jobs}" if units == jobs else f"~{jobs} ({units} units)"


def _share_text(row: Row) -> str:
    minute = row.counts.last_minute
    return "" if minute is None or minute.rate_used_ratio is None else f"{minute.rate_used_ratio:.0%}"


def _state(row: Row) -> str:
    counts, rules = row.counts, row.limit.rules if row.limit else ()
    if counts.paused_for_seconds is not None or any(rule.what == "pause" and rule.part is None for rule in rules):
        return "paused"
    if counts.slowed is not None:
        return "slow"
    # Without this condition, the state of a limit with a small burst would flicker.
    now = (counts.used or 0) / (counts.capacity or 1) if counts.waiting_jobs else 0.0
    return "full" if max(counts.use or 0.0, now) >= _FULL_SHARE else ""


def _bar_text(row: Row) -> str:
    if row.counts.use is None:
        return ""
    filled = min(_BAR_CELLS, round(_BAR_CELLS * row.counts.use))
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _units_text(row: Row) -> str:
    minute = row.counts.last_minute
    if minute is None:
        return "not known"
    return f"{minute.units}" if minute.units or minute.allowed else ""


def _denied_text(row: Row) -> str:
    denied = row.counts.last_minute.denied if row.counts.last_minute else {}
    return ", ".join(f"{reason} {count}" for reason, count in denied.items())


_COLUMNS = (
    _Column("now", 1, _used_text),
    _Column("waiting", 6, _waiting_text),
    _Column("oldest", 8, lambda row: format_duration(row.counts.oldest_wait_seconds or None)),
    _Column("429s", 9, lambda row: f"{(row.limit and row.limit.downstream_429) or ''}"),
    _Column("", 3, _state, left=True),
    _Column("use", 2, _bar_text, left=True),
    _Column("units/min", 4, _units_text),
    _Column("share", 5, _share_text),
    _Column("last starts", 7, lambda row: format_duration(row.counts.last_starts_in_seconds)),
    _Column("definition", 0, lambda row: printable(row.limit.definition if row.limit else ""), left=True),
    _Column("denied", 10, _denied_text, left=True),
)
_STYLES: Mapping[str, str] = {"full": "bold", "paused": "bold magenta", "slow": "bold cyan", "": ""}
_WORSE = "yellow"


def pages_of(blocks: Sequence[list[Text]], size: int | None) -> list[list[Text]]:
    """Return the lines of *blocks* in pages of at most *size* lines. A block that fits on a page is not divided."""
    pages = [list[Text]()]
    for block in blocks:
        if size is not None and pages[-1] and len(pages[-1]) + len(block) > size:
            pages.append([])
        pages[-1] += block
    return [page[at : at + (size or len(page))] for page in pages for at in range(0, len(page), size or len(page))]


def foot_of(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the notes below the table."""
    if any(row.limit is None for row in rows):
        yield "Only the most pressing keys are shown; a limit's own row covers all its keys."
    if any(row.limit and row.limit.has_digests for row in rows):
        yield (
            "Keys and tenants are shown as digests like #02925d1b. To see their names, use --show-keys, or "
            "show_key=True for a limit whose keys are not secret."
        )


def head_of(fleet: FleetState, store: str, order: str, width: int) -> Text:
    """Return the first line of the screen. If it is too long, the least important parts are omitted."""
    kinds = [f"{count} {name}" for name, count in fleet.frameworks.items() if name != "-"]
    frameworks = f" ({', '.join(kinds)})" if kinds else ""
    if not fleet.processes and any(each.denials or each.units for each in fleet.limits):
        frameworks = " (and short-lived ones)"
    latency = fleet.store_latency_seconds
    parts = {
        "command": "throttlekit top",
        "store": store,
        "latency": "" if latency is None else f"{latency * 1000:.1f} ms",
        "time": format_time(fleet.now),
        "processes": f"processes: {len(fleet.processes)}{frameworks}",
        "order": f"by {order}" if order else "",
    }
    shorter = ("order", ""), ("command", "top"), ("processes", f"processes: {len(fleet.processes)}"), ("latency", "")
    for part, text in (*shorter, ("time", ""), ("processes", "")):
        if cell_len("  ".join(filter(None, parts.values()))) <= width:
            break
        parts[part] = text
    styles = {"command": "bold", "store": "bold cyan"}
    shown = [(text, styles.get(part, "")) for part, text in parts.items() if text]
    line = Text("  ", no_wrap=True, overflow="ellipsis").join([Text(text, style) for text, style in shown])
    line.truncate(width, overflow="ellipsis")
    return line


def help_of(order: str, name: str, page: int, pages: int, *, notes: bool) -> Text:
    """Return the line that names the keys of the keyboard. *name* is the current filter."""
    turn = [f"space/b page {page + 1}/{pages}"] if pages > 1 else []
    what = ["q quit", f"s sort: {order}", f"n {'hide' if notes else 'show'} notes", *turn]
    return Text("   ".join([*what, f"/ filter: {name or 'all'}"]), "dim", no_wrap=True, overflow="ellipsis")


def table_of(
    rows: Sequence[Row], width: int, history: Mapping[tuple[str, str | None], Sequence[float]], *, notes: bool
) -> Iterator[list[Text]]:
    """
    Yield the titles, and then the lines of each row.

    Args:
        history: The use of each limit and key at the last updates, the newest last, for sparklines.
        notes: Whether to show the definitions, and the notes below limits. Warnings are always shown.
    """
    names = [printable(row.id[0] if row.limit else f"  {row.id[1]}") for row in rows]
    sparks = [_spark(history.get(row.id, ())) for row in rows]
    columns, widths, name_width = _choose_columns(rows, names, width)
    has_definition = any(column.title == "definition" for column in columns)
    spark_width = max(len(_SPARKS_TITLE), *map(len, sparks))
    with_sparks = any(sparks) and name_width + sum(widths) + _GAP * (len(columns) + 1) + spark_width <= width
    titles = [(column.title, "bold") for column in columns]
    yield [_line("limit / key", "bold", name_width, titles, columns, widths, _SPARKS_TITLE if with_sparks else "")]
    for row, name, spark in zip(rows, names, sparks, strict=True):
        emphasis = _emphasis(row)
        cells = [(column.text(row), _style(column.title, emphasis)) for column in columns]
        style = "bold" if row.limit else ""
        lines = [_line(name, style, name_width, cells, columns, widths, spark if with_sparks else "")]
        below = [(row.limit.definition, "dim")] if notes and row.limit and not has_definition else []
        below += _notes(row) if notes else ()
        warnings = row.limit.warnings if row.limit else ()
        for text, text_style in (*below, *((warning, "bold red") for warning in warnings)):
            lines += wrap(text, text_style, width, _INDENT)
        yield lines


def _emphasis(row: Row) -> str:
    """Return the style of a row's use. Colour marks limits that get worse or were changed, and not full limits."""
    state = _state(row)
    return f"bold {_WORSE}" if state in ("full", "") and _gets_worse(row) else _STYLES[state]


def _gets_worse(row: Row) -> str:
    """Return a text about what gets worse, or "" if nothing does."""
    return row.limit.outlook.text if row.limit is not None and row.limit.outlook is not None else ""


def _style(title: str, emphasis: str) -> str:
    return "bold red" if title == "429s" else emphasis if title in ("now", "use", "") else ""


def wrap(text: str, style: str, width: int, indent: int = 0) -> Iterator[Text]:
    """Yield the lines of *text*."""
    for line in Text(printable(text), style).wrap(_WRAPS, max(1, width - indent), overflow="fold"):
        line.rstrip()
        line.pad_left(indent)
        yield line


def _choose_columns(rows: Sequence[Row], names: Sequence[str], width: int) -> tuple[list[_Column], list[int], int]:
    """Return the columns that fit, from left to right, with their widths, and the width of the names."""
    wanted = min(_MAX_NAME, max(len("limit / key"), *map(cell_len, names)))
    least, taken = min(wanted, _MIN_NAME), 0
    chosen: dict[_Column, int] = {}
    for column in _COLUMNS:
        texts = [column.text(row) for row in rows]
        if not any(texts) and len(chosen) >= _ALWAYS:
            continue
        own = max(cell_len(column.title), *map(cell_len, texts))
        room = least if len(chosen) <= _ALWAYS else wanted  # a complete name is more useful than further columns
        if len(chosen) >= _ALWAYS and taken + own + _GAP + room > width:
            continue
        chosen[column], taken = own, taken + own + _GAP
    columns = sorted(chosen, key=lambda column: column.place)
    return columns, [chosen[column] for column in columns], max(1, min(wanted, width - taken))


def _line(
    name: str,
    style: str,
    name_width: int,
    cells: Sequence[tuple[str, str]],
    columns: Sequence[_Column],
    widths: Sequence[int],
    spark: str,
) -> Text:
    short = name if cell_len(name) <= name_width else set_cell_size(name, name_width - 1) + "…"
    line = Text(set_cell_size(short, name_width), style="", no_wrap=True, overflow="ignore")
    line.stylize(style)
    for (text, cell_style), column, width in zip(cells, columns, widths, strict=True):
        padding = " " * (width - cell_len(text))
        line.append(" " * _GAP)
        line.append(text + padding if column.left else padding + text, style=cell_style)
    if spark:
        line.append(" " * _GAP + spark, style="cyan" if spark[0] in _SPARKS else "bold")
    line.rstrip()
    return line


def _spark(shares: Sequence[float]) -> str:
    return "".join(_SPARKS[min(7, max(0, int(share * 8)))] for share in shares)


def _notes(row: Row) -> Iterator[tuple[str, str]]:
    counts, limit, notes = row.counts, row.limit, list[str]()
    if counts.paused_for_seconds is not None:
        notes.append(f"paused for another {format_duration(counts.paused_for_seconds)}")
    if counts.slowed is not None:
        notes.append(f"slowed down {counts.slowed.text}")
    if counts.mean_hold_seconds is not None:
        notes.append(f"slots are held for {format_duration(counts.mean_hold_seconds)} on average")
    if counts.last_slot_ago_seconds is not None and counts.used:
        notes.append(f"the last slot was given {format_duration(counts.last_slot_ago_seconds)} ago")
    if counts.oldest_hold_seconds is not None:
        notes.append(f"the oldest is held for {format_duration(counts.oldest_hold_seconds)}")
    if limit is not None:
        notes += (rule.text for rule in limit.rules)
        if limit.tenants:
            yield _of_tenants(limit.tenants), ""
    if worse := _gets_worse(row):
        yield worse, _WORSE
    if notes:
        yield "; ".join(notes), "magenta"


def _of_tenants(tenants: Sequence[TenantState]) -> str:
    """Format the heaviest tenant of the last minute, and the tenant that waited longest."""
    first, last = tenants[0], max(tenants, key=lambda each: each.longest_wait_seconds)
    parts = [f"{len(tenants)} tenants"] if len(tenants) > 1 else []
    if first.units:
        parts.append(f"most used by {first.tenant} ({first.units_ratio:.0%}, weight {first.weight:g})")
    if last.longest_wait_seconds:
        wait = format_duration(last.longest_wait_seconds)
        parts.append(f"longest wait {wait}: {last.tenant} (weight {last.weight:g})")
    return "; ".join(parts)
