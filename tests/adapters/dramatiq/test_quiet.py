"""Denials log little, and no log line of throttlekit has a job's arguments."""

from __future__ import annotations

import logging

import pytest

from support.dramatiq.helpers import Recording, Site
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

SECRET = "sesame-4111"


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
