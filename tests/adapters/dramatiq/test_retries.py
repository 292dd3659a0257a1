"""A denial is not a failure: it uses no retry; each run of the body is charged."""

from __future__ import annotations

from typing import Any

import pytest
from dramatiq import Retry
from dramatiq.middleware import CurrentMessage

from support.dramatiq.helpers import DenyBefore, Recording, Site, dead_letters
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")


def throttle(site: Site, store: Recording, **options: Any) -> None:
    site.broker.add_middleware(Throttle(Limiter(store), **options))


def test_a_denial_never_touches_the_retry_counter(site: Site) -> None:
    """`retries` grows by one for each failure of the body, and is absent until the first."""
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


def test_a_job_without_retries_survives_any_number_of_denials(site: Site) -> None:
    """max_retries=0 means no second run of the body, not no wait."""
    store = DenyBefore(8, delay=0.005)
    throttle(site, store)

    @site.actor(throttle=EACH, max_retries=0)
    def once(n: int) -> None:
        site.ran.append(n)

    once.send(1)
    with site.working():
        site.until_ran(1)
    assert store.denials == 8
    assert dead_letters(site.broker, site.queue) == []


def test_denials_charge_nothing(stub: Site) -> None:
    """After denied jobs have been turned away the bucket holds exactly what the granted ones left."""
    store = Recording()
    throttle(stub, store, max_deferrals=0, when_over="drop")
    hourly = TokenBucket("hourly", "10/hour", burst=3)

    @stub.actor(throttle=hourly)
    def job() -> None:
        stub.ran.append(1)

    for _ in range(8):
        job.send()
    with stub.working():
        stub.until_ran(3)
    assert (store.grants, store.denials) == (3, 5)
    assert {answer.uses for answer in store.answers if not answer.allowed} == {store.answers[2].uses}


def test_an_explicit_retry_keeps_its_own_delay_and_its_count(site: Site) -> None:
    """`raise Retry(delay=…)` in the body works as without throttling, and its return is decided anew."""
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


@pytest.mark.parametrize("denials", [1, 5])
def test_a_job_runs_once_for_each_grant(site: Site, denials: int) -> None:
    """Many jobs, each denied several times, each run exactly once."""
    store = DenyBefore(denials, delay=0.01)
    throttle(site, store)

    @site.actor(throttle=EACH)
    def job(n: int) -> None:
        site.ran.append(n)

    for n in range(12):
        job.send(n)
    with site.working(threads=4):
        site.until_ran(12)
    assert sorted(site.ran) == list(range(12))
    assert (store.denials, store.grants) == (12 * denials, 12)
