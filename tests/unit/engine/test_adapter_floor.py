"""The base of every adapter: what happens to a job is one of four values, in every case."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from throttlekit import (
    Concurrency,
    ConfigurationError,
    Decision,
    Delivery,
    Job,
    Limit,
    Limiter,
    RateLimited,
    TokenBucket,
)
from throttlekit._core.answer import Waited
from throttlekit._core.waitlist import Wake
from throttlekit._engine.call import Waiting
from throttlekit.adapter import Deferred, Dropped, Failed, JobOptions, Run, Throttling, WaitRules
from throttlekit.errors import WaitedTooLong
from throttlekit.plugins import LimitsFor

OWN = TokenBucket("own", "1/hour", burst=1)
SLOT = Concurrency("slot", 1, lease=60)
ADDED = TokenBucket("added", "1/hour", burst=1)
LOG = logging.getLogger("throttlekit.test")


class _Host:
    """Messages are the names of jobs in the queue "reports"."""

    def __init__(self, *limits: Limit, max_wait: float | None = None, fault: Exception | None = None) -> None:
        self._options = JobOptions(limits=limits, max_wait=max_wait)
        self._fault = fault

    def options(self, message: str) -> JobOptions:
        if self._fault is not None:
            raise self._fault
        return self._options

    def job(self, message: str) -> Job:
        return Job(id=message, name="send", queue="reports")

    def delivery(self, message: str, max_wait: float | None) -> Delivery:
        return WaitRules().delivery(Delivery(), max_wait)


def _throttling(host: _Host, *plugins: object, rules: WaitRules | None = None) -> Throttling[str]:
    return Throttling(Limiter(plugins=plugins), host, rules=rules or WaitRules(), log=LOG)


def test_a_job_without_limits_runs_without_a_request() -> None:
    """A job without limits makes no request, and a 429 of its body is an error like any other."""
    throttling = _throttling(_Host())
    outcome = throttling.admit("a")
    assert isinstance(outcome, Run)
    assert outcome.decision is None
    assert throttling.rate_limited(outcome, RateLimited(1), release=lambda: None) is outcome


@pytest.mark.parametrize(
    ("on_waited_too_long", "kind"), [("fail", Failed), ("drop", Dropped), ("run", Run)], ids=lambda value: str(value)
)
def test_a_job_past_its_max_wait_ends_as_configured(on_waited_too_long: Any, kind: type[Any]) -> None:
    """After `max_wait` a job fails, is dropped, or runs uncharged."""
    throttling = _throttling(_Host(OWN, max_wait=0), rules=WaitRules(on_waited_too_long=on_waited_too_long))
    throttling.admit("a")
    outcome = throttling.admit("b")
    assert isinstance(outcome, kind)
    if isinstance(outcome, Failed):
        assert isinstance(outcome.error, WaitedTooLong)
        assert (outcome.error.limit, outcome.error.reason) == ("own", "waited too long")
    if isinstance(outcome, Run):
        assert outcome.decision is not None
        assert not outcome.decision.allowed


def test_a_configuration_error_fails_the_job() -> None:
    """A configuration error fails the job, because another attempt cannot help."""
    fault = ConfigurationError("no such limit")
    outcome = _throttling(_Host(fault=fault)).admit("a")
    assert isinstance(outcome, Failed)
    assert outcome.error is fault


def test_a_woken_job_with_a_configuration_error_blocks_no_other() -> None:
    """Its waker does not consider it as one that makes a request, so its wake is removed from the waitlist."""
    costs = iter([1, 1])
    limit = TokenBucket("costs", "1/minute", burst=1, cost=lambda _: next(costs, -1))
    throttling = _throttling(_Host(limit))
    waker = throttling.limiter.make_waker(lambda: 1, lambda *_: None)
    assert isinstance(throttling.admit("a"), Run)
    assert isinstance(throttling.admit("b", Waiting(waker, "b")), Deferred)
    assert isinstance(throttling.admit("b", Waiting(waker, "b")), Failed)
    room = waker._here.room  # pyright: ignore[reportPrivateUsage]
    waker.close()
    assert room.apply_wakes([Wake("b", 0)], 0) == ["b"], "no job of this process has this wake"


def test_any_other_error_defers_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """Any other error is logged with its traceback, and the job is redelivered after a second."""
    outcome = _throttling(_Host(fault=LookupError("not there"))).admit("a")
    assert outcome == Deferred(1.0, None)
    assert "could not be decided on" in caplog.text


class _Unreachable(Limiter):
    def acquire(self, *limits: Limit, **options: Any) -> Decision:
        raise OSError("out of sockets")


def test_an_error_of_the_limiter_defers_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """If the limiter itself raises, the job waits for a second, and the error is logged."""
    throttling = Throttling(_Unreachable(), _Host(OWN), rules=WaitRules(), log=LOG)
    assert throttling.admit("a") == Deferred(1.0, None)
    assert "could not be decided on" in caplog.text


def test_a_plugin_adds_limits_to_any_job() -> None:
    """A job is limited by its own limits and by those of its queue; a job of another queue is not."""
    plugin = LimitsFor(queue={"reports": [ADDED]})
    throttling = _throttling(_Host(), plugin)
    assert throttling.concerns(JobOptions())
    first, second = throttling.admit("a"), throttling.admit("b")
    assert isinstance(first, Run)
    assert first.limits == (ADDED,)
    assert first.decision is not None
    assert first.decision.allowed
    assert isinstance(second, Deferred)
    assert second.delay > 0
    both = _throttling(_Host(OWN), plugin).admit("a")
    assert isinstance(both, Run)
    assert both.limits == (OWN, ADDED)


@pytest.mark.parametrize("has_waited", [True, False])
def test_a_refunded_job_that_had_waited_continues_its_wait(has_waited: bool) -> None:
    """A granted job that does not begin stays ahead of a later job if it had waited. Otherwise it is a new job."""
    throttling = _throttling(_Host(SLOT))
    limiter = throttling.limiter
    held = limiter.acquire(SLOT)
    if has_waited:
        throttling.admit("a")
    limiter.release(held)
    run = throttling.admit("a")
    assert isinstance(run, Run)
    assert run.decision is not None
    throttling.admit("later")
    limiter.pause(SLOT, 60)  # so that no job gets the unit
    limiter.cancel(run.decision)
    throttling.return_position(run)
    again = throttling.admit("a")
    assert isinstance(again, Deferred)
    assert again.decision is not None
    assert (again.decision.position, again.decision.deferrals) == ((0, 2) if has_waited else (1, 1))


def test_a_refunded_job_continues_its_wait_in_no_store_that_is_unavailable() -> None:
    """If the store does not answer, the job makes its next request as a new job."""
    throttling = Throttling(Limiter("redis://127.0.0.1:1/0"), _Host(OWN), rules=WaitRules(), log=LOG)
    throttling.record_waited("a", Waited(denials=1))
    throttling.return_position(Run(Job(id="a"), (OWN,), None, Delivery()))


@pytest.mark.parametrize("longest", [1e9, timedelta.max, 12.5])
def test_a_message_can_carry_any_longest_wait(longest: float | timedelta) -> None:
    """A time that counts as infinite is written as a number that the worker can read."""
    carried = json.loads(json.dumps(JobOptions().travelling({"throttle_max_wait": longest}, Job()), allow_nan=False))
    read = JobOptions().with_message(carried).max_wait
    assert read == 12.5 if longest == 12.5 else (read or 0) > 900_000_000
