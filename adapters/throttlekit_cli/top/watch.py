"""The command `throttlekit top`: read the fleet's state, show it, and repeat."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from throttlekit import StoreUnavailable
from throttlekit.fleet.browse import tenants_of
from throttlekit.fleet.snapshot import FleetStore, look
from throttlekit_cli.formatting import printable
from throttlekit_cli.state import ORDERS, FleetState, fleet_state
from throttlekit_cli.top.keyboard import ESCAPE, PAGE_DOWN, PAGE_UP, Keyboard
from throttlekit_cli.top.screen import Row, foot_of, head_of, help_of, pages_of, rows_of, table_of, wrap

__all__ = ["View", "top"]

_WIDTH = 170
"""The width in columns if the output is not a terminal, and COLUMNS is not set."""
_LOOKS = 20
_ORDERS = tuple(ORDERS)


@dataclass(eq=False, kw_only=True)
class View:
    """
    The selection and the order of the limits that are shown.

    Args:
        name: The text that the name of each shown limit contains.
        store: The name of the store.
        typing: The filter that is being typed; None if none is.
    """

    order: str
    most: int
    name: str
    show_keys: bool
    store: str = ""
    typing: str | None = None
    page: int = 0
    with_notes: bool = False
    _history: dict[tuple[str, str | None], deque[float]] = field(default_factory=dict[Any, Any], init=False)

    def look(self, store: FleetStore) -> FleetState:
        fleet = look(store, order=self.order, most=self.most, name=quote(self.name, safe="@/+="))
        tenants = tenants_of(store) if any(each.shared for each in fleet.limits) else {}
        return fleet_state(fleet, order=self.order, show_keys=self.show_keys, tenants=tenants)

    def screen(self, fleet: FleetState, width: int, height: int | None = None, *, live: bool = False) -> RenderableType:
        """
        Return the screen, or one page of it if a *height* is given.

        Args:
            live: Whether there is a keyboard. If so, sparklines of the recent use, and notes on demand, are shown.
        """
        rows = rows_of(fleet.limits[: self.most])
        name = printable(self.name if self.typing is None else f"{self.typing}▏")
        notes, history = self.with_notes or not live, self._remember(rows) if live else {}
        title, blocks = Text(), list[list[Text]]()
        if rows:
            (title,), *blocks = table_of(rows, width, history, notes=notes)
            blocks += ([Text(), *wrap(text, "dim", width)] for text in foot_of(rows))
        else:
            what = f" with {name!r} in its name" if name else ""
            text = f"Nothing was decided in the last hour: no worker has used a limit{what} with this store."
            blocks.append([*wrap(text, "", width)])
        head = [head_of(fleet, self.store, "" if live else self.order, width)]
        pages = pages_of(blocks, None if height is None else max(1, height - len([*head, Text(), title]) - live))
        page = self.page % len(pages)
        head += [help_of(self.order, name, page, len(pages), notes=notes)] if live else []
        return Group(*head, Text(), title, *pages[page])

    def data(self, fleet: FleetState) -> dict[str, Any]:
        return {"store": self.store, **asdict(replace(fleet, limits=fleet.limits[: self.most]))}

    def press(self, key: str) -> bool:
        """Handle a pressed *key*. Return whether `top` continues."""
        if self.typing is not None:
            self._type(key)
        elif key in ("q", ESCAPE):
            return False
        elif key == "s":
            self.order, self.page = _ORDERS[(_ORDERS.index(self.order) + 1) % len(_ORDERS)], 0
        elif key == "n":
            self.with_notes, self.page = not self.with_notes, 0
        elif key in (" ", PAGE_DOWN):
            self.page += 1
        elif key in ("b", PAGE_UP):
            self.page -= 1
        elif key == "/":
            self.typing = ""
        return True

    def _type(self, key: str) -> None:
        if key == ESCAPE:
            self.typing = None
        elif key in ("\r", "\n"):
            self.name, self.typing, self.page = self.typing or "", None, 0
        elif key in ("\x7f", "\b"):
            self.typing = (self.typing or "")[:-1]
        elif key.isprintable():
            self.typing = f"{self.typing}{key}"

    def _remember(self, rows: Sequence[Row]) -> dict[tuple[str, str | None], deque[float]]:
        """Record the current use of *rows*. Return the recent uses of each row."""
        shown = [row for row in rows if row.counts.use is not None]
        self._history = {row.id: self._history.get(row.id, deque(maxlen=_LOOKS)) for row in shown}
        for row in shown:
            self._history[row.id].append(row.counts.use or 0.0)
        return self._history


def top(store: FleetStore, view: View, *, once: bool, as_json: bool, interval: float) -> None:
    """
    Show the fleet until the operator interrupts it, or only *once*.

    Raises:
        StoreUnavailable: The store did not answer the first time.
    """
    fleet = view.look(store)
    if as_json:
        while True:
            print(json.dumps(view.data(fleet)), flush=True)
            if once:
                return
            time.sleep(interval)
            fleet = view.look(store)
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").strip("0").isdigit()
    console = Console(highlight=False, width=None if has_width else _WIDTH)
    if once or not console.is_terminal:
        console.print(view.screen(fleet, console.width))
        return
    _live(store, view, fleet, console, interval)


def _live(store: Any, view: View, fleet: FleetState, console: Console, interval: float) -> None:
    with Keyboard() as keyboard:
        shown = view.screen(fleet, *console.size, live=keyboard.reads)
        with Live(shown, console=console, auto_refresh=False, screen=True) as live:
            next_look = time.monotonic() + interval
            while True:
                key = keyboard.key(max(0.0, next_look - time.monotonic()))
                if key and not view.press(key):
                    return
                try:
                    if (key and view.typing is None) or time.monotonic() >= next_look:
                        fleet, next_look = view.look(store), time.monotonic() + interval
                    live.update(view.screen(fleet, *console.size, live=keyboard.reads), refresh=True)
                except StoreUnavailable as error:
                    live.update(Text(f"{error}. Trying again.", style="red"), refresh=True)
                    next_look = time.monotonic() + interval
