"""What several adapters share: options that travel with a message, and a grant until its body begins."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from throttlekit import Concurrency, ConfigurationError, Delivery, Job, Limiter, TokenBucket, current
from throttlekit.adapter import (
    Admitted,
    Dropped,
    Failed,
    JobOptions,
    Run,
    Throttling,
    WaitRules,
    watched,
)

_SLOT, _RATE = Concurrency("slot", 1, lease=60), TokenBucket("rate", "1/hour", burst=3)
_JOB = Job(id="1", kwargs={"account": "a"})


class _Host:
    def options(self, message: Any) -> JobOptions:
        return JobOptions(limits=(_SLOT, _RATE))

    def job(self, message: Any) -> Job:
        return _JOB

    def delivery(self, message: Any, max_wait: float | None) -> Delivery:
        return Delivery()


@pytest.fixture
def throttling() -> Throttling[Any]:
    return Throttling(Limiter("memory://"), _Host(), rules=WaitRules(), log=logging.getLogger("tests.admitted"))


def _admitted(throttling: Throttling[Any]) -> Admitted:
    outcome = throttling.admit(None)
    assert isinstance(outcome, Run)
    return Admitted(throttling, outcome, lambda outcome: True)


def test_a_grant_without_a_body_is_given_back_once(throttling: Throttling[Any]) -> None:
    """`cancel` gives back slot and units; a body that would begin afterwards does not run."""
    admitted = _admitted(throttling)
    assert not throttling.limiter.peek(_SLOT).allowed
    cancel = admitted.cancel()
    assert cancel is not None
    cancel()
    assert throttling.limiter.peek(_SLOT).allowed
    assert throttling.limiter.peek(_RATE, cost=0).remaining == 3
    assert admitted.cancel() is None
    assert admitted.around() is None


def test_a_body_that_has_begun_is_not_cancelled(throttling: Throttling[Any]) -> None:
    """Its slot is released as it ends, and its units stay charged. Within it, `around` is of no effect."""
    admitted = _admitted(throttling)
    with admitted.around():
        assert current().decision is not None
        with admitted.around():
            assert current().decision is not None
        assert not throttling.limiter.peek(_SLOT).allowed
    assert admitted.cancel() is None
    assert throttling.limiter.peek(_SLOT).allowed
    assert throttling.limiter.peek(_RATE, cost=0).remaining == 2


def test_what_may_not_run_does_not(throttling: Throttling[Any]) -> None:
    """A failed job raises its error in place of its body, and a dropped one has none."""
    with pytest.raises(ConfigurationError, match="wrong"):
        Admitted(throttling, Failed(ConfigurationError("wrong")), lambda outcome: True).around()
    assert Admitted(throttling, Dropped("late"), lambda outcome: True).around() is None


def test_a_watched_function_runs_within_its_job(throttling: Throttling[Any]) -> None:
    """Plain or async; called by hand it is the function as it was."""
    here: list[Admitted | None] = [None]

    def plain() -> bool:
        return current().decision is not None

    async def in_loop() -> bool:
        return current().decision is not None

    body, body_in_loop = (watched(function, lambda: here[0]) for function in (plain, in_loop))
    assert not body()
    assert not asyncio.run(body_in_loop())
    here[0] = _admitted(throttling)
    assert body()
    here[0] = _admitted(throttling)
    assert asyncio.run(body_in_loop())
    here[0] = Admitted(throttling, Dropped("late"), lambda outcome: True)
    assert body() is None


def test_options_travel_with_a_message_and_come_back() -> None:
    """As plain data; a message that travels again, as a retry does, keeps what it has."""
    own = TokenBucket("own", "5/s", key="{account}")
    of_task = JobOptions.declared("task 'a'", {"throttle": _RATE, "priority": 1}, limiter=Limiter("memory://"))
    given = {"throttle": [own], "throttle_on_429": own, "throttle_max_wait": 5, "priority": 1}
    travel = of_task.travelling(given, _JOB)
    assert set(travel) == {"throttle", "throttle_on_429", "throttle_max_wait"}
    assert of_task.travelling(travel, _JOB) == travel
    arrived = of_task.with_message(travel)
    assert [limit.name for limit in arrived.limits] == ["own"]
    assert (arrived.on_429, arrived.max_wait) == ("own", 5.0)
    assert of_task.with_message({}) == of_task
    assert of_task.with_message(of_task.travelling({"throttle": []}, _JOB)).limits == ()
    with pytest.raises(ConfigurationError, match="not a limit of the job"):
        of_task.travelling({"throttle_on_429": "other"}, _JOB)
    with pytest.raises(ConfigurationError, match="task 'a': "):
        JobOptions.declared("task 'a'", {"throttle": "text"}, limiter=Limiter("memory://"))
