"""The responses of the page's data addresses, read from the store in bounded pieces, at most once a second."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from throttlekit import Control, StoreUnavailable
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.fleet.browse import (
    browse_keys,
    find_key,
    holders_of,
    pressing_keys,
    tenants_of,
)
from throttlekit.fleet.definitions import definition_of
from throttlekit.fleet.downstream import DOWNSTREAM_429S, counts_429
from throttlekit.fleet.history import RANGES, Moment, bars_of, report_history
from throttlekit.fleet.last_minute import minute_of, recent_steps
from throttlekit.fleet.replies import pairs, time_of
from throttlekit.fleet.snapshot import Known, look, rules_of
from throttlekit.fleet.waiting_job import look_up
from throttlekit_cli.formatting import format_key
from throttlekit_web._data import (
    ORDERS,
    bars_data,
    change_data,
    fleet_data,
    holder_data,
    job_data,
    key_data,
    limit_data,
    limits_data,
    rule_data,
    tenants_data,
)
from throttlekit_web._http import Refused

__all__ = ["Reader"]

_T = TypeVar("_T")

_FRESH_S = 1.0
_MAX_READINGS = 32
_MAX_LIMITS = 100
_PRESSING = 20
_HOLDERS_OF = 3
_MAX_CHANGES = 200
_MAX_MARKS = 20
_LATELY = "15m"
_SEEN_EVERY_S = 9.0
_MAX_SEEN = 200
_MAX_NAMES = 50_000
"""The most names that one search for a job reads. An open page repeats the search every few seconds."""


class Reader:
    """
    The data of the page.

    Args:
        store: A store that a fleet shares; see `throttlekit_cli.store.open_store`.
        show_keys: Whether keys are shown in full, and not as digests.

    Attributes:
        addresses: The function for each path, which returns the data for a query. It raises `Refused` for a wrong
            query, and `StoreUnavailable`.
    """

    def __init__(self, store: Any, *, show_keys: bool) -> None:
        self._store, self._show_keys = store, show_keys
        self._seen_at = 0.0
        self._readings: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self.addresses: dict[str, Callable[[dict[str, str]], Any]] = {
            "/api/limits": self._limits,
            "/api/limit": self._limit,
            "/api/keys": self._keys,
            "/api/job": self._job,
            "/api/changes": self._changes,
        }

    def record(self) -> None:
        """
        Record how many jobs wait; see `Site.record`.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        self._overview("wait")

    def forget(self) -> None:
        """Read the store again at the next request, because something was changed."""
        with self._lock:
            self._readings.clear()

    def _limits(self, query: dict[str, str]) -> Any:
        order = query.get("order", "wait")
        if order not in ORDERS:
            raise Refused(400, f"order must be one of {', '.join(ORDERS)}")
        text = query.get("filter", "").casefold()
        head, rows = self._overview(order)
        rows = [row for row in rows if text in row["name"].casefold()]
        shown, of = rows[:_MAX_LIMITS], RANGES[_LATELY]
        ids = tuple(row["id"] for row in shown)
        bars = self._fresh(("bars", ids), lambda: bars_of(self._store, ids, head["now"], of))
        return {
            **head,
            "limits": [{**row, "bars": bars_data(bars[row["id"]], of, comparable=row["comparable"])} for row in shown],
            "of": len(rows),
            "waiting": sum(row["jobs"] for row in rows),
            "oldest": max((row["wait"] for row in rows), default=0.0),
            "denials": _sum(row["denials"] for row in rows),
            "downstream_429": sum(row["downstream_429"] for row in rows),
            "slowed": sum(row["slowed"] is not None for row in rows),
            "paused": sum(row["paused"] is not None or any(r["what"] == "pause" for r in row["rules"]) for row in rows),
        }

    def _overview(self, order: str) -> tuple[Any, list[Any]]:
        def read() -> tuple[Any, list[Any]]:
            fleet = look(self._store, order=order)
            rows = limits_data(fleet, order=order, show_keys=self._show_keys)
            self._record(rows)
            return fleet_data(fleet), rows

        return self._fresh(("fleet", order), read)

    def _record(self, rows: list[Any]) -> None:
        """Add the number of waiting jobs to the history, every 9 s at most. Workers do not know that number."""
        if time.monotonic() < self._seen_at + _SEEN_EVERY_S:
            return
        self._seen_at = time.monotonic()
        seen = {row["id"]: Moment(waiting=row["jobs"]) for row in rows[:_MAX_SEEN]}
        with suppress(StoreUnavailable):  # for example, this user may only read the store
            self._store.commands(report_history(seen, by_reader=True))

    def _limit(self, query: dict[str, str]) -> Any:
        id, name = query.get("id", ""), query.get("range", _LATELY)
        if name not in RANGES:
            raise Refused(400, f"range must be one of {', '.join(RANGES)}")
        return self._fresh(("limit", id, name), lambda: self._read_limit(id, name))

    def _read_limit(self, id: str, name: str) -> Any:
        known = self._known(id)
        now, rules = rules_of(self._store, known.limit)
        steps = recent_steps(self._store, [id], now)
        known = replace(known, minute=minute_of(steps[id], now))
        keys = pressing_keys(self._store, known, _PRESSING)
        partner_429s = counts_429(pairs(self._store.commands([("HGETALL", DOWNSTREAM_429S)])[0]), now).get(id, {})
        row = limit_data(known, keys, rules, partner_429s, show_keys=self._show_keys)
        of = RANGES[name]
        bars = bars_data(bars_of(self._store, [id], now, of)[id], of, comparable=row["comparable"])
        begin, history = now - of.bars * of.bar_s, Control(self._store, by="reader").history(known.limit.name)
        clear = self._show_keys or known.limit.show_key
        holders = [
            {
                "key": format_key(key.key, key.part, clear=clear),
                "holders": [holder_data(each, now, show_keys=clear) for each in holders_of(self._store, key)],
            }
            for key in (keys if row["slots"] else ())[:_HOLDERS_OF]
        ]
        shown = [key_data(key, show_keys=self._show_keys) for key in keys]
        tenants = tenants_of(self._store).get(id, ()) if known.shared else ()
        return {
            "now": now,
            "limit": row,
            "range": {"name": name, "bar": of.bar_s, "bars": bars},
            "changes": [
                change_data(each, show_keys=self._show_keys) for each in history[:_MAX_MARKS] if each.at > begin
            ],
            "keys": shown,
            "holders": holders,
            "tenants": tenants_data(tenants, show_keys=clear),
        }

    def _keys(self, query: dict[str, str]) -> Any:
        known = self._known(query.get("id", ""))
        cursor, sought = query.get("cursor", ""), query.get("search", "")
        if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 20):
            raise Refused(400, "cursor must be that of the page before")
        text, clear = sought.casefold(), self._show_keys or known.limit.show_key

        def wanted(key: str, part: str | None) -> bool:
            return text in format_key(key, part, clear=clear).casefold()

        page = browse_keys(self._store, known, cursor, wanted) if text else browse_keys(self._store, known, cursor)
        keys = list(page.keys)
        if sought and not cursor:  # look up the exact key: if only digests are shown, a scan cannot find it
            exact = find_key(self._store, known, sought)
            keys = [each for each in keys if exact is None or each.bucket != exact.bucket]
            keys = keys if exact is None else [exact, *keys]
        return {
            "keys": [key_data(key, show_keys=self._show_keys) for key in keys],
            "cursor": page.cursor,
            "looked": page.looked,
            "of": page.of,
        }

    def _job(self, query: dict[str, str]) -> Any:
        id = query.get("id", "").strip()
        if not id:
            raise Refused(400, "id must be the framework's own id of a job")

        def read() -> Any:
            return job_data(id, look_up(self._store, id, max_names=_MAX_NAMES), show_keys=self._show_keys)

        return self._fresh(("job", id), read)

    def _changes(self, query: dict[str, str]) -> Any:
        def read() -> Any:
            control = Control(self._store, by="reader")
            return {
                "now": time_of(self._store),
                "rules": [rule_data(rule, show_keys=self._show_keys) for rule in control.rules()],
                "changes": [
                    change_data(change, show_keys=self._show_keys) for change in control.history()[:_MAX_CHANGES]
                ],
            }

        return self._fresh(("changes",), read)

    def _known(self, id: str) -> Known:
        known = definition_of(self._store, id)
        if known is None:
            raise Refused(404, "no worker has used this limit in the last hour")
        return known

    def _fresh(self, name: Any, read: Callable[[], _T]) -> _T:
        """
        Return or raise the result of *read*, which is cached for a second. One thread reads at a time, so many
        browsers cost the store as much as one.
        """
        with self._lock:
            known: tuple[float, Any] = self._readings.get(name, (0.0, None))
            until, found = known
            if time.monotonic() >= until:
                try:
                    found = read()
                except (Refused, StoreUnavailable) as error:
                    found = error
                self._readings[name] = (time.monotonic() + _FRESH_S, found)
                self._readings.move_to_end(name)
                while len(self._readings) > _MAX_READINGS:
                    self._readings.popitem(last=False)
        if isinstance(found, (Refused, StoreUnavailable)):
            raise found
        value: Any = found
        return cast(_T, value)


def _sum(numbers: Iterable[int | None]) -> int | None:
    """The sum of the known numbers; None if no number is known."""
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None
