"""`throttlekit top`: read the fleet's state, show it, and repeat."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.live import Live
from rich.text import Text

from throttlekit import ConfigurationError, StoreUnavailable
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit.fleet.snapshot import Fleet, FleetStore, look
from throttlekit.stores.base import SupportsCommands
from throttlekit_cli.top.rows import as_data, rows_of
from throttlekit_cli.top.screen import screen

__all__ = ["View", "open_store", "top"]

_TIMEOUT_S = 5.0
_WIDTH = 170  # columns, where the output is not a terminal


class View:
    """
    Which limits are shown, and how.

    Args:
        name: Only limits whose name contains this.
    """

    def __init__(self, *, order: str, most: int, name: str, show_keys: bool) -> None:
        self.order, self.most, self.show_keys = order, most, show_keys
        self.name = quote(name, safe="@/+=")

    def look(self, store: FleetStore) -> Fleet:
        return look(store, order=self.order, most=self.most, name=self.name)

    def screen(self, fleet: Fleet) -> Any:
        rows = rows_of(fleet, order=self.order, show_keys=self.show_keys)
        return screen(fleet, rows, order=self.order, most=self.most)

    def data(self, fleet: Fleet) -> dict[str, Any]:
        return as_data(fleet, rows_of(fleet, order=self.order, show_keys=self.show_keys)[: self.most])


@contextmanager
def open_store(url: str) -> Generator[Any, None, None]:
    """
    Open the store at *url*, with longer time-outs than a worker has: an operator may be far away.

    Raises:
        ConfigurationError: The URL is not valid, or its store is not one that a fleet shares.
    """
    options = url.partition("?")[2]
    timeouts = "&".join(f"{name}={_TIMEOUT_S:g}" for name in ("socket_timeout", "socket_connect_timeout")
                        if f"{name}=" not in options)  # fmt: skip
    if "://" in url and not url.startswith("memory:") and timeouts:
        url = f"{url}{'&' if options else '?'}{timeouts}"
    store = store_from(url, plugin_manager([]))
    if not isinstance(store, SupportsCommands):
        raise ConfigurationError("this store is not shared by a fleet: name the Redis that the workers use")
    with contextlib.closing(store):
        yield store


def top(url: str, view: View, *, once: bool, as_json: bool, interval: float) -> None:
    """
    Show the fleet until the operator interrupts it; or *once*.

    Raises:
        ConfigurationError: The URL is not valid.
        StoreUnavailable: The store did not answer the first time.
    """
    with open_store(url) as store:
        fleet = view.look(store)
        if as_json:
            while True:
                print(json.dumps(view.data(fleet)), flush=True)
                if once:
                    return
                time.sleep(interval)
                fleet = view.look(store)
        console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WIDTH)
        if once or not console.is_terminal:
            console.print(view.screen(fleet))
            return
        with Live(view.screen(fleet), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(interval)
                try:
                    live.update(view.screen(view.look(store)), refresh=True)
                except StoreUnavailable as error:
                    live.update(Text(f"{error}. Trying again.", style="red"), refresh=True)
