"""Limits on views of FastAPI, Flask and Django: each in its own test client, in memory and on a real Redis."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from serving.sites import SITES, Make, as_asgi
from support.servers.processes import free_port, patient
from support.servers.stores import Passing
from support.waiting import wait_until
from throttlekit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Control,
    Decision,
    Delivery,
    Job,
    Limit,
    Limiter,
    TokenBucket,
    hookimpl,
)
from throttlekit._core.answer import Answer
from throttlekit.adapter import RequestLimits
from throttlekit.stores import MemoryStore

SEARCH = TokenBucket("search", "1/day", burst=2)
THING = TokenBucket("thing", "1/day", burst=1, key="{thing}")
ADDRESS = TokenBucket("address", "1/day", burst=1, key="{remote_addr}")
WAY = TokenBucket("way", "1/day", burst=1, key="{method} {path}")
ACCOUNT = TokenBucket("account", "1/day", burst=1, key="{account}")
SLOTS = Concurrency("slots", 1, lease=30)


def is_slot_held(limiter: Limiter) -> bool:
    """
    Return whether the only slot is held. The request runs in another thread: a view can run in an event loop, which
    must not block.
    """
    with ThreadPoolExecutor(1) as thread:
        return not thread.submit(limiter.peek, SLOTS).result().allowed


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest) -> Make:
    pytest.importorskip(request.param.partition(" ")[0])
    return SITES[request.param]


@pytest.fixture(params=["memory", "redis"])
def limiter(request: pytest.FixtureRequest) -> Iterator[Limiter]:
    url = "memory://" if request.param == "memory" else patient(request.getfixturevalue("redis_url"))
    with Limiter(url) as made:
        yield made


@pytest.fixture
def memory() -> Iterator[Limiter]:
    with Limiter("memory://") as made:
        yield made


def test_a_request_over_the_limit_gets_a_429(site: Make, limiter: Limiter) -> None:
    """Both responses have the limit's headers. Jobs count under the same limit."""
    get = site(limiter, SEARCH)
    passed = get("/things/1")
    assert (passed.status, passed.body.strip('"')) == (200, "ok")
    assert passed.headers["ratelimit-policy"] == '"search";q=1;w=86400'
    assert passed.headers["ratelimit"].startswith('"search";r=1;t=')
    assert "retry-after" not in passed.headers
    assert limiter.acquire(SEARCH, job=Job("1")).allowed
    denied = get("/things/1")
    assert denied.status == 429
    assert denied.headers["ratelimit"].startswith('"search";r=0;t=')
    assert 80_000 < int(denied.headers["retry-after"]) <= 86_400


def test_other_kinds_of_views_are_limited_too(site: Make, memory: Limiter) -> None:
    """A plain function in FastAPI, a coroutine function in Flask, and a class in Django."""
    get = site(memory, SEARCH)
    assert [get("/plain/1").status for _ in range(3)] == [200, 200, 429]


def test_a_request_waits_behind_jobs_and_gets_no_position(site: Make, limiter: Limiter) -> None:
    """While a job waits, no request is admitted before it. A denied request makes no job wait."""
    limit = TokenBucket("line", "1/day", burst=1)
    get = site(limiter, limit)
    limiter.acquire(limit)
    assert not limiter.acquire(limit, job=Job("1")).allowed
    before = limiter.peek(limit).retry_after
    assert [get("/things/1").status for _ in range(3)] == [429] * 3
    assert limiter.peek(limit).retry_after == pytest.approx(before, abs=60)
    assert before > 86_400, "there is room for one job"


def test_keys_are_read_from_the_request(site: Make, limiter: Limiter) -> None:
    """A key can use the view's arguments, the address, the method and the path."""
    get = site(limiter, THING, WAY)
    assert [get(f"/things/{thing}").status for thing in (1, 1, 2)] == [200, 429, 200]
    assert not limiter.peek(THING, key="2").allowed
    assert not limiter.peek(WAY, key="GET /things/1").allowed


def test_the_application_computes_other_fields_of_a_template(site: Make, limiter: Limiter) -> None:
    """A function computes any other field of a template, with the framework's own request object."""
    get = site(limiter, ACCOUNT, account=True)
    assert [get("/things/1", X_Account=account).status for account in "aab"] == [200, 429, 200]
    assert not limiter.peek(ACCOUNT, key="b").allowed


def test_a_client_cannot_choose_its_address(site: Make, memory: Limiter) -> None:
    """Neither a header nor an argument of the view replaces the address."""
    get = site(memory, ADDRESS)
    assert get("/things/1", X_Forwarded_For="198.51.100.7").status == 200
    assert get("/things/1", X_Forwarded_For="198.51.100.8").status == 429
    assert get("/by/198.51.100.9").status == 429
    assert not memory.peek(ADDRESS, key="127.0.0.1").allowed


def test_a_template_with_an_unknown_field_is_an_error(site: Make, memory: Limiter) -> None:
    """
    The declaration of the view raises. In FastAPI, whose dependencies do not know their path, the first request raises.
    """
    if site is SITES["fastapi"]:
        assert site(memory, ACCOUNT)("/things/1").status == 500
        return
    with pytest.raises(ConfigurationError, match=r"limit 'account': its key '\{account\}' names an argument 'account'"):
        site(memory, ACCOUNT)


def test_a_slot_is_held_while_the_view_runs(site: Make, limiter: Limiter) -> None:
    """The slot is free after the view has returned or raised. Until then, a second request gets a 429."""
    held: list[bool] = []

    def body() -> str:
        held.append(is_slot_held(limiter))
        if len(held) == 2:
            raise ValueError("the view fails")
        return "ok"

    get = site(limiter, SLOTS, body=body)
    assert [get("/things/1").status for _ in range(3)] == [200, 500, 200]
    assert held == [True] * 3
    other = limiter.acquire(SLOTS)
    assert get("/things/1").status == 429
    limiter.release(other)
    assert get("/things/1").status == 200


def test_a_slot_is_held_until_a_streamed_response_is_read(site: Make, limiter: Limiter) -> None:
    """The slot is held while the parts of the response are produced, and is free afterwards."""
    held: list[bool] = []

    def parts() -> Iterator[str]:
        for part in ("one ", "two"):
            held.append(is_slot_held(limiter))
            yield part

    get = site(limiter, SLOTS, body=parts)
    assert get("/things/1").body == "one two"
    assert held == [True, True]
    assert limiter.acquire(SLOTS).allowed


def test_a_response_that_is_dropped_returns_its_slot(memory: Limiter) -> None:
    """A middleware can replace a streamed response without closing it."""

    class Response:
        """Any other response."""

    limits, response = RequestLimits(memory, (SLOTS,), {}, example=""), Response()
    decision = limits.acquire(Job())
    limits.release_with(response, decision)
    assert not memory.peek(SLOTS).allowed
    del response
    gc.collect()
    wait_until(lambda: memory.peek(SLOTS).allowed, description="the slot is returned", timeout=5)


def test_a_response_that_the_garbage_collector_frees_waits_for_no_lock(memory: Limiter, monkeypatch: Any) -> None:
    """The collector runs in any thread. In the thread that renews leases, it would wait for itself and never end."""

    class Response:
        """A response in a reference cycle, which only the garbage collector frees."""

        def __init__(self) -> None:
            self.cycle = self

    lock, limits = threading.Lock(), RequestLimits(memory, (SLOTS,), {}, example="")
    release = memory.release

    def locked(decision: Decision) -> None:
        with lock:
            release(decision)

    monkeypatch.setattr(memory, "release", locked)
    limits.release_with(Response(), limits.acquire(Job()))
    with lock:
        gc.collect()
    wait_until(lambda: memory.peek(SLOTS).allowed, description="the slot is returned", timeout=5)


def test_a_client_that_disconnects_returns_its_slot(limiter: Limiter) -> None:
    """The request of the client is cancelled in an event loop."""

    async def run() -> None:
        entered = asyncio.Event()

        async def body() -> None:
            entered.set()
            await asyncio.Event().wait()

        async def send(message: Any) -> None: ...

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/things/1",
            "headers": [],
            "query_string": b"",
            "client": None,
        }
        serving = asyncio.ensure_future(as_asgi(limiter, SLOTS, ADDRESS, body=body)(scope, asyncio.Event().wait, send))
        await entered.wait()
        assert is_slot_held(limiter)
        serving.cancel()
        await asyncio.wait([serving])

    asyncio.run(run())
    assert limiter.acquire(SLOTS).allowed
    assert not limiter.peek(ADDRESS, key="").allowed, "without an address all requests are counted together"


@pytest.mark.parametrize(("policy", "status"), [("closed", 503), ("open", 200)])
def test_the_limit_decides_while_the_store_is_unavailable(site: Make, policy: Any, status: int) -> None:
    """
    A limit that fails closed denies with a server error, since the client is not at fault. A limit that fails open
    admits.
    """
    with Limiter(f"redis://127.0.0.1:{free_port()}/0") as limiter:
        answer = site(limiter, TokenBucket("away", "1/s", on_store_failure=policy))("/things/1")
    assert answer.status == status
    assert ("retry-after" in answer.headers) == (status == 503)
    assert "ratelimit" not in answer.headers


def test_no_event_loop_is_blocked(memory: Limiter) -> None:
    """While the store is slow, the event loop answers other requests."""
    answered = threading.Event()

    class Slow(Passing):
        def __init__(self) -> None:
            self.inner = MemoryStore()

        def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Answer:
            assert answered.wait(60), "the event loop was blocked"
            return self.inner.decide(claims, requester, now_us, attempt=attempt)

    async def run(view: Callable[[], Any]) -> None:
        serving = asyncio.ensure_future(view())
        await asyncio.sleep(0)
        answered.set()
        await serving

    with Limiter(Slow()) as limiter:
        limits = RequestLimits(limiter, (SEARCH,), {}, example="")
        asyncio.run(run(lambda: limits.acquire_async(Job())))


@pytest.mark.parametrize(
    ("limits", "options", "error"),
    [
        ((), {}, "no limit was given"),
        ((SEARCH, SEARCH), {}, "named twice"),
        (("search",), {}, "takes a limit"),
        ((TokenBucket("queue", "1/s", scope="queue"),), {}, "a request has no queue"),
        ((ACCOUNT,), {"account": "a"}, "account= must be a function"),
    ],
)
def test_a_mistake_raises_at_the_declaration(
    memory: Limiter, limits: tuple[Limit, ...], options: dict[str, Any], error: str
) -> None:
    """The error names what is wrong, and shows the correct form."""
    with pytest.raises(ConfigurationError, match=error):
        RequestLimits(memory, limits, options, example="@throttled(limiter, limit)")


def test_the_limiter_is_the_first_argument(memory: Limiter) -> None:
    """The error names a decorator without arguments, and a limiter other than the process's own."""
    for wrong in (lambda: None, AsyncLimiter(memory), SEARCH):
        with pytest.raises(ConfigurationError, match=r"the Limiter of this process: @throttled\(limiter, limit\)"):
            RequestLimits(wrong, (SEARCH,), {}, example="@throttled(limiter, limit)")  # type: ignore[arg-type]


def test_reserved_argument_names_of_fastapi_are_refused(memory: Limiter) -> None:
    """An argument cannot have a name that FastAPI reserves."""
    throttled = pytest.importorskip("throttlekit_fastapi").Throttled
    with pytest.raises(ConfigurationError, match="request= is the name of an argument"):
        throttled(memory, SEARCH, request=lambda: "a")


def test_the_inner_decision_is_the_one_that_denied(memory: Limiter) -> None:
    """If a view has two decorators, the headers of a denial are those of the limit that denied."""
    flask = pytest.importorskip("flask")
    throttled = pytest.importorskip("throttlekit_flask").throttled
    app = flask.Flask("shop", root_path="/")
    app.get("/")(throttled(memory, SEARCH)(throttled(memory, ADDRESS)(lambda: "ok")))
    client = app.test_client()
    passed, denied = client.get("/"), client.get("/")
    assert passed.headers["RateLimit"].startswith('"search"')
    assert (denied.status_code, denied.headers["RateLimit"][:9]) == (429, '"address"')


def test_all_views_of_an_app_can_share_a_limit(memory: Limiter) -> None:
    """Flask calls a function before each request, and Django calls the middleware first."""
    flask, throttled = pytest.importorskip("flask"), pytest.importorskip("throttlekit_flask").throttled
    app = flask.Flask("shop", root_path="/")
    app.before_request(throttled(memory, SEARCH)(lambda: None))
    app.get("/")(lambda: "ok")
    answers = [app.test_client().get("/") for _ in range(3)]
    assert [(each.status_code, "RateLimit" in each.headers) for each in answers] == [(200, True)] * 2 + [(429, True)]


def test_fastapi_passes_the_decision_to_the_view(memory: Limiter) -> None:
    """The view can use the decision for a response that it creates itself."""
    fastapi, throttled = pytest.importorskip("fastapi"), pytest.importorskip("throttlekit_fastapi").Throttled
    app, held = fastapi.FastAPI(), fastapi.Depends(throttled(memory, SEARCH))

    def view(decision: Any = held) -> Any:
        return fastapi.Response("own", headers=decision.headers())

    app.get("/")(view)
    answer = asyncio.run(_get(app))
    assert (answer.text, answer.headers["RateLimit"][:8]) == ("own", '"search"')


async def _get(app: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        return await client.get("/")


def test_a_denied_request_is_no_deferred_job(redis_url: str) -> None:
    """No plugin is notified of a waiting job. The usage of a denied request is read like that of a job."""
    deferred: list[object] = []

    class Plugin:
        @hookimpl
        def throttlekit_deferred(self, event: object) -> None:
            deferred.append(event)

    request, at_once = Job("1", kwargs={"thing": "1"}), Delivery(comes_back=False)
    with Limiter(patient(redis_url), plugins=[Plugin()]) as limiter, Control(patient(redis_url)) as control:
        limiter.acquire(THING, key="1")
        exhausted = limiter.acquire(THING, job=request, delivery=at_once)
        assert limiter.fleet is not None
        assert limiter.fleet.activity.counts.take()[1] == [], "no job is reported as waiting"
        control.pause(THING.name)
        limiter.fleet.follower.follow()
        paused = limiter.acquire(THING, job=request, delivery=at_once)
    with Limiter(f"redis://127.0.0.1:{free_port()}/0", plugins=[Plugin()]) as limiter:
        away = limiter.acquire(THING, job=request, delivery=at_once)
    assert [each.reason for each in (exhausted, paused, away)] == ["exhausted", "paused", "store unavailable"]
    assert {each.key for each in (exhausted, paused, away)} == {"1"}
    assert deferred == []
