"""Denials log little, and no log line of throttlekit has a job's arguments."""

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
    """
    Twenty denials of one limit log one INFO line of throttlekit, no WARNING or ERROR of any logger, and no stack trace.
    """
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


def test_skips_by_other_middleware_are_logged(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Only skips by Throttle are silent. For a message that AgeLimit skips, Dramatiq logs its warning."""
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


def test_no_log_line_of_throttlekit_has_an_argument(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Deferrals, failures and outages log no argument, and no key made of one, at DEBUG or above."""

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


def test_an_invalid_key_is_not_logged(stub: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The log line about a job that fails because of its key has the limit and the job, but not the value."""
    store = Recording()
    stub.broker.add_middleware(Throttle(Limiter(store)))

    @stub.actor(throttle=TokenBucket("secret", "1000/s", key="{card}"))
    def job(card: object) -> None:
        stub.ran.append(card)

    with caplog.at_level(logging.DEBUG):
        job.send({"number": SECRET})
        with stub.working():
            wait_until(
                lambda: [r for r in caplog.records if r.name == "throttlekit.dramatiq"],
                description="the failure is logged",
            )
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("throttlekit")]
    assert [line for line in ours if SECRET in line] == []
    assert "secret" in ours[0]


def test_an_outage_of_the_store_is_logged_once(
    stub: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage logs one WARNING, not one for each job, and no stack trace."""
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
