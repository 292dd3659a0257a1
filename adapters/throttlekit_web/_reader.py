"""Read the data for the page's JSON requests from the store, in bounded pieces, at most once a second."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar, cast

from throttlekit import Control, StoreUnavailable
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.fleet.browse import browse_keys, find_key, first_waiting, holders_of, tenants_of
from throttlekit.fleet.definitions import definition_of
from throttlekit.fleet.history import RANGES, Moment, bars_of, report_history
from throttlekit.fleet.replies import time_of
from throttlekit.fleet.shares import shared_steps
from throttlekit.fleet.snapshot import look
from throttlekit.fleet.waiting_job import look_up
from throttlekit_cli.formatting import format_key
from throttlekit_cli.state import (
    ORDERS,
    FleetState,
    LimitState,
    change_state,
    fleet_state,
    job_state,
    key_state,
    rule_state,
)
from throttlekit_cli.top.explain import describe
from throttlekit_web._data import (
    bars_data,
    fleet_data,
    heaviest,
    holder_data,
    limit_row,
    require_known,
    shares_data,
    waiting_data,
)
from throttlekit_web._http import Refused

__all__ = ["Reader"]

_T = TypeVar("_T")

_FRESH_S = 1.0
_MAX_READINGS = 32
_MAX_LIMITS = 100
_PRESSING = 20
_HOLDERS_OF = 3
_WAITING_OF = 3
_MAX_CHANGES = 200
_MAX_MARKS = 20
_LATELY = "15m"
_SEEN_EVERY_S = 9.0
_MAX_SEEN = 200
_MAX_NAMES = 50_000
"""The maximum number of names that one search for a job reads. An open page repeats it every few seconds."""


class Reader:
    """
    Reads the data of the page.

    Args:
        store: A store that a fleet shares, from `throttlekit_cli.store.open_store`.
        show_keys: Whether keys are shown in full, rather than as digests.

    Attributes:
        addresses: The function for each path. It returns the data for a query, and raises `Refused` for a wrong query,
            and `StoreUnavailable` if the store does not answer.
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
        Add the number of waiting jobs to the history, as described for `Site.record`.

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
        fleet = self._overview(order)
        rows = [row for row in fleet.limits if text in row.limit.casefold()]
        shown, of = rows[:_MAX_LIMITS], RANGES[_LATELY]
        ids = tuple(row.id for row in shown)
        bars = self._fresh(("bars", ids), lambda: bars_of(self._store, ids, fleet.now, of))
        paused = [r for r in rows if r.paused_for_seconds is not None or any(e.what == "pause" for e in r.rules)]
        minutes = [row.last_minute for row in rows if row.last_minute is not None]
        return {
            **fleet_data(fleet),
            "limits": [
                {**limit_row(row), "bars": bars_data(bars[row.id], of, comparable=row.is_comparable)} for row in shown
            ],
            "of": len(rows),
            "waiting_jobs": sum(row.waiting_jobs or 0 for row in rows),
            "oldest_wait_seconds": max((row.oldest_wait_seconds or 0.0 for row in rows), default=0.0),
            "denials": sum(minute.denials for minute in minutes) if minutes else None,
            "downstream_429": sum(row.downstream_429 for row in rows),
            "slowed_limits": sum(row.slowed is not None for row in rows),
            "paused_limits": len(paused),
        }

    def _overview(self, order: str) -> FleetState:
        def read() -> FleetState:
            fleet = fleet_state(look(self._store, order=order), order=order, show_keys=self._show_keys)
            self._record(fleet.limits)
            return fleet

        return self._fresh(("fleet", order), read)

    def _record(self, rows: Sequence[LimitState]) -> None:
        """Add the number of waiting jobs, which no worker knows, to the history, at most every 9 s."""
        if time.monotonic() < self._seen_at + _SEEN_EVERY_S:
            return
        self._seen_at = time.monotonic()
        seen = {row.id: Moment(waiting=row.waiting_jobs) for row in rows[:_MAX_SEEN]}
        with suppress(StoreUnavailable):  # for example, this user may only read
            self._store.commands(report_history(seen, by_reader=True))

    def _limit(self, query: dict[str, str]) -> Any:
        id, name = query.get("id", ""), query.get("range", _LATELY)
        if name not in RANGES:
            raise Refused(400, f"range must be one of {', '.join(RANGES)}")
        return self._fresh(("limit", id, name), lambda: self._read_limit(id, name))

    def _read_limit(self, id: str, name: str) -> Any:
        fleet = look(self._store, most=_PRESSING, id=id)
        known = require_known(next((each for each in fleet.limits if each.id == id), None))
        tenants = tenants_of(self._store) if known.shared else {}
        (row,) = fleet_state(fleet, order="wait", show_keys=self._show_keys, tenants=tenants, only=id).limits
        now, keys = fleet.now, fleet.keys
        row, of = replace(row, tenants=heaviest(row.tenants)), RANGES[name]
        bars = bars_of(self._store, [id], now, of)[id]
        begin, history = now - of.bars * of.bar_s, Control(self._store, by="reader").history(known.limit.name)
        clear = self._show_keys or known.limit.show_key
        holders = [
            {
                "key": format_key(key.key, key.part, clear=clear),
                "holders": [holder_data(each, now, show_keys=clear) for each in holders_of(self._store, key)],
            }
            for key in (keys if row.is_concurrency else ())[:_HOLDERS_OF]
        ]
        waiting = [
            {
                "key": format_key(key.key, key.part, clear=clear),
                "jobs": [waiting_data(job_id, entry, now) for job_id, entry in first_waiting(self._store, key)],
            }
            for key in [each for each in keys if each.waiting][:_WAITING_OF]
        ]
        changes = [
            asdict(change_state(each, clear=self._show_keys)) for each in history[:_MAX_MARKS] if each.at > begin
        ]
        return {
            "now": now,
            **asdict(row),
            "range": {
                "name": name,
                "bar_seconds": of.bar_s,
                "bars": bars_data(bars, of, comparable=row.is_comparable),
                "shares": shares_data(shared_steps(self._store, id, bars, of), show_keys=clear)
                if known.shared
                else None,
            },
            "changes": changes,
            "holders": holders,
            "waiting": waiting,
        }

    def _keys(self, query: dict[str, str]) -> Any:
        known = require_known(definition_of(self._store, query.get("id", "")))
        cursor, sought = query.get("cursor", ""), query.get("search", "")
        if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 20):
            raise Refused(400, "cursor must be that of the page before")
        text, clear = sought.casefold(), self._show_keys or known.limit.show_key

        def is_wanted(key: str, part: str | None) -> bool:
            return text in format_key(key, part, clear=clear).casefold()

        page = browse_keys(self._store, known, cursor, is_wanted) if text else browse_keys(self._store, known, cursor)
        keys = list(page.keys)
        if sought and not cursor:  # look up the exact key: if only digests are shown, a scan cannot find it
            exact = find_key(self._store, known, sought)
            keys = [each for each in keys if exact is None or each.bucket != exact.bucket]
            keys = keys if exact is None else [exact, *keys]
        return {
            "keys": [asdict(key_state(key, show_keys=self._show_keys)) for key in keys],
            "cursor": page.cursor,
            "looked": page.looked,
            "of": page.of,
        }

    def _job(self, query: dict[str, str]) -> Any:
        id = query.get("id", "").strip()
        if not id:
            raise Refused(400, "id must be the framework's own id of a job")

        def read() -> Any:
            job = job_state(id, look_up(self._store, id, max_names=_MAX_NAMES), show_keys=self._show_keys)
            summary, facts = describe(job)
            return {**asdict(job), "summary": summary, "facts": facts}

        return self._fresh(("job", id), read)

    def _changes(self, query: dict[str, str]) -> Any:
        def read() -> Any:
            control, now = Control(self._store, by="reader"), time_of(self._store)
            rules = [rule_state(rule, now, clear=self._show_keys) for rule in control.rules()]
            changes = [change_state(change, clear=self._show_keys) for change in control.history()[:_MAX_CHANGES]]
            return {"now": now, "rules": list(map(asdict, rules)), "changes": list(map(asdict, changes))}

        return self._fresh(("changes",), read)

    def _fresh(self, name: Any, read: Callable[[], _T]) -> _T:
        """
        Return the result of *read*, or raise its error. Both are cached for a second. One thread reads at a time, so
        many browsers cost the store as much as one browser.
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
