"""
The clients for requests and httpx with limits, on a real HTTP server: waiting, response headers, errors and returned
units.
"""

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
    """A server that returns a configured response, and counts its requests."""

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
            """Do not log requests."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            """Ignore errors of closed connections: a client that closes its connection is expected."""

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

    AsyncLimitedTransport(limiter, *limits, **options)  # a mistake raises here, before the first request
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


def _remaining(limiter: Recording, limit: Limit, **options: Any) -> int:
    return limiter.peek(limit, **options).remaining


def test_each_request_is_charged_and_its_response_is_applied(client: Any, limiter: Recording, partner: Partner) -> None:
    """Outside a job, each request waits for a grant, and its response's rate-limit headers are applied to the limit."""
    partner.answers.extend([(200, {}), (200, SPENT)])
    with client(limiter, PARTNER) as get:
        assert [get(partner.url), get(partner.url)] == [200, 200]
    assert _remaining(limiter, PARTNER) == 3
    assert [remaining for _, remaining in limiter.slowed] == [Remaining(2, 30_000_000)]


def test_a_redirect_is_a_request(client: Any, limiter: Recording, partner: Partner) -> None:
    """A redirect reaches the partner, so it is charged."""
    partner.answers.extend([(302, {"Location": "/there"}), (200, {})])
    with client(limiter, PARTNER) as get:
        assert get(partner.url) == 200
    assert partner.seen == ["/", "/there"]
    assert _remaining(limiter, PARTNER) == 3


def test_a_request_waits_for_at_most_max_wait(client: Any, limiter: Recording, partner: Partner) -> None:
    """A request that is not admitted in time never reaches the partner."""
    with client(limiter, PARTNER, timeout=0, cost=5) as get:
        get(partner.url)
        with pytest.raises(WaitedTooLong):
            get(partner.url)
    assert partner.seen == ["/"]


def test_keys_and_costs_can_be_computed_from_the_request(client: Any, limiter: Recording, partner: Partner) -> None:
    """Each of them can be a text or a function of the request."""
    with client(limiter, ACCOUNT, key=lambda request: str(request.url).rpartition("/")[2], cost=lambda _: 2) as get:
        get(partner.url + "seven")
    assert [_remaining(limiter, ACCOUNT, key=key) for key in ("seven", "eight")] == [1, 3]


def test_a_key_is_for_the_limits_that_have_one(client: Any, limiter: Recording, partner: Partner) -> None:
    """The first limit needs no key, also when a response is applied to it, or pauses it; nor do limits of tokens."""
    partner.answers.extend([(200, SPENT), (429, {"Retry-After": "7"})])
    with client(limiter, PARTNER, ACCOUNT, key="seven") as get:
        assert get(partner.url) == 200
        with pytest.raises(RateLimited):
            get(partner.url)
    assert (_remaining(limiter, ACCOUNT, key="seven"), len(limiter.slowed)) == (1, 1)
    assert (limiter.peek(PARTNER).reason, limiter.paused) == ("paused", [7.0])
    with client(limiter, TokenBucket("other", "1/day"), tokens=ACCOUNT, key="seven") as get:
        assert get(partner.url) == 200


def test_a_key_without_a_limit_that_has_one_is_refused(client: Any, limiter: Recording) -> None:
    """Otherwise all requests would have one count, although each names its key."""
    with pytest.raises(ConfigurationError, match="limit 'partner' has no key"), client(limiter, PARTNER, key="seven"):
        pass


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "7"}, 7.0),
        (429, {}, 30.0),
        (503, {"Retry-After": "7"}, 7.0),
        (403, {"Retry-After": "7"}, 7.0),
    ],
)
def test_a_denial_is_raised_and_pauses_the_limit(
    client: Any, limiter: Recording, partner: Partner, status: int, headers: dict[str, str], seconds: float
) -> None:
    """Outside a job too, the whole fleet waits for as long as the partner requires."""
    partner.answers.append((status, headers))
    with client(limiter, PARTNER) as get, pytest.raises(RateLimited) as raised:
        get(partner.url)
    assert (raised.value.retry_after, raised.value.limit) == (seconds, PARTNER)
    assert limiter.paused == [seconds]
    assert limiter.peek(PARTNER).reason == "paused"


@pytest.mark.parametrize("status", [403, 503, 500, 404])
def test_other_error_responses_are_returned_to_the_caller(
    client: Any, limiter: Recording, partner: Partner, status: int
) -> None:
    """They are returned like any other response."""
    partner.answers.append((status, SPENT))
    with client(limiter, PARTNER) as get:
        assert get(partner.url) == status
    assert len(limiter.slowed) == 1


def test_a_job_was_charged_for_its_request(client: Any, limiter: Recording, partner: Partner) -> None:
    """A request under a limit of its job waits for nothing. Its response headers are applied to the job's key."""
    partner.answers.extend([(200, SPENT), (429, {"Retry-After": "7"})])
    with _job(limiter, ACCOUNT), client(limiter, ACCOUNT) as get:
        assert get(partner.url) == 200
        with pytest.raises(RateLimited):
            get(partner.url)
    assert _remaining(limiter, ACCOUNT, key=7) == 2
    assert [remaining for _, remaining in limiter.slowed] == [Remaining(2, 30_000_000)]
    assert limiter.paused == []  # the job's framework pauses the limit after the body has raised


@pytest.mark.parametrize("options", [{}, {"key": 7}])
def test_a_job_waits_in_its_body_for_a_limit_that_it_does_not_have(
    client: Any, limiter: Recording, partner: Partner, options: dict[str, Any]
) -> None:
    """
    If a request in a job's body has a limit that the job does not have, the request waits for that limit. A key of the
    client is not for that limit, if it has no key.
    """
    partner.answers.append((200, SPENT))
    with _job(limiter, ACCOUNT), client(limiter, PARTNER, ACCOUNT, **options) as get:
        assert get(partner.url) == 200
    assert (_remaining(limiter, PARTNER), _remaining(limiter, ACCOUNT, key=7)) == (4, 2)
    assert len(limiter.slowed) == 1


def test_response_headers_about_tokens_are_applied(client: Any, limiter: Recording, partner: Partner) -> None:
    """For services that count requests and tokens, and in a job with both limits too."""
    tokens = TokenBucket("tokens", "9000/minute", burst=9000)
    said = {
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "60s",
        "x-ratelimit-remaining-tokens": "30",
        "x-ratelimit-reset-tokens": "40s",
    }
    partner.answers.extend([(200, said)] * 3)
    expected = [Remaining(1, 60_000_000), Remaining(30, 40_000_000)]
    with client(limiter, PARTNER, tokens=tokens) as get:
        get(partner.url)
        assert [remaining for _, remaining in limiter.slowed] == expected
        with _job(limiter, PARTNER, tokens):
            get(partner.url)
        assert [remaining for _, remaining in limiter.slowed] == expected * 2
        with _job(limiter, PARTNER):
            get(partner.url)
        assert [remaining for _, remaining in limiter.slowed] == [*expected * 2, expected[0]]


def test_a_request_that_reached_no_server_is_not_charged(client: Any, limiter: Recording) -> None:
    """The partner did not count the request, so its units are returned."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        errors = (requests.ConnectionError, httpx.ConnectError)
        with client(limiter, PARTNER) as get, pytest.raises(errors):
            get(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert _remaining(limiter, PARTNER) == 5


@pytest.mark.parametrize(
    ("limits", "match"),
    [((), "name one"), ((SLOTS,), "with limiter.hold"), (("partner",), "takes limits, not 'partner'")],
)
def test_a_client_accepts_only_rates(client: Any, limiter: Recording, limits: Any, match: str) -> None:
    """A slot would have to be held until the response is read."""
    with pytest.raises(ConfigurationError, match=match), client(limiter, *limits):
        pass


def test_an_async_limiter_can_be_passed(limiter: Recording, partner: Partner) -> None:
    """It replaces the process's limiter."""

    async def get() -> int:
        transport = AsyncLimitedTransport(AsyncLimiter(limiter), PARTNER)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            return (await client.get(partner.url)).status_code

    assert asyncio.run(get()) == 200
    assert _remaining(limiter, PARTNER) == 4


def test_no_job_is_left_running() -> None:
    """The tests above end the jobs that they start."""
    assert RUNNING.get() is NOTHING
