"""A denial is quiet, and no log line of ours repeats a job's arguments."""

from __future__ import annotations

import logging

import pytest

from support.dramatiq.helpers import DenyBefore, Recording, Site
from support.waiting import wait_until
from throttlekit import Limiter, StoreUnavailable, TokenBucket
from throttlekit.stores import Request
from throttlekit_dramatiq import Throttle

EACH = TokenBucket("each", "1000/s", key="{n}")
SECRET = "sesame-4111"


def test_denials_log_one_info_line_and_nothing_louder(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Twenty denials of one limit: one INFO from us, no WARNING or ERROR from anybody, no stack trace."""
    site.broker.add_middleware(Throttle(Limiter(DenyBefore(2))))

    @site.actor(throttle=EACH)
    def job(n: int) -> None:
        site.ran.append(n)

    with caplog.at_level(logging.DEBUG):
        for n in range(10):
            job.send(n)
        with site.working():
            site.until_ran(10)
    loud = [r for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]
    assert [r.getMessage() for r in loud] == []
    ours = [r for r in caplog.records if r.name.startswith("throttlekit")]
    assert len([r for r in ours if r.levelno == logging.INFO]) == 1
    assert len([r for r in ours if r.levelno == logging.DEBUG]) == 20


def test_other_skips_are_still_told(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Only our own skips are no news: a message that AgeLimit skips is warned of as ever."""
    from dramatiq.middleware import Middleware, SkipMessage

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


def test_no_log_line_of_ours_holds_an_argument(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Deferred, failed, unreachable: from DEBUG up, arguments and keys made of them are not logged by us."""

    class Moody(DenyBefore):
        calls = 0

        def _decide(self, request: Request, now_us: int | None) -> object:  # type: ignore[override]
            self.calls += 1
            if self.calls == 2:
                raise StoreUnavailable("down")
            return super()._decide(request, now_us)

    stub.broker.add_middleware(Throttle(Limiter(Moody(1))))

    @stub.actor(throttle=TokenBucket("secret", "1000/s", key="{word}"))
    def job(word: str) -> None:
        stub.ran.append(word)

    with caplog.at_level(logging.DEBUG):
        job.send(SECRET)
        with stub.working():
            stub.until_ran(1)
    ours = [r.getMessage() + str(r.exc_text) for r in caplog.records if r.name.startswith("throttlekit")]
    assert ours
    assert [line for line in ours if SECRET in line] == []


def test_a_key_that_cannot_be_used_is_not_repeated_in_the_log(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A job that fails because of its key is told of by limit and job, not by the value."""
    store = Recording()
    stub.broker.add_middleware(Throttle(Limiter(store)))

    @stub.actor(throttle=TokenBucket("secret", "1000/s", key="{card}"))
    def job(card: object) -> None:
        stub.ran.append(card)

    with caplog.at_level(logging.DEBUG):
        job.send({"number": SECRET})
        with stub.working():
            wait_until(
                lambda: [r for r in caplog.records if r.name == "throttlekit.dramatiq"], description="it is told"
            )
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("throttlekit")]
    assert [line for line in ours if SECRET in line] == []
    assert "secret" in ours[0]


def test_a_store_that_is_down_is_told_once(
    stub: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage is one WARNING, not one a job, and no stack trace."""
    monkeypatch.setattr("throttlekit.stores.breaker._PAUSE_AFTER_FAILURE", 0.02)

    class Down(Recording):
        calls = 0

        def _decide(self, request: Request, now_us: int | None) -> object:  # type: ignore[override]
            self.calls += 1
            if self.calls <= 10:
                raise StoreUnavailable("down")
            return super()._decide(request, now_us)

    stub.broker.add_middleware(Throttle(Limiter(Down())))

    @stub.actor(throttle=EACH)
    def job(n: int) -> None:
        stub.ran.append(n)

    for n in range(5):
        job.send(n)
    with stub.working():
        stub.until_ran(5)
    loud = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [(r.name, r.levelname, r.exc_info) for r in loud] == [("throttlekit", "WARNING", None)]
