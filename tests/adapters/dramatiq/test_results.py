"""What Dramatiq does around a job is the same after denials: groups, callbacks, retries, and options of messages."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from dramatiq import Retry
from dramatiq.middleware import CurrentMessage, GroupCallbacks, Middleware
from dramatiq.rate_limits.backends import StubBackend as StubRates
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from support.dramatiq.helpers import DenyBefore, Site
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")
BROKERS_OWN = {"redis_message_id", "eta"}


@pytest.fixture
def store() -> DenyBefore:
    return DenyBefore(2)


@pytest.fixture
def site(site: Site, store: DenyBefore) -> Site:
    site.broker.add_middleware(CurrentMessage())
    site.broker.add_middleware(Results(backend=StubBackend()))
    site.broker.add_middleware(GroupCallbacks(StubRates()))
    site.broker.add_middleware(Throttle(Limiter(store)))
    return site


def test_a_group_completes_once_after_its_last_job(site: Site, store: DenyBefore) -> None:
    """
    The completion callback of a group is called once, after every member has run, and its results are the real ones.
    """

    @site.actor(throttle=EACH, store_results=True)
    def member(n: int) -> int:
        site.ran.append(n)
        return n

    @site.actor
    def completed() -> None:
        site.ran.append("completed")

    group = dramatiq.group([member.message(n) for n in range(3)], broker=site.broker)
    group.add_completion_callback(completed.message())
    with site.working():
        group.run()
        assert sorted(group.get_results(block=True)) == [0, 1, 2]
        site.until_ran(4)
    assert site.ran[-1] == "completed"
    assert sorted(site.ran[:-1]) == [0, 1, 2]
    assert store.denials == 6


def test_on_success_is_called_once_after_the_body(site: Site, store: DenyBefore) -> None:
    """`on_success` is sent once, with the real result. No denial sends it, or `on_failure`."""

    @site.actor
    def success(message: dict[str, Any], result: int) -> None:
        site.ran.append(("success", result, message["options"].keys() & {"throttlekit", "throttle"}))

    @site.actor
    def failure(message: dict[str, Any], error: dict[str, str]) -> None:
        site.ran.append(("failure", error))

    @site.actor(throttle=EACH, store_results=True, on_success="success", on_failure="failure")
    def job(n: int) -> int:
        return n + 1

    job.send(1)
    with site.working():
        site.until_ran(1)
    assert site.ran == [("success", 2, set())]
    assert store.denials == 2


def test_an_explicit_retry_keeps_its_own_delay_and_its_count(site: Site, store: DenyBefore) -> None:
    """`raise Retry(delay=…)` in the body works as without throttling, and the redelivered message is decided again."""
    later = site.recorder(first_error=Retry("come back", delay=30), throttle=EACH, max_retries=1)
    later.send(1)
    with site.working():
        site.until_ran(2)
    assert (store.denials, store.grants) == (4, 2)


def test_a_waiting_message_has_no_option_of_throttlekit(site: Site, store: DenyBefore) -> None:
    """A message has no option of throttlekit when its body runs after denials, and when Retries enqueues it again."""
    enqueued: list[Any] = []

    class Watch(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
            enqueued.append(message.options.keys() - BROKERS_OWN)

    site.broker.add_middleware(Watch())

    @site.actor(throttle=EACH, max_retries=1, min_backoff=1)
    def flaky(n: int) -> None:
        message: Any = CurrentMessage.get_current_message()
        site.ran.append(message.options.keys() - BROKERS_OWN)
        if len(site.ran) == 1:
            raise RuntimeError("once")

    flaky.send_with_options(args=(1,), custom=5)
    with site.working():
        site.until_ran(2)
    of_retry = {"custom", "retries", "traceback", "requeue_timestamp"}
    assert store.denials == 4
    assert site.ran[0] == enqueued[0] == {"custom"}
    assert all(options <= of_retry for options in [*enqueued, *site.ran])
