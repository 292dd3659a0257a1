"""
A job that can never be granted, or that has waited too long, ends explicitly and once, and every observer is notified.
"""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from dramatiq.middleware import CurrentMessage, Middleware, SkipMessage
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import StubBackend

from support.dramatiq.helpers import DenyBefore, Recording, Site, dead_letters
from support.waiting import wait_until
from throttlekit import ConfigurationError, Job, Limiter, StoreUnavailable, TokenBucket
from throttlekit.stores import Request
from throttlekit_dramatiq import Throttle, WaitedTooLong

NEVER = 10**6


def explode(job: Job) -> Any:
    raise LookupError("no such tenant")


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        (TokenBucket("faulty", "10/s", key=explode), "ConfigurationError"),
        (TokenBucket("faulty", "10/s", burst=5, cost=lambda job: 6), "CostExceedsLimit"),
    ],
    ids=["key", "cost"],
)
def test_a_limit_that_cannot_be_computed_fails_the_job_once(site: Site, limit: TokenBucket, error: str) -> None:
    """
    The body does not run, no retry is used, and nothing is charged. The job is dead-lettered once, `on_failure` is
    called once, and the reader of the result gets the error.
    """
    store, backend = Recording(), StubBackend()
    site.broker.add_middleware(Results(backend=backend))
    site.throttle(store)

    @site.actor
    def failure(message: dict[str, Any], error: dict[str, str]) -> None:
        site.ran.append(("on_failure", error["type"], json.dumps(message["options"]) and message["message_id"]))

    @site.actor
    def success(message: dict[str, Any], result: Any) -> None:
        site.ran.append("on_success")

    @site.actor(
        throttle=limit, store_results=True, max_retries=3, min_backoff=1, on_failure="failure", on_success="success"
    )
    def job() -> None:
        site.ran.append("body")

    message = job.send()
    with site.working():
        site.until_ran(1)
        with pytest.raises(ResultFailure) as failed:
            message.get_result(backend=backend, block=True)
    assert [code.message_id for code in dead_letters(site.broker, site.queue)] == [message.message_id]
    assert failed.value.orig_exc_type == error
    assert "faulty" in failed.value.orig_exc_msg
    assert site.ran == [("on_failure", error, message.message_id)]
    assert store.asked == []


def test_a_message_can_have_a_max_wait_of_its_own(stub: Site) -> None:
    """
    throttle_max_wait of a message overrides the middleware's. A value that is not a duration is refused in the send.
    """
    stub.throttle(DenyBefore(NEVER, delay=0.01))
    job = stub.recorder(throttle=TokenBucket("busy", "10/s"))
    with pytest.raises(ConfigurationError, match="throttle_max_wait must be a number of seconds"):
        job.send_with_options(throttle_max_wait="soon")
    job.send_with_options(throttle_max_wait=timedelta(seconds=0.1))
    with stub.working():
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
    assert stub.ran == []
    assert isinstance(dead_letters(stub.broker, stub.queue)[0]._exception, WaitedTooLong)


def test_waited_too_long_is_not_retried_by_a_retry_when(stub: Site) -> None:
    """An actor that retries on every error does not get the job again either, since another request cannot help."""
    store = stub.throttle(DenyBefore(NEVER, delay=0.01), max_deferrals=1)
    job = stub.recorder(throttle=TokenBucket("busy", "10/s"), retry_when=lambda retries, error: True, min_backoff=1)
    job.send()
    with stub.working():
        wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the message is dead-lettered")
    assert (stub.ran, store.denials) == ([], 2)
    assert isinstance(dead_letters(stub.broker, stub.queue)[0]._exception, WaitedTooLong)


def test_a_retry_after_an_uncharged_run_waits_again(stub: Site) -> None:
    """The wait of a job that ran uncharged does not count for its retry, which can wait for the same time again."""
    store = DenyBefore(NEVER, delay=0.01)
    stub.broker.add_middleware(CurrentMessage())
    stub.throttle(store, max_deferrals=2, on_waited_too_long="run")

    @stub.actor(throttle=TokenBucket("busy", "10/s"), max_retries=1, min_backoff=1)
    def job() -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        stub.ran.append("throttlekit" in message.options)
        if len(stub.ran) == 1:
            raise RuntimeError("once")

    job.send()
    with stub.working():
        stub.until_ran(2)
    assert stub.ran == [False, False]
    assert store.denials == 6


def test_failures_are_reported_as_by_dramatiq(site: Site) -> None:
    """
    `on_failure` is called once for each failure of the body, and `on_retry_exhausted` once, whatever the denials in
    between. The reader of the result gets the body's own exception.
    """
    store, backend = DenyBefore(2), StubBackend()
    site.broker.add_middleware(Results(backend=backend))
    site.throttle(store)

    @site.actor
    def failure(message: dict[str, Any], error: dict[str, str]) -> None:
        site.ran.append(error["message"])

    @site.actor
    def exhausted(message: dict[str, Any], retries: dict[str, int]) -> None:
        site.ran.append(retries)

    @site.actor(
        throttle=TokenBucket("each", "1000/s", key="{n}"),
        store_results=True,
        max_retries=1,
        min_backoff=1,
        on_failure="failure",
        on_retry_exhausted="exhausted",
    )
    def job(n: int) -> None:
        raise RuntimeError("no")

    message = job.send(1)
    with site.working():
        site.until_ran(3)
        with pytest.raises(ResultFailure) as failed:
            message.get_result(backend=backend, block=True)
    assert (failed.value.orig_exc_type, failed.value.orig_exc_msg) == ("RuntimeError", "no")
    assert sorted(map(str, site.ran)) == ["no", "no", "{'retries': 1, 'max_retries': 1}"]
    assert (store.denials, store.grants) == (4, 2)
    assert [each.message_id for each in dead_letters(site.broker, site.queue)] == [message.message_id]


SECRET = "sesame-4111"


def test_skips_by_other_middleware_are_logged(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Only skips by Throttle are silent. For a message that AgeLimit skips, Dramatiq logs its warning."""

    class Skips(Middleware):
        def before_process_message(self, broker: object, message: object) -> None:
            stub.ran.append(1)
            raise SkipMessage("not today")

    stub.broker.add_middleware(Throttle(Limiter()))
    stub.broker.add_middleware(Skips())
    stub.actor(lambda: None, actor_name="job").send()
    with stub.working():
        stub.until_ran(1)
    assert [r.levelname for r in caplog.records if "was skipped" in r.getMessage()] == ["WARNING"]


def test_no_log_line_of_throttlekit_has_an_argument(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Deferrals, invalid keys and outages log no argument, and no key made of one, at DEBUG or above."""

    class Moody(DenyBefore):
        calls = 0

        def _decide(self, request: Request, now_us: int | None) -> object:  # type: ignore[override]
            self.calls += 1
            if self.calls == 2:
                raise StoreUnavailable("down")
            return super()._decide(request, now_us)

    stub.broker.add_middleware(Throttle(Limiter(Moody(1))))

    @stub.actor(throttle=TokenBucket("secret", "1000/s", key="{word}"))
    def job(word: object) -> None:
        stub.ran.append(word)

    with caplog.at_level(logging.DEBUG):
        job.send(SECRET)
        job.send({"number": SECRET})
        with stub.working():
            stub.until_ran(1)
            wait_until(lambda: dead_letters(stub.broker, stub.queue), description="the invalid key is logged")
    ours = [r.getMessage() + str(r.exc_text) for r in caplog.records if r.name.startswith("throttlekit")]
    assert [line for line in ours if SECRET in line] == []
    assert any("secret" in line for line in ours), "the lines have the name of the limit"
