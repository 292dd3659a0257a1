"""The web page for tests: a request to a WSGI or an ASGI app without a server, and a server in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

from support.servers.processes import patient

__all__ = ["Answer", "call_asgi", "call_wsgi", "served"]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


def call_wsgi(app: Any, path: str, *, method: str = "GET", body: bytes = b"", root: str = "", **headers: str) -> Answer:
    """Return the answer of the WSGI *app*. *headers* have underscores."""
    path, _, query = path.partition("?")
    started: list[Any] = []
    environ = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": root,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)),
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
        "HTTP_HOST": "localhost",
        **{f"HTTP_{name.upper()}": value for name, value in headers.items() if name != "content_type"},
        **({"CONTENT_TYPE": headers["content_type"]} if "content_type" in headers else {}),
    }
    chunks = app(environ, lambda *reply: started.extend(reply))
    text = b"".join(chunks)
    if hasattr(chunks, "close"):
        chunks.close()
    return Answer(int(started[0].split()[0]), {name.lower(): value for name, value in started[1]}, text)


def call_asgi(app: Any, path: str, *, method: str = "GET", body: bytes = b"", root: str = "", **headers: str) -> Answer:
    """Return the answer of the ASGI *app*."""
    path, _, query = path.partition("?")
    sent: list[MutableMapping[str, Any]] = []
    names = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "method": method,
        "root_path": root,
        "path": f"{root}{path}",
        "raw_path": f"{root}{path}".encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in names.items()],
    }

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    asyncio.run(app(scope, receive, send))
    start, *rest = sent
    found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(each.get("body", b"") for each in rest))


@contextlib.contextmanager
def served(store: str, *options: str) -> Iterator[str]:
    """Serve a page of *store* in another process, and yield the address that the command prints."""
    serve = [sys.executable, "-m", "throttlekit_cli", "web", "--url", patient(store), "--port", "0", *options]
    with subprocess.Popen(serve, env=dict(os.environ), stdout=subprocess.PIPE, text=True) as page:
        try:
            assert page.stdout is not None
            yield page.stdout.readline().split()[-1]
        finally:
            page.kill()
