"""A denial is invisible to readers of results, and to everything that follows a job."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import StubBackend as StubRates
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import StubBackend

from support.dramatiq.helpers import DenyBefore, Site, dead_letters
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")


@pytest.fixture
def store() -> DenyBefore:
    return DenyBefore(2)


@pytest.fixture
def throttled(site: Site, store: DenyBefore) -> Site:
    site.broker.add_middleware(Results(backend=StubBackend()))
    site.broker.add_middleware(GroupCallbacks(StubRates()))
    site.broker.add_middleware(Throttle(Limiter(store)))
    return site


def test_a_blocking_reader_gets_the_value_and_never_an_early_none(throttled: Site, store: DenyBefore) -> None:
    """`get_result(block=True)` waits through all denials, and returns what the body returned."""
    backend = throttled.broker.get_results_backend()

    @throttled.actor(throttle=EACH, store_results=True)
    def double(n: int) -> int:
        return 2 * n

    messages = [double.send(n) for n in range(3)]
    with throttled.working():
        assert [m.get_result(backend=backend, block=True) for m in messages] == [0, 2, 4]
    assert store.denials == 6


def test_a_failure_reaches_the_reader_as_that_failure(throttled: Site, store: DenyBefore) -> None:
    """A body that fails after denials is stored with its own exception, not with one of throttlekit."""
    backend = throttled.broker.get_results_backend()

    @throttled.actor(throttle=EACH, store_results=True, max_retries=0)
    def broken(n: int) -> None:
        raise RuntimeError("partner is down")

    message = broken.send(1)
    with throttled.working(), pytest.raises(ResultFailure) as failure:
        message.get_result(backend=backend, block=True)
    assert (failure.value.orig_exc_type, failure.value.orig_exc_msg) == ("RuntimeError", "partner is down")
    assert store.denials == 2


def test_a_group_completes_once_after_its_last_job(throttled: Site, store: DenyBefore) -> None:
    """
    The completion callback of a group is called once, after every member has run, and its results are the real ones.
    """
    site = throttled

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


def test_a_pipeline_passes_on_the_real_value(throttled: Site, store: DenyBefore) -> None:
    """Each stage of a pipeline waits for its turn, and passes its result to the next one, once."""
    site = throttled

    @site.actor(throttle=EACH, store_results=True)
    def add(n: int, more: int) -> int:
        site.ran.append(n)
        return n + more

    @site.actor(throttle=EACH, store_results=True, actor_name="first")
    def first(n: int) -> int:
        site.ran.append(n)
        return n

    pipe = dramatiq.pipeline([first.message(1), add.message(10), add.message(100)], broker=site.broker)
    with site.working():
        pipe.run()
        assert pipe.get_result(block=True) == 111
    assert len(site.ran) == 3
    assert store.denials == 6


def test_on_success_is_called_once_after_the_body(throttled: Site, store: DenyBefore) -> None:
    """`on_success` is sent once, with the real result. No denial sends it, or `on_failure`."""
    site = throttled

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


def test_failure_callbacks_are_called_for_failures_only(throttled: Site, store: DenyBefore) -> None:
    """
    `on_failure` is called once for each failure of the body, and `on_retry_exhausted` once, whatever the denials in
    between.
    """
    site = throttled

    @site.actor
    def failure(message: dict[str, Any], error: dict[str, str]) -> None:
        site.ran.append(error["message"])

    @site.actor
    def exhausted(message: dict[str, Any], retries: dict[str, int]) -> None:
        site.ran.append(retries)

    @site.actor(throttle=EACH, max_retries=1, min_backoff=1, on_failure="failure", on_retry_exhausted="exhausted")
    def job(n: int) -> None:
        raise RuntimeError("no")

    job.send(1)
    with site.working():
        site.until_ran(3)
    assert sorted(map(str, site.ran)) == ["no", "no", "{'retries': 1, 'max_retries': 1}"]
    assert (store.denials, store.grants) == (4, 2)
    assert len(dead_letters(site.broker, site.queue)) == 1
