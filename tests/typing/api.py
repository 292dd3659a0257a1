"""The public API as users write it. Never run: type checkers read it, in strict mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import throttlekit
from throttlekit import (
    ConfigurationError,
    CostExceedsLimit,
    Decision,
    Delivery,
    Job,
    Limit,
    Limiter,
    StoreUnavailable,
    ThrottleError,
    TokenBucket,
    hookimpl,
)
from throttlekit.hookspecs import Deferred
from throttlekit.inline import InlineWaits
from throttlekit.stores import MemoryStore, Request, Store
from throttlekit.stores.redis import RedisStore
from throttlekit.testing import FakeClock, StoreConformance


def tokens_of(job: Job) -> int:
    return int(job.kwargs["max_tokens"])


partner = TokenBucket("partner-api", "100/minute", burst=20)
account = TokenBucket("partner-api:account", "10/s", key="{account_id}")
tokens = TokenBucket("llm-tokens", "90000/minute", burst=9000, cost=tokens_of)
exact = TokenBucket("exact", (5, timedelta(seconds=10)), key=lambda job: job.queue, cost=lambda job: len(job.args))
seconds = TokenBucket("seconds", (5, 0.5))
limits: Sequence[Limit] = [partner, account, tokens, exact, seconds]

name: str = partner.name
burst: int = partner.burst
key_of: str = account.key_of(Job(kwargs={"account_id": 1}))
cost_of: int = tokens.cost_of(None)
by_value: dict[str, Any] = partner.dump(Job())
loaded: TokenBucket = TokenBucket.load(by_value)


class Plugin:
    @hookimpl
    def throttlekit_make_store(self, url: str) -> Store | None:
        return MemoryStore() if url == "mine://" else None

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        job: Job = event.job
        decision: Decision = event.decision
        deferrals: int = event.deferrals
        waited: float = event.waited
        print(job, decision, deferrals, waited)


in_memory = Limiter()
by_url = Limiter("redis://localhost:6379/0", plugins=[Plugin()])
by_store = Limiter(RedisStore("redis://localhost:6379/0", timeout=0.5))

clock = FakeClock(start_us=0)
clock.advance(0.5)
now_us: int = clock()
by_clock = Limiter(MemoryStore(clock_us=clock))
tell: Callable[[], int] = clock


class TestMyStore(StoreConformance):
    def make_store(self) -> Store:
        return MemoryStore()


def ask(limiter: Limiter, job: Job) -> None:
    delivery = Delivery(
        longest=600, lateness=0.05, early=0.04, max_wait=3600, max_deferrals=10, inline=InlineWaits(0.05, at_once=2)
    )
    decision: Decision = limiter.acquire(partner, account, job=job, cost=2, delivery=delivery)
    limiter.acquire(account, key="42")
    limiter.acquire(account, key=42)
    if decision:
        return
    allowed: bool = decision.allowed
    waits: tuple[float, float, float] = (decision.retry_after, decision.delay, decision.reset_after)
    limit: Limit = decision.limit
    key: str = decision.key
    counts: tuple[int, int] = (decision.cost, decision.remaining)
    reason: str = decision.reason
    headers: dict[str, str] = decision.headers()
    carried: Mapping[str, Any] | None = decision.waited
    again = Job(id="1", name="call", queue="default", args=(1,), kwargs={"a": 2}, function=tokens_of, waited=carried)
    looked: Decision = limiter.peek(partner, account, job=again)
    limiter.reset(partner, account, key=42)
    limiter.declare(partner, account)
    limiter.close()
    print(allowed, waits, limit, key, counts, reason, headers, looked)


def fail(limiter: Limiter) -> None:
    try:
        limiter.peek(partner, cost=10**6)
    except CostExceedsLimit as error:
        numbers: tuple[int, str, int] = (error.cost, error.limit, error.most)
        print(numbers)
    except (ConfigurationError, StoreUnavailable) as error:
        base: ThrottleError = error
        print(base)


def store_of_my_own(request: Request) -> None:
    for claim in request.claims:
        stored: tuple[str, str] = (claim.bucket, claim.line)
        print(stored, claim.ask.charge.charge_us, request.caller.value, request.place)


every_name: list[str] = throttlekit.__all__
