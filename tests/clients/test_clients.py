"""requests and httpx, held to limits, against a real server of HTTP: what they wait for, hear, raise and give back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import requests

from support.hearing import Recording
from throttlekit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Job,
    Limit,
    RateLimited,
    TokenBucket,
    WaitedTooLong,
)
from throttlekit._core.slowdown import Remaining
from throttlekit._engine.running import NOTHING, RUNNING, Running
from throttlekit_httpx import AsyncLimitedTransport, LimitedTransport
from throttlekit_requests import LimitedAdapter

PARTNER = TokenBucket("partner", "1/day", burst=5)
ACCOUNT = TokenBucket("account", "1/day", burst=3, key="{account}")
SLOTS = Concurrency("slots", 3)
SPENT = {"RateLimit": '"default";r=2;t=30'}


class Partner:
    """A server that answers what it is given, and counts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: deque[tuple[int, dict[str, str]]] = deque()
        self.seen: list[str] = []


@pytest.fixture
def partner() -> Iterator[Partner]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.seen.append(self.path)
            status, headers = found.answers.popleft() if found.answers else (200, {})
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "2"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            """A client that closed its connection is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    found = Partner(f"http://127.0.0.1:{server.server_address[1]}/")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


Get = Callable[[str], int]


@contextmanager
def _requests(limiter: Recording, *limits: Limit, **options: Any) -> Generator[Get]:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", LimitedAdapter(limiter, *limits, **options))
        yield lambda url: session.get(url, timeout=30).status_code


@contextmanager
def _httpx(limiter: Recording, *limits: Limit, **options: Any) -> Generator[Get]:
    transport = LimitedTransport(limiter, *limits, **options)
    with httpx.Client(transport=transport, trust_env=False, follow_redirects=True) as client:
        yield lambda url: client.get(url, timeout=30).status_code


@contextmanager
def _httpx_async(limiter: Recording, *limits: Limit, **options: Any) -> Generator[Get]:
    async def get(url: str) -> int:
        transport = AsyncLimitedTransport(limiter, *limits, **options)
        async with httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=True) as client:
            return (await client.get(url, timeout=30)).status_code

    AsyncLimitedTransport(limiter, *limits, **options)  # a mistake shows at once
    yield lambda url: asyncio.run(get(url))


@pytest.fixture(params=[_requests, _httpx, _httpx_async], ids=["requests", "httpx", "httpx async"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def limiter() -> Iterator[Recording]:
    with Recording() as made:
        yield made


@contextmanager
def _job(limiter: Recording, *limits: Limit) -> Generator[None]:
    job = Job(kwargs={"account": 7})
    token = RUNNING.set(Running(limiter, limiter.acquire(*limits, job=job), job=job))
    try:
        yield
    finally:
        RUNNING.reset(token)


def _left(limiter: Recording, limit: Limit, **options: Any) -> int:
    return limiter.peek(limit, **options).remaining


def test_each_request_is_charged_and_heard(client: Any, limiter: Recording, partner: Partner) -> None:
    """Outside a job each waits for a grant, and what its response says of the limit is taken over."""
    partner.answers.extend([(200, {}), (200, SPENT)])
    with client(limiter, PARTNER) as get:
        assert [get(partner.url), get(partner.url)] == [200, 200]
    assert _left(limiter, PARTNER) == 3
    assert [heard for _, heard in limiter.slowed] == [Remaining(2, 30_000_000)]


def test_a_redirect_is_a_request(client: Any, limiter: Recording, partner: Partner) -> None:
    """It reaches the partner, so it is charged."""
    partner.answers.extend([(302, {"Location": "/there"}), (200, {})])
    with client(limiter, PARTNER) as get:
        assert get(partner.url) == 200
    assert partner.seen == ["/", "/there"]
    assert _left(limiter, PARTNER) == 3


def test_a_request_waits_for_its_turn_at_most_so_long(client: Any, limiter: Recording, partner: Partner) -> None:
    """One that may not pass never reaches the partner."""
    with client(limiter, PARTNER, timeout=0, cost=5) as get:
        get(partner.url)
        with pytest.raises(WaitedTooLong):
            get(partner.url)
    assert partner.seen == ["/"]


def test_keys_and_costs_may_come_from_the_request(client: Any, limiter: Recording, partner: Partner) -> None:
    """As text, or as a function of it."""
    with client(limiter, ACCOUNT, key=lambda request: str(request.url).rpartition("/")[2], cost=lambda _: 2) as get:
        get(partner.url + "seven")
    assert [_left(limiter, ACCOUNT, key=key) for key in ("seven", "eight")] == [1, 3]


@pytest.mark.parametrize(("status", "headers", "seconds"), [
    (429, {"Retry-After": "7"}, 7.0), (429, {}, 30.0), (503, {"Retry-After": "7"}, 7.0),
    (403, {"Retry-After": "7"}, 7.0),
])  # fmt: skip
def test_a_denial_is_raised_and_pauses_the_limit(
    client: Any, limiter: Recording, partner: Partner, status: int, headers: dict[str, str], seconds: float
) -> None:
    """Outside a job as well: the whole fleet waits for as long as the partner says."""
    partner.answers.append((status, headers))
    with client(limiter, PARTNER) as get, pytest.raises(RateLimited) as raised:
        get(partner.url)
    assert (raised.value.retry_after, raised.value.limit) == (seconds, PARTNER)
    assert limiter.paused == [seconds]
    assert limiter.peek(PARTNER).reason == "paused"


@pytest.mark.parametrize("status", [403, 503, 500, 404])
def test_other_errors_are_the_callers(client: Any, limiter: Recording, partner: Partner, status: int) -> None:
    """They are responses like any other."""
    partner.answers.append((status, SPENT))
    with client(limiter, PARTNER) as get:
        assert get(partner.url) == status
    assert len(limiter.slowed) == 1


def test_a_job_was_charged_for_its_request(client: Any, limiter: Recording, partner: Partner) -> None:
    """Under a limit of the job nothing is waited for; what is heard counts under the job's key."""
    partner.answers.extend([(200, SPENT), (429, {"Retry-After": "7"})])
    with _job(limiter, ACCOUNT), client(limiter, ACCOUNT) as get:
        assert get(partner.url) == 200
        with pytest.raises(RateLimited):
            get(partner.url)
    assert _left(limiter, ACCOUNT, key=7) == 2
    assert [heard for _, heard in limiter.slowed] == [Remaining(2, 30_000_000)]
    assert limiter.paused == []  # the job's framework pauses, once the body has raised


def test_a_job_waits_for_a_limit_that_it_has_not(client: Any, limiter: Recording, partner: Partner) -> None:
    """In its body, where the request is made."""
    partner.answers.append((200, SPENT))
    with _job(limiter, ACCOUNT), client(limiter, PARTNER, ACCOUNT) as get:
        get(partner.url)
    assert (_left(limiter, PARTNER), _left(limiter, ACCOUNT, key=7)) == (4, 2)
    assert len(limiter.slowed) == 1


def test_tokens_are_heard(client: Any, limiter: Recording, partner: Partner) -> None:
    """Of services that count both; in a job of both limits too."""
    tokens = TokenBucket("tokens", "9000/minute", burst=9000)
    said = {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "60s",
            "x-ratelimit-remaining-tokens": "30", "x-ratelimit-reset-tokens": "40s"}  # fmt: skip
    partner.answers.extend([(200, said)] * 3)
    expected = [Remaining(1, 60_000_000), Remaining(30, 40_000_000)]
    with client(limiter, PARTNER, tokens=tokens) as get:
        get(partner.url)
        assert [heard for _, heard in limiter.slowed] == expected
        with _job(limiter, PARTNER, tokens):
            get(partner.url)
        assert [heard for _, heard in limiter.slowed] == expected * 2
        with _job(limiter, PARTNER):
            get(partner.url)
        assert [heard for _, heard in limiter.slowed] == [*expected * 2, expected[0]]


def test_a_request_that_reached_no_server_is_given_back(client: Any, limiter: Recording) -> None:
    """The partner has not counted it."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        errors = (requests.ConnectionError, httpx.ConnectError)
        with client(limiter, PARTNER) as get, pytest.raises(errors):
            get(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert _left(limiter, PARTNER) == 5


@pytest.mark.parametrize(("limits", "match"), [
    ((), "name one"), ((SLOTS,), "with limiter.hold"), (("partner",), "takes limits, not 'partner'"),
])  # fmt: skip
def test_a_client_takes_rates(client: Any, limiter: Recording, limits: Any, match: str) -> None:
    """A slot would have to be held until the response is read."""
    with pytest.raises(ConfigurationError, match=match), client(limiter, *limits):
        pass


def test_an_async_limiter_may_be_given(limiter: Recording, partner: Partner) -> None:
    """In place of the process's limiter."""

    async def get() -> int:
        transport = AsyncLimitedTransport(AsyncLimiter(limiter), PARTNER)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            return (await client.get(partner.url)).status_code

    assert asyncio.run(get()) == 200
    assert _left(limiter, PARTNER) == 4


def test_no_job_is_left_running() -> None:
    """The tests above restore what runs here."""
    assert RUNNING.get() is NOTHING
