"""The limiter that answers as a user's test requires, and the fixtures for pytest."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from throttlekit import AsyncLimiter, Concurrency, ConfigurationError, Job, Limiter, TokenBucket
from throttlekit.hookspecs import hookimpl
from throttlekit.testing import FakeClock, allowing, denying, in_memory

LIMIT = TokenBucket("partner", "1/s", burst=1)
SLOTS = Concurrency("slots", 1)
OWN = TokenBucket("own", "1/s", burst=1, scope="process")
AHEAD = TokenBucket("ahead", "100/s", burst=100, prefetch=10)
NOWHERE = "redis://127.0.0.1:1/0"
JOB = Job(name="call")


@pytest.mark.parametrize("limit", [LIMIT, SLOTS, OWN, AHEAD], ids=lambda limit: limit.name)
def test_allowing_grants_everything(limit: Any) -> None:
    """For every limit, a limiter without a reachable server grants any number of requests; slots can be released."""
    limiter = Limiter(NOWHERE)
    with allowing(limiter) as seen:
        for _ in range(5):
            decision = limiter.acquire(limit, job=JOB)
            assert decision.reason == "allowed"
        limiter.release(decision)
        with limiter.hold(limit):
            pass
        assert seen.assert_allowed("call", limit=limit.name).decision is not None


@pytest.mark.parametrize("limit", [LIMIT, SLOTS, OWN, AHEAD], ids=lambda limit: limit.name)
def test_denying_grants_nothing(limit: Any) -> None:
    """No request is granted within the block, and the delay is the given one."""
    limiter = Limiter(NOWHERE)
    with denying(limiter, delay=7) as seen:
        assert not limiter.peek(limit)
        first = limiter.acquire(limit, job=Job(name="call", id="1"))
        again = limiter.acquire(limit, job=Job(name="call", id="1"))
        assert (first.allowed, again.allowed) == (False, False)
        assert seen.assert_deferred("call", limit=limit.name).decision is again
        assert first.delay == again.delay == pytest.approx(7)


def test_the_limiter_is_restored_afterwards() -> None:
    """A test leaves no trace: the limiter has its own store again, with its count."""
    clock = FakeClock()
    with in_memory(clock=clock) as outer:
        limiter = outer.limiter
        assert limiter.acquire(LIMIT)
        with pytest.raises(ConfigurationError), allowing(limiter):
            limiter.acquire()
        with allowing(limiter):
            assert limiter.acquire(LIMIT)
        assert not limiter.acquire(LIMIT)
        clock.advance(1)
        assert limiter.acquire(LIMIT)
        assert [event.decision.allowed for event in outer.decisions] == [True, False, True]


def test_an_async_limiter_follows_its_limiter() -> None:
    """An AsyncLimiter that was made before a test, or in one, uses the store that its limiter has at present."""
    limiter = Limiter("memory://")
    before = AsyncLimiter(limiter)

    def is_allowed(over: AsyncLimiter) -> bool:
        return asyncio.run(over.acquire(LIMIT)).allowed

    assert is_allowed(before)
    with denying(limiter) as seen:
        during = AsyncLimiter(limiter)
        assert not is_allowed(before)
        assert not is_allowed(during)
        assert len(seen.decisions) == 2
    with allowing(limiter):
        assert is_allowed(during)
    assert not is_allowed(before)
    assert not is_allowed(during)


class KeyPlugin:
    """A plugin that sets the key of each job."""

    @hookimpl
    def throttlekit_key(self, job: Job, limit: Any) -> str:
        return "from-plugin"


def test_plugins_of_the_limiter_are_called() -> None:
    """Keys and limits that a plugin adds are the same in a test as in production, also in a block within a block."""
    limit = TokenBucket("keyed", "1/s", burst=1, key="{account}")
    limiter = Limiter(NOWHERE, plugins=[KeyPlugin()])
    with in_memory(limiter) as outer, in_memory(limiter):
        assert limiter.acquire(limit, job=JOB).key == "from-plugin"
    outer.assert_not_asked()


def test_the_clock_also_moves_limits_of_scope_process() -> None:
    """A limit of scope "process" is counted in another store in memory, with the same clock."""
    clock, own = FakeClock(), TokenBucket("own", "1/s", burst=1, scope="process")
    with in_memory(clock=clock) as seen:
        assert [bool(seen.limiter.acquire(own)) for _ in range(2)] == [True, False]
        clock.advance(1)
        assert seen.limiter.acquire(own)


def test_failed_assertion_says_what_was_decided() -> None:
    """The message of a failed assertion has the decisions, and the job and limit that were expected."""
    with denying() as seen:
        seen.limiter.acquire(LIMIT, job=JOB)
        with pytest.raises(AssertionError, match=r"no job 'call' was allowed under 'partner'; .* call exhausted"):
            seen.assert_allowed("call", limit="partner")
        with pytest.raises(AssertionError, match="no job 'other' was deferred; the decisions were: call"):
            seen.assert_deferred("other")
        with pytest.raises(AssertionError, match="no job was deferred under 'slots'"):
            seen.assert_deferred(limit="slots")
        with pytest.raises(AssertionError, match="no decision was expected"):
            seen.assert_not_asked()
    with allowing() as seen:
        seen.assert_not_asked()
        with pytest.raises(AssertionError, match="the decisions were: none"):
            seen.assert_allowed(within=0.01)


def test_assertions_wait_for_other_threads() -> None:
    """A worker decides in a thread of its own: the assertion waits for the decision."""
    with denying() as seen:
        thread = threading.Timer(0.05, seen.limiter.acquire, [LIMIT], {"job": JOB})
        thread.start()
        seen.assert_deferred("call", within=30)
        thread.join()


_TESTS = """
import sys

def test_without_fixtures_nothing_is_imported():
    assert "throttlekit" not in sys.modules

def test_time_is_set_by_the_test(throttlekit_limiter, throttlekit_clock):
    from throttlekit import TokenBucket

    limit = TokenBucket("partner", "1/s", burst=1)
    assert throttlekit_limiter.acquire(limit)
    assert not throttlekit_limiter.acquire(limit)
    throttlekit_clock.advance(1)
    assert throttlekit_limiter.acquire(limit)
"""


def test_the_fixtures_cost_nothing_until_they_are_used(tmp_path: Path) -> None:
    """pytest finds the fixtures, but imports throttlekit only when a test uses one."""
    (tmp_path / "test_mine.py").write_text(_TESTS)
    mine = ["-p", "throttlekit_pytest", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *mine],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr
