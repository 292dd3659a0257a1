"""The page mounted in apps: plain WSGI and ASGI, Flask, FastAPI and Django."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import wsgiref.validate
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.servers.processes import patient
from support.web import Answer, call_asgi, call_wsgi
from throttlekit import Control, Limiter, TokenBucket
from throttlekit_web import asgi_app, wsgi_app

TOKEN = "a-token-of-the-tests"


def _in_flask(url: str) -> Any:
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    app = Flask("page", root_path=str(Path(__file__).parent))
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/limits": wsgi_app(url, token=TOKEN, allow_control=True)})
    return lambda path, **request: call_wsgi(app, f"/limits{path}", **request)


def _in_fastapi(url: str) -> Any:
    from fastapi import FastAPI

    app = FastAPI()
    app.mount("/limits", asgi_app(url, token=TOKEN, allow_control=True))
    return lambda path, **request: call_asgi(app, f"/limits{path}", **request)


def _as_wsgi(url: str) -> Any:
    app = wsgiref.validate.validator(wsgi_app(url, token=TOKEN, allow_control=True))
    return lambda path, **request: call_wsgi(app, path, root="/limits", **request)


def _as_asgi(url: str) -> Any:
    app = asgi_app(url, token=TOKEN, allow_control=True)
    return lambda path, **request: call_asgi(app, path, root="/limits", **request)


@pytest.fixture(params=[_as_wsgi, _as_asgi, _in_flask, _in_fastapi], ids=["wsgi", "asgi", "flask", "fastapi"])
def mounted(request: pytest.FixtureRequest, redis_url: str) -> Callable[..., Answer]:
    """Return a function that calls the page, mounted at /limits of an app."""
    if request.param in (_in_flask, _in_fastapi):
        pytest.importorskip(request.param.__name__.removeprefix("_in_"))
    page: Callable[..., Answer] = request.param(patient(redis_url))
    return page


def test_a_mounted_page_answers(
    mounted: Callable[..., Answer], limiter: Limiter, report: Callable[[], None], redis_url: str
) -> None:
    """The page, its data, its refusals and a change are the same through each interface."""
    limiter.acquire(TokenBucket("partner-api", "1/minute"))
    report()
    own = {"authorization": f"Bearer {TOKEN}"}
    assert b"<title>throttlekit</title>" in mounted("/").body
    assert mounted("/", method="HEAD").body == b""
    assert mounted("/nothing").status == 404
    assert mounted("/api/limits").status == 401
    (row,) = mounted("/api/limits?order=name", **own).data["limits"]
    assert row["limit"] == "partner-api"
    own |= {"origin": "http://localhost", "content_type": "application/json"}
    form = {"verb": "pause", "limit": row["id"], "by": "ann"}
    effect = mounted("/api/control", method="POST", body=json.dumps(form).encode(), **own).data["confirm"]
    done = mounted("/api/control", method="POST", body=json.dumps({**form, "confirm": effect}).encode(), **own)
    assert done.status == 200
    assert mounted("/api/control", method="POST", body=b" " * 10_001, **own).status == 413
    with Control(patient(redis_url)) as control:
        assert [rule.by for rule in control.rules()] == ["ann (web)"]


def test_the_address_of_a_mounted_page_needs_no_slash(mounted: Callable[..., Answer]) -> None:
    """The address without a slash redirects to the one with it, below which the files are."""
    answer = mounted("")
    assert answer.status in (301, 307, 308)
    assert answer.headers["location"].endswith("/limits/")


def test_an_asgi_server_can_start_and_stop_it() -> None:
    """The ASGI app answers the lifespan events, and closes a websocket."""
    app, sent = asgi_app("redis://localhost", token=None), list[str]()

    async def call(scope: str, *events: str) -> None:
        coming = iter(events)

        async def receive() -> dict[str, str]:
            return {"type": next(coming)}

        async def send(event: Any) -> None:
            sent.append(event["type"])

        await app({"type": scope}, receive, send)

    asyncio.run(call("lifespan", "lifespan.startup", "lifespan.shutdown"))
    asyncio.run(call("websocket", "websocket.connect"))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


_DJANGO = """
import os, sys
import django
from django.conf import settings
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="s")
django.setup()
from django.http import HttpResponse
from django.test import Client
from django.urls import re_path
from throttlekit_web import Request, Site

site = Site(sys.argv[1], token=None)

def limits(request, path):
    call = Request(request.method, f"/{path}", request.META["QUERY_STRING"], root="/limits")
    answer = site.handle(call)
    return HttpResponse(answer.body, status=answer.status, headers=answer.headers)

urlpatterns = [re_path("^limits/(.*)$", limits)]
client = Client()
assert b"<title>throttlekit</title>" in client.get("/limits/").content
assert client.get("/limits/api/limits", {"order": "name"}).json()["limits"] == []
assert client.get("/limits/nothing").status_code == 404
assert "script-src 'self'" in client.get("/limits/").headers["Content-Security-Policy"]
print("answered")
"""


def test_a_django_view_answers(redis_url: str) -> None:
    """A view behind the project's own login passes the request to the page."""
    pytest.importorskip("django")
    command = [sys.executable, "-c", _DJANGO, patient(redis_url)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert "answered" in done.stdout, done.stderr
