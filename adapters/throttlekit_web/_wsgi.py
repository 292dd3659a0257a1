"""The page as a WSGI app: for Flask, Django, and the server of `throttlekit web`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from throttlekit import Limiter
from throttlekit.stores.base import Store
from throttlekit_web._http import MAX_BODY, Request
from throttlekit_web._site import Site

__all__ = ["serve_wsgi", "wsgi_app"]

_WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def wsgi_app(
    store: str | Store | Limiter,
    *,
    token: str | None,
    allow_control: bool = False,
    show_keys: bool = False,
    title: str = "",
) -> _WSGIApp:
    """Return the page as a WSGI app, to be mounted below a path of another app. The arguments are those of `Site`."""
    return serve_wsgi(Site(store, token=token, allow_control=allow_control, show_keys=show_keys, title=title))


def serve_wsgi(site: Site) -> _WSGIApp:
    """Return *site* as a WSGI app."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        response = site.handle(_request(environ))
        status = f"{response.status} {HTTPStatus(response.status).phrase}"
        start_response(status, [*response.headers.items(), ("Content-Length", str(len(response.body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]

    return app


def _request(environ: dict[str, Any]) -> Request:
    """Return the request, with only the beginning of the body if it is too long."""
    length = environ.get("CONTENT_LENGTH") or "0"
    size = min(MAX_BODY + 1, int(length[:9])) if length.isascii() and length.isdigit() else 0
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name[:5] == "HTTP_"}
    if "CONTENT_TYPE" in environ:
        headers["content-type"] = environ["CONTENT_TYPE"]
    return Request(
        environ["REQUEST_METHOD"],
        environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace"),
        environ.get("QUERY_STRING", ""),
        headers,
        environ["wsgi.input"].read(size) if size else b"",
        environ.get("SCRIPT_NAME", "").rstrip("/"),
    )
