"""
The page and its JSON: from a request to a response, by plain functions. WSGI and ASGI are thin layers above.

Rule 1: it reads the store alone, in bounded pieces; however many browsers look, the store is read once a second.
Rule 2: it changes nothing unless control is allowed, and then only with the token, from its own origin, and for a
confirmed text that names the effect.
Rule 3: text of the store is data: it goes out as JSON, and the page puts it in as text.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from throttlekit import ConfigurationError, Control, Limiter, StoreUnavailable
from throttlekit._engine.plugins import plugin_manager, store_from
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.fleet.browse import (
    browse_keys,
    find_key,
    holders_of,
    minute_of,
    pressing_keys,
    recent_steps,
)
from throttlekit.fleet.snapshot import Known, known_of, look, look_up, rules_of, time_of
from throttlekit.stores.base import Store, SupportsCommands
from throttlekit_cli.formatting import format_change, format_key, printable
from throttlekit_web._changes import plan_change
from throttlekit_web._data import (
    ORDERS,
    change_data,
    fleet_data,
    holder_data,
    job_data,
    key_data,
    limit_data,
    limits_data,
    rule_data,
)
from throttlekit_web._history import History
from throttlekit_web._http import MAX_BODY, Refused, Request, Response, json_response, refusal

__all__ = ["Site"]

_log = logging.getLogger("throttlekit")
_T = TypeVar("_T")

_TIMEOUT_S = 5.0
_FRESH_S = 1.0
_MAX_READINGS = 32
_MAX_LIMITS = 100
_PRESSING = 20
_HOLDERS_OF = 3
_MAX_CHANGES = 200
_SHORTEST_TOKEN = 16
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Site:
    """
    The page, for an app that answers requests in a view of its own: see `handle`.

    Args:
        store: The limiter's URL, the limiter itself, or its store. It is not asked before the first request.
        token: At least 16 characters. Every request for data must bring it. None: whoever reaches the page reads it,
            so the app that mounts it must admit operators only.
        allow_control: Whether the page can pause limits, set rates, and so on. That needs a token.
        show_keys: Whether keys are shown as they are, and not as digests. They may contain arguments of jobs.
        hosts: Names under which the page is reached; an IP address and localhost always are. It is for a server of its
            own: a foreign page whose name leads here cannot read this one. None: the app in front checks that.

    Raises:
        ConfigurationError: The store is not one that a fleet shares, or the token is too short or missing.
    """

    def __init__(
        self,
        store: str | Store | Limiter,
        *,
        token: str | None,
        allow_control: bool = False,
        show_keys: bool = False,
        hosts: Collection[str] | None = None,
    ) -> None:
        if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise ConfigurationError(f"a token has at least {_SHORTEST_TOKEN} characters, all of them printable ASCII")
        if allow_control and token is None:
            raise ConfigurationError("allow_control needs a token: whoever reaches the page could stop the fleet")
        self._store = _opened(store)
        self._own = isinstance(store, str)
        self._token, self._allow_control, self._show_keys = token, allow_control, show_keys
        self._hosts = None if hosts is None else {"localhost", *(name.lower() for name in hosts)}
        self._history = History()
        self._readings: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._api: dict[str, Callable[[dict[str, str]], Any]] = {
            "/api/limits": self._limits,
            "/api/limit": self._limit,
            "/api/keys": self._keys,
            "/api/job": self._job,
            "/api/changes": self._changes,
        }

    def handle(self, request: Request) -> Response:
        """The response to *request*. Never raises: an error is a response too."""
        try:
            self._check_host(request)
            response = self._answer(request)
        except Refused as error:
            response = refusal(error.status, str(error))
        except ConfigurationError as error:
            response = refusal(400, str(error))
        except StoreUnavailable as error:
            response = refusal(503, f"the store does not answer: {error}")
        except Exception:
            _log.exception("The web page failed on %s %.200r.", request.method, request.path)
            response = refusal(500, "the server failed: its log says how")
        return replace(response, headers={**response.headers, **_SECURITY})

    def record(self) -> None:
        """
        Read the last minutes now, so that the charts have no gap while no browser looks. Once in 60 s is enough.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        self._overview("wait")

    def close(self) -> None:
        """Close the connections to a store that was given as a URL."""
        if self._own:
            self._store.close()

    def _answer(self, request: Request) -> Response:
        path, method = request.path, request.method
        if path == "" and request.root:
            return Response(308, {"Location": f"{request.root}/", "Content-Type": "text/plain"}, b"")
        if path == "/api/control":
            return json_response(self._control(request))
        if path not in _FILES and path != "/api/about" and path not in self._api:
            raise Refused(404, "there is no such page")
        if method not in ("GET", "HEAD"):
            raise Refused(405, f"{path} takes GET alone")
        if path in _FILES:
            name, kind = _FILES[path]
            body = (files(__package__) / "static" / name).read_bytes()
            return Response(200, {"Content-Type": kind, "Cache-Control": "no-cache"}, body)
        if path == "/api/about":
            about = {"control": self._allow_control, "token": self._token is not None, "keys": self._show_keys}
            return json_response(about)
        self._check_token(request)
        return json_response(self._api[path](_query(request.query)))

    # What is read.

    def _limits(self, query: dict[str, str]) -> Any:
        order = query.get("order", "wait")
        if order not in ORDERS:
            raise Refused(400, f"order must be one of {', '.join(ORDERS)}")
        first, text = _whole(query, "since"), query.get("filter", "").casefold()
        head, rows = self._overview(order)
        rows = [row for row in rows if text in row["name"].casefold()]
        shown = rows[:_MAX_LIMITS]
        self._step(shown)
        return {
            **head,
            "limits": [{**row, "steps": self._history.since(row["id"], first)} for row in shown],
            "of": len(rows),
            "waiting": sum(row["jobs"] for row in rows),
            "oldest": max((row["wait"] for row in rows), default=0.0),
            "denials": sum(row["denials"] for row in rows),
            "paused": sum(row["paused"] is not None or any(r["what"] == "pause" for r in row["rules"]) for row in rows),
        }

    def _overview(self, order: str) -> tuple[Any, list[Any]]:
        def read() -> tuple[Any, list[Any]]:
            fleet = look(self._store, order=order)
            return fleet_data(fleet), limits_data(fleet, order=order, show_keys=self._show_keys)

        head, rows = self._fresh(("fleet", order), read)
        self._step(rows[:_MAX_LIMITS])
        return head, rows

    def _step(self, rows: list[Any]) -> None:
        """Keep the last steps of *rows* in the history."""
        ids = tuple(row["id"] for row in rows)

        def read() -> None:
            waiting = {row["id"]: row["jobs"] for row in rows}
            self._history.add(recent_steps(self._store, ids), waiting)

        self._fresh(("steps", ids), read)

    def _limit(self, query: dict[str, str]) -> Any:
        id, first = query.get("id", ""), _whole(query, "since")
        data = self._fresh(("limit", id), lambda: self._read_limit(id))
        return {**data, "limit": {**data["limit"], "steps": self._history.since(id, first)}}

    def _read_limit(self, id: str) -> Any:
        known = self._known(id)
        now, rules = rules_of(self._store, known.limit)
        steps = recent_steps(self._store, [id])
        known = replace(known, minute=minute_of(steps[id], now))
        keys = pressing_keys(self._store, known, _PRESSING)
        row = limit_data(known, keys, rules, show_keys=self._show_keys)
        self._history.add(steps, {id: row["jobs"]})
        holders = [
            {
                "key": format_key(key.key, key.part, clear=self._show_keys),
                "holders": [holder_data(each, now) for each in holders_of(self._store, key)],
            }
            for key in (keys if row["slots"] else ())[:_HOLDERS_OF]
        ]
        shown = [key_data(key, known.minute, show_keys=self._show_keys) for key in keys]
        return {"now": now, "limit": row, "keys": shown, "holders": holders}

    def _keys(self, query: dict[str, str]) -> Any:
        known = self._known(query.get("id", ""))
        cursor, sought = query.get("cursor", ""), query.get("search", "")
        if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 20):
            raise Refused(400, "cursor must be that of the page before")
        text = sought.casefold()

        def wanted(key: str, part: str | None) -> bool:
            return text in format_key(key, part, clear=self._show_keys).casefold()

        page = browse_keys(self._store, known, cursor, wanted) if text else browse_keys(self._store, known, cursor)
        keys = list(page.keys)
        if sought and not cursor:  # the key itself, which no scan finds where only digests are shown
            exact = find_key(self._store, known, sought)
            keys = [each for each in keys if exact is None or each.bucket != exact.bucket]
            keys = keys if exact is None else [exact, *keys]
        steps = self._fresh(("steps of", known.id), lambda: recent_steps(self._store, [known.id]))
        minute = minute_of(steps[known.id], time_of(self._store))
        return {
            "keys": [key_data(key, minute, show_keys=self._show_keys) for key in keys],
            "cursor": page.cursor,
            "looked": page.looked,
            "of": page.of,
        }

    def _job(self, query: dict[str, str]) -> Any:
        id = query.get("id", "").strip()
        if not id:
            raise Refused(400, "id must be the framework's own id of a job")
        job, key = look_up(self._store, id)
        if job is None:
            return {"state": "unknown"}
        now, rules = (time_of(self._store), ()) if key is None else rules_of(self._store, key.limit)
        return job_data(job, key, rules, now, show_keys=self._show_keys)

    def _changes(self, query: dict[str, str]) -> Any:
        def read() -> Any:
            control = self._open_control("reader")
            return {
                "now": time_of(self._store),
                "rules": [rule_data(rule, show_keys=self._show_keys) for rule in control.rules()],
                "changes": [
                    change_data(change, show_keys=self._show_keys) for change in control.history()[:_MAX_CHANGES]
                ],
            }

        return self._fresh(("changes",), read)

    def _known(self, id: str) -> Known:
        known = known_of(self._store, id)
        if known is None:
            raise Refused(404, "no worker has used this limit in the last hour")
        return known

    def _fresh(self, name: Any, read: Callable[[], _T]) -> _T:
        """
        What *read* returned or raised within the last second. One thread reads at a time: many browsers cost the store
        what one does.
        """
        with self._lock:
            until, found = self._readings.get(name, (0.0, None))
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
        return found

    # What is changed.

    def _control(self, request: Request) -> Any:
        if request.method != "POST":
            raise Refused(405, "/api/control takes POST alone")
        if not self._allow_control:
            raise Refused(403, "this page changes nothing: start it with --allow-control, or allow_control=True")
        self._check_token(request)
        _check_origin(request)
        form = _form(request)
        reader = self._open_control("reader")
        plan = plan_change(self._store, reader, form, show_keys=self._show_keys)
        if "confirm" not in form:
            return {"confirm": plan.effect}
        if form["confirm"] != plan.effect:
            raise Refused(409, "what was confirmed is not what would be done now: look again")
        changes = plan.run(self._open_control(f"{plan.by} (web)"))
        with self._lock:
            self._readings.clear()
        _log.info("%s", printable(f"{plan.by}: {plan.effect}"))
        return {"done": [format_change(change) for change in changes]}

    def _open_control(self, by: str) -> Control:
        return Control(self._store, by=by)

    # Who may ask.

    def _check_host(self, request: Request) -> None:
        if self._hosts is None:
            return
        name = _host_of(f"//{request.headers.get('host', '')}")
        if name in self._hosts or _is_address(name):
            return
        raise Refused(421, f"this page is not reached as {name!r}: name it with --host-name")

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, brought = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(brought.strip().encode("utf-8", "replace"), self._token.encode())
        if scheme.lower() != "bearer" or not same:
            raise Refused(401, "the token is missing or wrong")


def _opened(store: str | Store | Limiter) -> Any:
    """The store, with longer time-outs than a worker has: an operator may be far away."""
    if isinstance(store, Limiter):
        if not store.stores.shared.shared:
            raise ConfigurationError("a limiter in memory has no fleet: name the Redis that the workers use")
        return store.stores.shared
    if isinstance(store, str) and "://" in store and not store.startswith("memory:"):
        options = store.partition("?")[2]
        names = [name for name in ("socket_timeout", "socket_connect_timeout") if f"{name}=" not in options]
        timeouts = "&".join(f"{name}={_TIMEOUT_S:g}" for name in names)
        store = f"{store}{'&' if options else '?'}{timeouts}" if timeouts else store
    opened = store_from(store, plugin_manager([]))
    if not isinstance(opened, SupportsCommands):
        raise ConfigurationError("this store is not shared by a fleet: name the Redis that the workers use")
    return opened


def _query(text: str) -> dict[str, str]:
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise Refused(400, "the query cannot be read") from None
    return {name: values[-1] for name, values in found.items()}


def _whole(query: dict[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Refused(400, f"{name} must be a whole number")
    return int(text)


def _form(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "send application/json")
    try:
        form = json.loads(request.body[:MAX_BODY])
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(form, dict):
        raise Refused(400, "the body must be a JSON object")
    return form


def _check_origin(request: Request) -> None:
    """
    Refuse what a page of another origin sent. A browser says where a request comes from; the page cannot change that.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin", "").partition("://")[2].lower()
    same = bool(origin) and origin == request.headers.get("host", "").lower()
    if site != "same-origin" and (site is not None or not same):
        raise Refused(403, "only the page itself may change limits: this request comes from elsewhere")


def _host_of(address: str) -> str:
    """The host name in *address*, without a port, in lower case; "" where it cannot be read."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
