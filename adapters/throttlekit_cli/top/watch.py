"""`throttlekit top`: look, show, and again."""

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
from throttlekit.stores.base import Shared
from throttlekit_cli.top.lines import as_data, lines_of
from throttlekit_cli.top.screen import screen

__all__ = ["Sight", "opened", "top"]

_PATIENCE = 5.0
_WIDTH = 170


class Sight:
    """
    What is looked at, and how it is shown.

    Args:
        name: Only limits with this in their name.
    """

    def __init__(self, *, order: str, most: int, name: str, show_keys: bool) -> None:
        self.order, self.most, self.show_keys = order, most, show_keys
        self.name = quote(name, safe="@/+=")

    def look(self, store: FleetStore) -> Fleet:
        return look(store, order=self.order, most=self.most, name=self.name)

    def screen(self, fleet: Fleet) -> Any:
        lines = lines_of(fleet, order=self.order, show_keys=self.show_keys)
        return screen(fleet, lines, order=self.order, most=self.most)

    def data(self, fleet: Fleet) -> dict[str, Any]:
        return as_data(fleet, lines_of(fleet, order=self.order, show_keys=self.show_keys)[: self.most])


@contextmanager
def opened(url: str) -> Generator[Any, None, None]:
    """
    The store of *url*, with more patience than a worker has: an operator may be far away.

    Raises:
        ConfigurationError: It cannot be read, or is none that a fleet shares.
    """
    given = url.partition("?")[2]
    patience = "&".join(f"{name}={_PATIENCE:g}" for name in ("socket_timeout", "socket_connect_timeout")
                        if f"{name}=" not in given)  # fmt: skip
    if "://" in url and not url.startswith("memory:") and patience:
        url = f"{url}{'&' if given else '?'}{patience}"
    store = store_from(url, plugin_manager([]))
    if not isinstance(store, Shared):
        raise ConfigurationError("this store has no place that a whole fleet sees: name the Redis that the workers use")
    with contextlib.closing(store):
        yield store


def top(url: str, sight: Sight, *, once: bool, as_json: bool, interval: float) -> None:
    """
    Show the fleet until it is interrupted; or *once*.

    Raises:
        ConfigurationError: The URL cannot be read.
        StoreUnavailable: The first look got no answer.
    """
    with opened(url) as store:
        fleet = sight.look(store)
        if as_json:
            while True:
                print(json.dumps(sight.data(fleet)), flush=True)
                if once:
                    return
                time.sleep(interval)
                fleet = sight.look(store)
        console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WIDTH)
        if once or not console.is_terminal:
            console.print(sight.screen(fleet))
            return
        with Live(sight.screen(fleet), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(interval)
                try:
                    live.update(sight.screen(sight.look(store)), refresh=True)
                except StoreUnavailable as error:
                    live.update(Text(f"{error}. It is asked again.", style="red"), refresh=True)
