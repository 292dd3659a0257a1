"""Hooks: asked in order, never able to hurt a job; and the plugins that come along."""

from __future__ import annotations

import logging

import pytest

from throttlekit import ConfigurationError, Job, Limiter, TokenBucket, hookimpl
from throttlekit._plugins import DeferralLog
from throttlekit.hookspecs import Deferred
from throttlekit.stores import MemoryStore, Store
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("partner", "10/s", burst=1)


class Listener:
    def __init__(self) -> None:
        self.events: list[Deferred] = []

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        self.events.append(event)


def test_plugin_may_make_the_store() -> None:
    """A URL of a plugin's own scheme gives the plugin's store."""
    store = MemoryStore()

    class Mine:
        @hookimpl
        def throttlekit_make_store(self, url: str) -> Store | None:
            return store if url.startswith("mine://") else None

    Limiter("mine://", plugins=[Mine()]).acquire(LIMIT)
    assert len(store) == 1
    Limiter("memory://", plugins=[Mine()]).acquire(LIMIT)
    assert len(store) == 1


@pytest.mark.parametrize("url", ["mystery://user:hunter2@host/0", "mystery:hunter2", ""])
def test_unknown_scheme_is_a_configuration_error(url: str) -> None:
    """A URL that no plugin knows fails at once; only its scheme is told."""
    with pytest.raises(ConfigurationError, match="no store is known") as caught:
        Limiter(url)
    assert "hunter2" not in str(caught.value)


def test_hook_that_does_not_exist_is_a_configuration_error() -> None:
    """A misspelt hook fails when the limiter is made."""

    class Misspelt:
        @hookimpl
        def throttlekit_defered(self, event: Deferred) -> None: ...

    with pytest.raises(ConfigurationError, match="throttlekit_defered"):
        Limiter(plugins=[Misspelt()])


def test_hook_with_other_arguments_is_a_configuration_error() -> None:
    """A hook that wants what there is not fails when the limiter is made."""

    class Greedy:
        @hookimpl
        def throttlekit_deferred(self, event: Deferred, worker: object) -> None: ...

    with pytest.raises(ConfigurationError, match="throttlekit_deferred"):
        Limiter(plugins=[Greedy()])


def test_deferral_is_told_with_what_a_listener_needs() -> None:
    """Each denial of a job is told once, with the job, the decision, the count and the time waited."""
    listener, clock = Listener(), FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock), plugins=[listener])
    limiter.acquire(LIMIT)
    first = limiter.acquire(LIMIT, job=Job(id="a"))
    limiter.acquire(LIMIT)
    clock.advance(0.05)
    second = limiter.acquire(LIMIT, job=Job(id="a", waited=first.waited))
    assert [(e.job.id, e.decision, e.deferrals, e.waited) for e in listener.events] == [
        ("a", first, 1, 0.0),
        ("a", second, 2, 0.05),
    ]


def test_grants_and_guests_are_no_deferrals() -> None:
    """A job that runs, and a caller without a job, are not told."""
    listener = Listener()
    limiter = Limiter(plugins=[listener])
    limiter.acquire(LIMIT, job=Job())
    limiter.acquire(LIMIT)
    limiter.peek(LIMIT, job=Job())
    assert listener.events == []


def test_plugin_that_fails_does_not_reach_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a listener is logged, and the job is deferred all the same."""

    class Broken:
        @hookimpl
        def throttlekit_deferred(self, event: Deferred) -> None:
            raise RuntimeError("a listener's own trouble")

    limiter = Limiter(plugins=[Broken()])
    limiter.acquire(LIMIT)
    decision = limiter.acquire(LIMIT, job=Job())
    assert decision.reason == "exhausted"
    assert decision.waited
    assert "A plugin failed in throttlekit_deferred" in caplog.text


def test_deferrals_are_told_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """Each deferral is told at DEBUG; at INFO only the first of a limit, and a summary every 30 seconds."""
    now = [0.0]
    log = DeferralLog(every=30, clock=lambda: now[0])
    limiter = Limiter()
    limiter.acquire(LIMIT)
    event = Deferred(Job(id="a", name="send"), limiter.acquire(LIMIT, job=Job()), 1, 0.0)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "throttlekit"):
        for now[0] in (0.0, 1.0, 29.9, 30.0, 31.0):
            log.throttlekit_deferred(event)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert [message.split(":")[1].split(" ")[1] for message in told] == ["1", "3"]
    assert sum(record.levelno == logging.DEBUG for record in caplog.records) == 5


def test_each_limit_has_its_own_summary(caplog: pytest.LogCaptureFixture) -> None:
    """A busy limit does not hide the first deferral of another."""
    log, limiter = DeferralLog(clock=lambda: 0.0), Limiter()
    with caplog.at_level(logging.INFO, "throttlekit"):
        for name in ("a", "b", "a"):
            limit = TokenBucket(name, "10/s", burst=1)
            limiter.acquire(limit)
            log.throttlekit_deferred(Deferred(Job(), limiter.peek(limit), 1, 0.0))
    assert sum("holding jobs back" in record.getMessage() for record in caplog.records) == 2
