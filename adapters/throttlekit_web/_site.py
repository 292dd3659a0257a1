"""
Serve the page and its JSON with plain functions from a request to a response, below thin layers for WSGI and ASGI.

Rule 1: The page reads the store in bounded pieces, at most once a second, for any number of browsers.
Rule 2: The page changes no limit unless control is allowed. With control, each change needs the token, the page's own
origin, and a confirmed text that describes the effect. Otherwise the page writes only the number of waiting jobs.
Rule 3: Text from the store is data. It is sent as JSON, and the page inserts it as text.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
from collections.abc import Collection
from dataclasses import replace
from importlib.resources import files
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from throttlekit import ConfigurationError, Control, Limiter, StoreUnavailable
from throttlekit.stores.base import Store
from throttlekit_cli.formatting import format_change, printable
from throttlekit_cli.store import name_store, open_store
from throttlekit_web._changes import plan_change
from throttlekit_web._http import MAX_BODY, Refused, Request, Response, json_response, refusal
from throttlekit_web._reader import Reader

__all__ = ["Site"]

_log = logging.getLogger("throttlekit")
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
    The web page of the fleet's limits, for an app that calls `handle` with requests from its own view.

    Args:
        store: The limiter's URL, the limiter itself, or its store. It is first used by the first request.
        token: A secret of at least 16 characters, which every request for data must contain. If None, every visitor
            can read all data, so the app that mounts the page must admit operators only.
        allow_control: Whether the page can change limits, for example pause them or set rates. It requires a token.
        show_keys: Whether keys, which may contain arguments of jobs, are shown in full, rather than as digests.
        title: A name for the store, such as "production". The page and its tab show it before the store's hosts.
        hosts: The host names of the page. IP addresses and localhost are always allowed. A request for another name
            is rejected, so that a foreign page cannot read this page through a DNS name that resolves to this server.
            If None, the app that mounts the page has to check the host.

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
        title: str = "",
        hosts: Collection[str] | None = None,
    ) -> None:
        if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise ConfigurationError(f"a token has at least {_SHORTEST_TOKEN} characters, all of them printable ASCII")
        if allow_control and token is None:
            raise ConfigurationError("allow_control needs a token: without one every visitor could stop the fleet")
        self._store = open_store(store)
        self._own, self._name = isinstance(store, str), name_store(self._store, title)
        self._token, self._allow_control, self._show_keys = token, allow_control, show_keys
        self._hosts = None if hosts is None else {"localhost", *(name.lower() for name in hosts)}
        self._reader = Reader(self._store, show_keys=show_keys)

    def handle(self, request: Request) -> Response:
        """Return the response to *request*. Errors also become responses, so this method never raises."""
        try:
            self._check_host(request)
            if len(request.body) > MAX_BODY:
                raise Refused(413, "the body is too long")
            response = self._answer(request)
        except Refused as error:
            response = refusal(error.status, str(error))
        except ConfigurationError as error:
            response = refusal(400, str(error))
        except StoreUnavailable as error:
            response = refusal(503, f"the store does not answer: {error}")
        except Exception:
            _log.exception("The web page failed on %s %.200r.", request.method, request.path)
            response = refusal(500, "the server failed: see its log")
        return replace(response, headers={**response.headers, **_SECURITY})

    def record(self) -> None:
        """
        Add the current number of waiting jobs, which workers do not know, to the history in the store.

        One call every 60 s is enough. While a browser shows the page, no call is needed.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        self._reader.record()

    def close(self) -> None:
        """Close the connections to the store, if it was given as a URL."""
        if self._own:
            self._store.close()

    def _answer(self, request: Request) -> Response:
        path, method = request.path, request.method
        if path == "" and request.root:
            return Response(308, {"Location": f"{request.root}/", "Content-Type": "text/plain"}, b"")
        if path == "/api/control":
            return json_response(self._control(request))
        if path not in _FILES and path != "/api/about" and path not in self._reader.addresses:
            raise Refused(404, "there is no such page")
        if method not in ("GET", "HEAD"):
            raise Refused(405, f"{path} accepts only GET")
        if path in _FILES:
            name, kind = _FILES[path]
            body = (files("throttlekit_web") / "static" / name).read_bytes()
            return Response(200, {"Content-Type": kind, "Cache-Control": "no-cache"}, body)
        if path == "/api/about":
            about = {"control": self._allow_control, "token": self._token is not None, "keys": self._show_keys}
            return json_response({**about, "store": self._name} if self._has_token(request) else about)
        self._check_token(request)
        return json_response(self._reader.addresses[path](_query(request.query)))

    # Changes

    def _control(self, request: Request) -> Any:
        if request.method != "POST":
            raise Refused(405, "/api/control accepts only POST")
        if not self._allow_control:
            raise Refused(403, "this page changes nothing: start it with --allow-control, or allow_control=True")
        self._check_token(request)
        _check_origin(request)
        form = _form(request)
        plan = plan_change(self._store, Control(self._store, by="reader"), form, show_keys=self._show_keys)
        effect = f"{plan.effect} Store: {self._name}."
        if "confirm" not in form:
            return {"confirm": effect}
        if form["confirm"] != effect:
            raise Refused(409, "the effect is no longer the one that was confirmed: open the change again")
        changes = plan.run(Control(self._store, by=f"{plan.by} (web)"))
        self._reader.forget()
        _log.info("%s", printable(f"{plan.by}: {effect}"))
        return {"done": [each if isinstance(each, str) else format_change(each) for each in changes]}

    # Access

    def _check_host(self, request: Request) -> None:
        if self._hosts is None:
            return
        name = _host_of(f"//{request.headers.get('host', '')}")
        if name in self._hosts or _is_address(name):
            return
        raise Refused(421, f"the host name {name!r} is not allowed: add it with --host-name")

    def _check_token(self, request: Request) -> None:
        if not self._has_token(request):
            raise Refused(401, "the token is missing or wrong")

    def _has_token(self, request: Request) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token.encode())
        return scheme.lower() == "bearer" and same


def _query(text: str) -> dict[str, str]:
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise Refused(400, "the query cannot be read") from None
    return {name: values[-1] for name, values in found.items()}


def _form(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "send application/json")
    try:
        form: Any = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(form, dict):
        raise Refused(400, "the body must be a JSON object")
    return cast("dict[str, Any]", form)


def _check_origin(request: Request) -> None:
    """Reject a request from a page of another origin, by headers that the browser sets and pages cannot change."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin", "").partition("://")[2].lower()
    same = bool(origin) and origin == request.headers.get("host", "").lower()
    if site != "same-origin" and (site is not None or not same):
        raise Refused(403, "only the page itself may change limits: this request is from another origin")


def _host_of(address: str) -> str:
    """Return the host name in *address*, without a port, in lower case, or "" if it cannot be read."""
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
