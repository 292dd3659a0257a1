"""The decision that is available to a body, and the fields of a message that a limit reads: its queue and its tier."""

from __future__ import annotations

import asyncio
from typing import Any

from dramatiq.middleware.asyncio import AsyncIO

from support.dramatiq.helpers import Recording, Site
from throttlekit import Limiter, TokenBucket, current
from throttlekit_dramatiq import Throttle


def throttled(site: Site, **options: Any) -> Recording:
    store = Recording()
    site.broker.add_middleware(Throttle(Limiter(store), **options))
    return store


def test_an_async_body_settles_its_own_decision(stub: Site) -> None:
    """An async body runs in the event loop's thread, and finds its own decision there."""
    store = Recording()
    limiter = Limiter(store)
    tokens = TokenBucket("tokens", "100/hour", burst=100, cost=50)
    stub.broker.add_middleware(Throttle(limiter))
    stub.broker.add_middleware(AsyncIO())

    @stub.actor(throttle=tokens)
    async def job() -> None:
        current().settle(1)
        current().settle(3)
        stub.ran.append((await asyncio.to_thread(limiter.peek, tokens, cost=1)).remaining)

    job.send()
    with stub.working():
        stub.until_ran(1)
    assert stub.ran == [97]


def test_a_decision_ends_with_its_job(stub: Site) -> None:
    """A job without limits that the same thread runs next does not find the previous decision."""
    throttled(stub)

    @stub.actor(throttle=TokenBucket("any", "100/s"))
    def limited() -> None:
        stub.ran.append(current().decision)

    @stub.actor
    def free() -> None:
        stub.ran.append(current().decision)

    with stub.working(threads=1):
        limited.send()
        stub.until_ran(1)
        free.send()
        stub.until_ran(2)
    assert stub.ran[0].allowed
    assert stub.ran[1] is None
