"""One small application in each framework, called with the framework's own test client."""

# No `from __future__ import annotations`: FastAPI reads the annotations of functions within functions.

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import httpx

from throttlekit import Limit, Limiter

__all__ = ["SITES", "Answer", "Make", "as_asgi", "in_django", "in_django_async", "in_fastapi", "in_flask"]

Body = Callable[[], Any]
Get = Callable[..., "Answer"]
Make = Callable[..., Get]


class Answer(NamedTuple):
    """A response, with the names of its headers in lower case."""

    status: int
    headers: dict[str, str]
    body: str


def _account_of(request: Any) -> str:
    return str(request.headers["X-Account"])


def in_fastapi(limiter: Limiter, *limits: Limit, body: Body = lambda: "ok", account: bool = False) -> Get:
    """Call `/things/{thing}` of an app whose view calls *body*. An iterator is streamed."""
    app = as_asgi(limiter, *limits, body=body, account=account)

    def get(path: str, **headers: str) -> Answer:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 123))

        async def request_view() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.get(path, headers=_dashed(headers))

        answer = asyncio.run(request_view())
        return Answer(answer.status_code, _lower(answer.headers), answer.text)

    return get


def as_asgi(limiter: Limiter, *limits: Limit, body: Body = lambda: "ok", account: bool = False) -> Any:
    """Return the app of `in_fastapi`."""
    from fastapi import Depends, FastAPI, Request
    from fastapi.responses import StreamingResponse

    from throttlekit_fastapi import Throttled

    async def of_account(request: Request) -> str:
        return _account_of(request)

    app, given = FastAPI(), {"account": of_account} if account else {}

    @app.get("/things/{thing}", dependencies=[Depends(Throttled(limiter, *limits, **given))])
    async def things(thing: str) -> Any:
        found = body()
        found = await found if inspect.iscoroutine(found) else found
        return StreamingResponse(found) if isinstance(found, Iterator) else found

    app.get("/plain/{thing}", dependencies=[Depends(Throttled(limiter, *limits, **given))])(lambda thing: body())
    app.get("/by/{remote_addr}", dependencies=[Depends(Throttled(limiter, *limits, **given))])(lambda remote_addr: "ok")
    return app


def in_flask(limiter: Limiter, *limits: Limit, body: Body = lambda: "ok", account: bool = False) -> Get:
    from flask import Flask, request

    from throttlekit_flask import throttled

    app, given = Flask("shop", root_path="/"), {"account": lambda: _account_of(request)} if account else {}

    @app.get("/things/<thing>")
    @throttled(limiter, *limits, **given)
    def things(thing: str) -> Any:
        return body()

    @app.get("/plain/<thing>")
    @throttled(limiter, *limits, **given)
    async def plain(thing: str) -> Any:
        return body()

    app.get("/by/<remote_addr>")(throttled(limiter, *limits, **given)(lambda thing="", remote_addr="": "ok"))
    app.errorhandler(429)(lambda error: ("slow down", 429))

    def get(path: str, **headers: str) -> Answer:
        with app.test_client().get(path, headers=_dashed(headers), environ_base={"REMOTE_ADDR": "127.0.0.1"}) as answer:
            return Answer(answer.status_code, _lower(answer.headers), answer.text)

    return get


def _django() -> None:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=None, SECRET_KEY="s", USE_TZ=True)
        django.setup()


def in_django(limiter: Limiter, *limits: Limit, body: Body = lambda: "ok", account: bool = False) -> Get:
    _django()
    from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
    from django.test import Client, override_settings
    from django.urls import path as at
    from django.views import View

    from throttlekit_django import throttled

    given = {"account": _account_of} if account else {}

    @throttled(limiter, *limits, **given)
    def things(request: HttpRequest, thing: str = "", remote_addr: str = "") -> Any:
        found = body()
        return StreamingHttpResponse(found) if isinstance(found, Iterator) else HttpResponse(found)

    class Plain(View):
        def get(self, request: HttpRequest, thing: str) -> Any:
            return HttpResponse(body())

    plain = throttled(limiter, *limits, **given)(Plain.as_view())
    urls = _urls(at("things/<thing>", things), at("plain/<thing>", plain), at("by/<remote_addr>", things))

    def get(path: str, **headers: str) -> Answer:
        with override_settings(ROOT_URLCONF=urls):
            client = Client(raise_request_exception=False)
            answer = client.get(path, headers=_dashed(headers), REMOTE_ADDR="127.0.0.1")
            return Answer(answer.status_code, _lower(answer.headers), _read(answer))

    return get


def in_django_async(limiter: Limiter, *limits: Limit, body: Body = lambda: "ok", account: bool = False) -> Get:
    _django()
    from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
    from django.test import AsyncClient, override_settings
    from django.urls import path as at

    from throttlekit_django import throttled

    async def of_account(request: HttpRequest) -> str:
        return _account_of(request)

    @throttled(limiter, *limits, **({"account": of_account} if account else {}))
    async def things(request: HttpRequest, thing: str = "", remote_addr: str = "") -> Any:
        found = body()
        found = await found if inspect.iscoroutine(found) else found
        return StreamingHttpResponse(_as_async(found)) if isinstance(found, Iterator) else HttpResponse(found)

    urls = _urls(at("things/<thing>", things), at("plain/<thing>", things), at("by/<remote_addr>", things))

    async def request_view(path: str, headers: dict[str, str]) -> Answer:
        client = AsyncClient(raise_request_exception=False)
        answer = await client.get(path, headers=headers)
        parts = [part async for part in answer.streaming_content] if answer.streaming else [answer.content]
        if answer.streaming:
            answer.close()
        return Answer(answer.status_code, _lower(answer.headers), b"".join(parts).decode())

    def get(path: str, **headers: str) -> Answer:
        with override_settings(ROOT_URLCONF=urls):
            return asyncio.run(request_view(path, _dashed(headers)))

    return get


SITES: dict[str, Make] = {
    "fastapi": in_fastapi,
    "flask": in_flask,
    "django": in_django,
    "django async": in_django_async,
}


def _urls(*patterns: Any) -> ModuleType:
    module: Any = ModuleType("urls")
    module.urlpatterns = patterns
    return module  # type: ignore[no-any-return]


async def _as_async(parts: Iterator[str]) -> AsyncIterator[str]:
    for part in parts:
        yield part


def _read(answer: Any) -> str:
    return b"".join(answer.streaming_content if answer.streaming else [answer.content]).decode()


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
