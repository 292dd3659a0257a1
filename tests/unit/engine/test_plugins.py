"""Hooks: called in order, and never able to harm a job; and the plugins that are included."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pluggy
import pytest

from support.hearing import Deferrals
from throttlekit import ConfigurationError, Job, Limiter, TokenBucket, hookimpl
from throttlekit._core.storage_keys import digest_of_key
from throttlekit._engine.plugins import EventLog
from throttlekit.adapter import once_in_fleet
from throttlekit.hookspecs import Deferred
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock

LIMIT = TokenBucket("partner", "10/s", burst=1)


class StoreMaker:
    """A plugin that makes *made* for URLs of the scheme "mine"."""

    def __init__(self, made: Any) -> None:
        self.made = made

    @hookimpl
    def throttlekit_make_store(self, url: str) -> Any:
        return self.made if url.startswith("mine://") else None


def test_plugin_may_make_the_store() -> None:
    """A URL of a plugin's own scheme gives the plugin's store."""
    store = MemoryStore()
    Limiter("mine://", plugins=[StoreMaker(store)]).acquire(LIMIT)
    assert len(store) == 1
    Limiter("memory://", plugins=[StoreMaker(store)]).acquire(LIMIT)
    assert len(store) == 1


@pytest.mark.parametrize(
    "url",
    [
        "mystery://user:hunter2@host/0",
        "mystery:hunter2",
        "hunter2@host",
        "hunter2:1234",
        "hunter2",
        "user:hunter2://host",
        "memory",
        "memory:",
        "redis",
        "",
    ],
)
def test_unknown_scheme_is_a_configuration_error(url: str) -> None:
    """A URL that no plugin knows fails at once; the message contains only what is certainly its scheme."""
    with pytest.raises(ConfigurationError, match="no store is known") as caught:
        Limiter(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("address", ["localhost:6379", "localhost", "127.0.0.1:6380/1", "limits.internal:6379"])
def test_address_without_a_scheme_suggests_redis(address: str) -> None:
    """A server is named by a URL. A possible password is not repeated."""
    with pytest.raises(ConfigurationError, match=f"did you mean 'redis://{address}'"):
        Limiter(address)


@pytest.mark.parametrize("made", [5, "memory://", MemoryStore, object()])
def test_plugin_that_makes_no_store_is_a_configuration_error(made: Any) -> None:
    """The return value of a plugin is checked when the limiter is created, not at the first request."""
    with pytest.raises(ConfigurationError, match="is not a store: throttlekit_make_store must return"):
        Limiter("mine://", plugins=[StoreMaker(made)])


class Undecorated:
    def throttlekit_deferred(self, event: Deferred) -> None: ...


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        (Deferrals(), "plugins= takes a list, not Deferrals"),
        ("my_plugin", "plugins= takes a list, not str"),
        (None, "plugins= takes a list, not NoneType"),
        ([None], "an object of type NoneType is not a plugin"),
        (["x"], "an object of type str is not a plugin"),
        ([Undecorated()], "no method that is marked with @throttlekit.hookimpl"),
        ([Deferrals], "Deferrals is a class, not a plugin"),
        ([Deferrals()] * 2, "given twice"),
    ],
)
def test_invalid_plugin_is_a_configuration_error(plugins: Any, message: str) -> None:
    """An invalid plugin fails when the limiter is created, and the message says why."""
    with pytest.raises(ConfigurationError, match=message):
        Limiter(plugins=plugins)


def test_installed_plugin_that_cannot_be_loaded_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed plugin that fails on import raises when the limiter is created, like a plugin that is passed."""
    load = Mock(side_effect=ImportError("no module named 'lost'"))
    monkeypatch.setattr(pluggy.PluginManager, "load_setuptools_entrypoints", load)
    with pytest.raises(ConfigurationError, match="a plugin cannot be loaded: ImportError"):
        Limiter()


def test_hook_that_does_not_exist_is_a_configuration_error() -> None:
    """A misspelt hook fails when the limiter is created."""

    class Misspelt:
        @hookimpl
        def throttlekit_defered(self, event: Deferred) -> None: ...

    with pytest.raises(ConfigurationError, match="throttlekit_defered"):
        Limiter(plugins=[Misspelt()])


def test_deferral_event_has_job_decision_count_and_wait() -> None:
    """Each denial of a job is one event, with the job, the decision, the count and the time waited."""
    deferrals, clock = Deferrals(), FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock), plugins=[deferrals])
    limiter.acquire(LIMIT)
    first = limiter.acquire(LIMIT, job=Job(id="a"))
    limiter.acquire(LIMIT)
    clock.advance(0.04)  # too early for a grant
    second = limiter.acquire(LIMIT, job=Job(id="a"))
    assert [(each.job.id, each.decision) for each in deferrals.events] == [("a", first), ("a", second)]
    assert [(each.position, each.deferrals, each.waited) for each in (first, second)] == [(0, 1, 0.0), (0, 2, 0.04)]


def test_grants_and_callers_without_a_job_are_no_deferrals() -> None:
    """A job that runs, and a caller without a job, cause no event."""
    deferrals = Deferrals()
    limiter = Limiter(plugins=[deferrals])
    limiter.acquire(LIMIT, job=Job())
    limiter.acquire(LIMIT)
    limiter.peek(LIMIT, job=Job())
    assert deferrals.events == []


class Broken:
    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        raise RuntimeError("a listener's own trouble")


def test_plugin_that_fails_does_not_reach_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a listener is logged, but not for each job, and the job is still deferred."""
    limiter = Limiter(plugins=[Broken()])
    limiter.acquire(LIMIT)
    for _ in range(3):
        decision = limiter.acquire(LIMIT, job=Job())
        assert decision.reason == "exhausted"
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"]
    assert "A plugin failed in throttlekit_deferred" in caplog.text


def test_deferrals_are_logged_sparingly(caplog: pytest.LogCaptureFixture) -> None:
    """Each deferral is logged at DEBUG; at INFO only the first of a limit, and a summary every 30 seconds."""
    now = [0.0]
    log = EventLog(clock=lambda: now[0], wall=lambda: 1_000_000.0)
    limiter = Limiter()
    limiter.acquire(LIMIT)
    event = Deferred(Job(id="a", name="send"), limiter.acquire(LIMIT, job=Job()))
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "throttlekit"):
        for now[0] in (0.0, 1.0, 29.9, 30.0, 31.0):
            log.throttlekit_deferred(event)
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    until = time.strftime("%H:%M:%S UTC", time.gmtime(1_000_000.1))
    begin = f"Limit 'partner' is holding jobs back: job a waits for 0.1 s, until {until}: exhausted."
    assert logged == [begin, f"{begin} 3 were deferred since the last such line."]
    assert sum(record.levelno == logging.DEBUG for record in caplog.records) == 5


def test_a_line_about_a_deferral_has_its_facts_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    """The fields are for structlog and JSON logs. The key is not among them."""
    log, limiter = EventLog(), Limiter()
    limiter.acquire(LIMIT)
    event = Deferred(Job(id="j"), replace(limiter.acquire(LIMIT, job=Job()), deferrals=2, waited=1.5))
    with caplog.at_level(logging.DEBUG, "throttlekit"):
        log.throttlekit_deferred(event)
    assert len(caplog.records) == 2
    for record in caplog.records:
        fields = {name: value for name, value in vars(record).items() if name.startswith("throttlekit_")}
        assert fields == {
            "throttlekit_limit": "partner",
            "throttlekit_job": "j",
            "throttlekit_wait": event.decision.delay,
            "throttlekit_reason": "exhausted",
            "throttlekit_deferrals": 2,
            "throttlekit_waited": 1.5,
        }


@pytest.mark.parametrize(("show_key", "shown"), [(True, "'jane'"), (False, digest_of_key("jane"))])
def test_a_line_has_the_name_of_a_key_only_if_the_limit_shows_it(
    caplog: pytest.LogCaptureFixture, show_key: bool, shown: str
) -> None:
    """With show_key=True the line has the name, otherwise a digest."""
    limiter, limit = Limiter(), TokenBucket("api", "10/s", burst=1, key="{who}", show_key=show_key)
    for _ in range(2):
        decision = limiter.acquire(limit, key="jane")
    with caplog.at_level(logging.INFO, "throttlekit"):
        EventLog().throttlekit_deferred(Deferred(Job(id="j"), decision))
    assert f"job j of key {shown} waits" in caplog.text


@pytest.mark.parametrize(("level", "expected"), [(logging.INFO, ["partner"]), (logging.WARNING, [])])
def test_a_summary_is_logged_once_for_a_fleet(
    caplog: pytest.LogCaptureFixture, level: int, expected: list[str]
) -> None:
    """Within `once_in_fleet` its callback decides for each limit, and is called only for lines that would be logged."""
    limiter, first = Limiter(), list[str]()
    limiter.acquire(LIMIT)
    event = Deferred(Job(), limiter.peek(LIMIT))
    with caplog.at_level(level, "throttlekit"):
        with once_in_fleet(lambda limit: bool(first.append(limit))):
            EventLog().throttlekit_deferred(event)
        assert (first, caplog.messages) == (expected, [])
        EventLog().throttlekit_deferred(event)
    assert len(caplog.messages) == len(expected)
