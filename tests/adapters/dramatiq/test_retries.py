"""A denial is not a failure and uses no retry. Each run of the body is charged."""

from __future__ import annotations

from typing import Any

from dramatiq import Retry
from dramatiq.middleware import CurrentMessage

from support.dramatiq.helpers import DenyBefore, Recording, Site
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")


def throttle(site: Site, store: Recording, **options: Any) -> None:
    site.broker.add_middleware(Throttle(Limiter(store), **options))


def test_a_denial_never_changes_the_retry_counter(site: Site) -> None:
    """`retries` increases by one for each failure of the body, and is absent until the first."""
    store = DenyBefore(2)
    throttle(site, store)
    site.broker.add_middleware(CurrentMessage())

    @site.actor(throttle=EACH, min_backoff=1)
    def flaky(n: int) -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        site.ran.append(message.options.get("retries"))
        if len(site.ran) < 3:
            raise RuntimeError("flaky")

    flaky.send(1)
    with site.working():
        site.until_ran(3)
    assert site.ran == [None, 1, 2]


def test_an_explicit_retry_keeps_its_own_delay_and_its_count(site: Site) -> None:
    """`raise Retry(delay=…)` in the body works as without throttling, and the redelivered message is decided again."""
    store = DenyBefore(1)
    throttle(site, store)

    @site.actor(throttle=EACH, max_retries=1)
    def later(n: int) -> None:
        site.ran.append(n)
        if len(site.ran) == 1:
            raise Retry("come back", delay=30)

    later.send(1)
    with site.working():
        site.until_ran(2)
    assert (store.denials, store.grants) == (2, 2)
