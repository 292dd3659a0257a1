"""The page as an ASGI app: for FastAPI, Starlette and Django."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from throttlekit import Limiter
from throttlekit.stores.base import Store
from throttlekit_web._http import MAX_BODY, Request, Response
from throttlekit_web._site import Site

__all__ = ["asgi_app"]

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_ASGIApp = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]


def asgi_app(
    store: str | Store | Limiter,
    *,
    token: str | None,
    allow_control: bool = False,
    show_keys: bool = False,
    title: str = "",
) -> _ASGIApp:
    """
    Return the page as an ASGI app, to be mounted below a path of another app. The arguments are those of `Site`.

    Each request is handled in a thread of the event loop's executor.
    """
    site = Site(store, token=token, allow_control=allow_control, show_keys=show_keys, title=title)

    async def app(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            request = _request(scope, await _body(receive))
            await _answer(scope, await asyncio.to_thread(site.handle, request), send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    return app


async def _live(receive: _Receive, send: _Send) -> None:
    """Confirm the lifespan events, for which the page has nothing to start or to stop."""
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _body(receive: _Receive) -> bytes:
    """Return the body, or only its beginning if it is too long."""
    body, more = b"", True
    while more and len(body) <= MAX_BODY:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    return body


def _request(scope: MutableMapping[str, Any], body: bytes) -> Request:
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    return Request(
        scope["method"],
        path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path,
        scope.get("query_string", b"").decode("latin-1"),
        {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
        body,
        root,
    )


async def _answer(scope: MutableMapping[str, Any], response: Response, send: _Send) -> None:
    headers = {**response.headers, "Content-Length": str(len(response.body))}
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": pairs})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})
