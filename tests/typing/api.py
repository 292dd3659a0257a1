"""The public API as users write it. Never run: type checkers read it, in strict mode."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

import httpx
import requests

import throttlekit
from throttlekit import (
    Adapt,
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Control,
    CostExceedsLimit,
    Decision,
    Delivery,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Limiter,
    Running,
    SlidingLog,
    SlidingWindow,
    StoreUnavailable,
    ThrottleError,
    TokenBucket,
    WaitedTooLong,
    current,
    hookimpl,
)
from throttlekit.hookspecs import Decided, Deferred
from throttlekit.metrics.opentelemetry import OpenTelemetryMetrics
from throttlekit.metrics.prometheus import PrometheusMetrics
from throttlekit.stores import Correction, MemoryStore, Request, Store
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import FakeClock, Seen, StoreConformance, allowing, denying, in_memory
from throttlekit_django import get_limiter
from throttlekit_django import throttled as in_django
from throttlekit_fastapi import Throttled
from throttlekit_flask import throttled as in_flask
from throttlekit_httpx import AsyncLimitedTransport, LimitedTransport
from throttlekit_requests import LimitedAdapter


def tokens_of(job: Job) -> int:
    return int(job.kwargs["max_tokens"])


partner = TokenBucket("partner-api", "100/minute", burst=20)
account = TokenBucket("partner-api:account", "10/s", key="{account_id}")
tokens = TokenBucket("llm-tokens", "90000/minute", burst=9000, cost=tokens_of)
exact = TokenBucket("exact", (5, timedelta(seconds=10)), key=lambda job: job.queue, cost=lambda job: len(job.args))
seconds = TokenBucket("seconds", (5, 0.5))
even = LeakyBucket("even", "5/s", queue=100, key="{account_id}", scope="queue")
endless = LeakyBucket("endless", "5/s")
daily = FixedWindow("daily", "1000/day", tz="Europe/Berlin", cost=tokens_of)
sliding = SlidingWindow("sliding", "100/minute", scope="job", cost=2)
exactly = SlidingLog("exactly", "100/minute", scope="process")
tiered = TokenBucket(
    "api", {"free": "10/m", "pro": "100/m"}, burst={"free": 1, "pro": 20}, tier="{plan}", default_tier="free"
)
monthly = FixedWindow("monthly", "50000/month", tz="Europe/Berlin", starts=15)
adapting = TokenBucket("adapting", "100/s", adapt=Adapt(floor="10/s", span=timedelta(minutes=1)))
varying = TokenBucket("varying", lambda job: "10/s", burst=timedelta(seconds=12), key="{account_id}")
amounts = Concurrency("amounts", lambda job: 3)
gpu = Concurrency("gpu", 2, held_by="{workflow}", lease=600)
named = TokenBucket("named", "10/s", key="{account_id}", show_key=True)
at_a_rate: Limit = varying.at("20/s")
queued = LeakyBucket(
    "queued", {"free": "10/m", "pro": (5, 0.5)}, queue={"free": 1, "pro": 20}, tier=lambda job: job.queue
)
windows: list[Limit] = [
    FixedWindow("by-plan", {"free": "10/m", "pro": "100/m"}, tier="{plan}"),
    SlidingWindow("by-plan-2", {"free": "10/m"}, tier="{plan}", key="{account_id}"),
    SlidingLog("by-plan-3", {"free": "10/m"}, tier="{plan}"),
]
limits: Sequence[Limit] = [partner, account, tokens, exact, seconds, even, endless, daily, sliding, exactly, tiered]

leased = TokenBucket("leased", "30000/s", burst=3000, prefetch=50, prefetch_for=timedelta(milliseconds=250))
leased_pro = TokenBucket(
    "leased-pro",
    {"free": "1/s", "pro": "9000/s"},
    tier="{plan}",
    prefetch={"free": None, "pro": 50},
    prefetch_for=0.25,
)
opened = TokenBucket("opened", "10/s", on_store_failure="open")
shared = SlidingLog("shared", "10/s", on_store_failure="local", processes=4)
own_part: Limit | None = shared.local_part
by_client: Limiter = Limiter(client=object())

name: str = partner.name
burst: int = partner.burst
key_of: str = account.key_of(Job(kwargs={"account_id": 1}))
cost_of: int = tokens.cost_of(None)
loaded: Limit = partner.for_job(Job())
capacity: int = loaded.capacity
queue: int | None = even.queue
zone: str | None = daily.tz
tiers: Mapping[str, Limit] | None = tiered.tiers
of_tier: Limit = tiered.for_job(Job(kwargs={"plan": "pro"}))


class Plugin:
    @hookimpl
    def throttlekit_make_store(self, url: str) -> Store | None:
        return MemoryStore() if url == "mine://" else None

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        job: Job = event.job
        decision: Decision = event.decision
        position: int | None = decision.position
        deferrals: int = decision.deferrals
        waited: float = decision.waited
        print(job, position, deferrals, waited)


by_default = Limiter()
by_url = Limiter("redis://localhost:6379/0", plugins=[Plugin()])
by_group = Limiter("redis://a:6379/0", stores={"llm-*": "redis://b:6379/0", "one": MemoryStore()})
by_store = Limiter(RedisStore("redis://localhost:6379/0", timeout=0.5))
by_cluster = Limiter(RedisClusterStore("redis+cluster://localhost:7000", timeout=0.5))

clock = FakeClock(start_us=0)
clock.advance(0.5)
now_us: int = clock()
by_clock = Limiter(MemoryStore(clock_us=clock))
tell: Callable[[], int] = clock


with_metrics = Limiter(plugins=[PrometheusMetrics(buckets=(0.5, 5), max_limits=10), OpenTelemetryMetrics()])
seen: Seen
with allowing(with_metrics) as seen:
    event: Decided = seen.assert_allowed("call", limit="partner-api", within=1)
    took: float | None = event.took
with denying(delay=30) as seen:
    mine: Limiter = seen.limiter
    seen.assert_deferred()
with in_memory(clock=clock) as seen:
    seen.assert_not_asked()
by_loop = AsyncLimiter("redis://localhost:6379/0", plugins=[Plugin()])


async def ask_in_a_loop(job: Job) -> None:
    async with AsyncLimiter(MemoryStore()) as limiter:
        decision: Decision = await limiter.acquire(partner, account, job=job, cost=2, key="a")
        looked: Decision = await limiter.peek(partner, job=job)
        up_to: Decision = await limiter.acquire_many(account, 50, key="a")
        settled: Decision = await limiter.settle(decision, actual=3, limit=partner)
        await limiter.release(settled)
        await limiter.pause(partner, timedelta(seconds=30))
        await limiter.resume(partner)
        await limiter.reset(partner, account, key=1)
        await limiter.clear_waitlist(account, key=1)
        limiter.declare(partner)
        async with limiter.hold(partner, timeout=5) as running:
            held: Decision | None = running.decision
            running.done(gpu)
        await limiter.done(gpu, "w1")
        waited: Decision = await limiter.wait(partner, timeout=5)
        in_process: bool = limiter.in_memory

        @limiter.limited(partner)
        async def body(number: int) -> str:
            return str(number)

        text: str = await body(1)
        print(looked, up_to, held, waited, in_process, text)
    await by_loop.close()


class TestMyStore(StoreConformance):
    def make_store(self) -> Store:
        return MemoryStore()


def ask(limiter: Limiter, job: Job) -> None:
    delivery = Delivery(longest=600, lateness=0.05, max_wait=3600, max_deferrals=10)
    decision: Decision = limiter.acquire(partner, account, job=job, cost=2, delivery=delivery)
    limiter.acquire(account, key="42")
    limiter.acquire(account, key=42)
    up_to: Decision = limiter.acquire_many(account, 50, job=job)
    limiter.settle(up_to, 40)
    if decision:
        return
    allowed: bool = decision.allowed
    waits: tuple[float, float, float] = (decision.retry_after, decision.delay, decision.reset_after)
    limit: Limit = decision.limit
    key: str = decision.key
    counts: tuple[int, int] = (decision.cost, decision.remaining)
    reason: str = decision.reason
    headers: dict[str, str] = decision.headers()
    again = Job(id="1", name="call", queue="default", args=(1,), kwargs={"a": 2}, function=tokens_of)
    looked: Decision = limiter.peek(partner, account, job=again)
    mixed: Decision = limiter.acquire(even, daily, sliding, exactly, tiered, job=again)
    settled: Decision = limiter.settle(mixed, actual=12)
    limiter.settle(settled, actual=7, limit=tiered)
    final: bool = mixed.final
    charged: list[tuple[Limit, str, int, int, bool]] = [
        (each.limit, each.bucket, each.cost, each.at_us, each.measured) for each in mixed.charged
    ]
    print(charged)
    limiter.reset(partner, account, key=42)
    limiter.clear_waitlist(account, key=42)
    limiter.declare(partner, account)
    limiter.close()
    print(allowed, waits, limit, key, counts, reason, headers, looked, final)


def wait(job: Job) -> Decision:
    with Limiter("redis://localhost:6379/0") as limiter:
        mine: Limiter = limiter
        mine.wait(partner, account, key=42, cost=2)
        mine.apply_response(object(), account, key=42, tokens=tokens)
        mine.report_overload(adapting)
        mine.pause(partner, 30, refused=True)
        return limiter.wait(partner, job=job, timeout=timedelta(minutes=1))


def clients(limiter: Limiter, waiting: AsyncLimiter) -> None:
    with httpx.Client(transport=LimitedTransport(limiter, partner, key="a", tokens=tokens)) as client:
        client.get("https://partner.example")
    later = httpx.AsyncClient(transport=AsyncLimitedTransport(waiting, partner, cost=2))
    session = requests.Session()
    session.mount("https://", LimitedAdapter(limiter, partner, account, key=lambda request: "a", timeout=5))
    print(later)


def operate() -> None:
    with Control("redis://localhost:6379/0", by="ann") as control:
        control.scale("llm-*", 0.5, duration=timedelta(minutes=10))
        control.scale(partner, None)


def body() -> None:
    current().settle(12)
    current().settle(7, limit=tokens)
    current().apply_response(object())
    current().apply_response(object(), partner, tokens=tokens, input_tokens=None, output_tokens=tokens)
    current().report_overload()
    running: Running = current()
    decision: Decision | None = running.decision
    running.check()
    print(decision, running.lost)


def fail(limiter: Limiter) -> None:
    try:
        limiter.peek(partner, cost=10**6)
    except CostExceedsLimit as error:
        numbers: tuple[int, str, int, str] = (error.cost, error.limit, error.most, error.remedy)
        print(numbers)
    except (ConfigurationError, StoreUnavailable, WaitedTooLong) as error:
        base: ThrottleError = error
        print(base)


def store_of_my_own(request: Request) -> None:
    for claim in request.claims:
        requester: tuple[str, str, int] = (request.requester.job, request.requester.owner, request.requester.free)
        print(claim.bucket, claim.algorithm.size, claim.max_queue, requester, request.attempt)


def corrections_of_my_own(corrections: Sequence[Correction]) -> None:
    for each in corrections:
        told: tuple[str, int, int] = (each.bucket, each.granted_us, each.by)
        print(told, each.algorithm.code)


def views(limiter: Limiter) -> None:
    of_settings: Limiter = get_limiter()

    @in_django(of_settings, account, account_id=lambda request: request.user.pk)
    def of_django(request: object, page: int = 1) -> bytes:
        return b""

    @in_flask(limiter, partner, account)
    async def of_flask(account_id: int) -> str:
        return ""

    dependency: Throttled = Throttled(limiter, partner, account_id=lambda: 7)
    answers: tuple[bytes, Coroutine[Any, Any, str]] = (of_django(object(), page=2), of_flask(7))
    print(answers, dependency)


every_name: list[str] = throttlekit.__all__
