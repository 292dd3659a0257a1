"""The account of a demo run finds each broken promise."""

from __future__ import annotations

import pytest

from throttlekit_cli.demo import BURST, RATE, Call, Plan, Promise, check_promises

JOBS = BURST + 9 * RATE


def plan(*, jobs: int = JOBS, throttled: bool = True) -> Plan:
    return Plan(framework="dramatiq", jobs=jobs, workers=2, throttled=throttled)


def ideal_calls() -> list[Call]:
    """Return the calls of the burst at once, and every other job at its time."""
    return [Call(100 + max(0, job + 1 - BURST) / RATE, job, 200) for job in range(JOBS)]


def broken(promises: list[Promise]) -> list[str]:
    return [promise.name for promise in promises if promise.kept is False]


def test_a_perfect_run_keeps_every_promise() -> None:
    """All jobs run once, with no 429 and in order, and the limit is fully used."""
    promises = check_promises(plan(), ideal_calls())
    assert broken(promises) == []
    assert sum(promise.kept is True for promise in promises) == 5


REFUSED = [*ideal_calls(), Call(103.0, 3, 429)]
SLOW = [call._replace(at=100 + (call.at - 100) * 1.5) for call in ideal_calls()]
LOST = [call for call in ideal_calls() if call.job != JOBS - 1]
TWICE = [*ideal_calls(), Call(104.0, 3, 200)]
REVERSED = [call._replace(job=JOBS - 1 - call.job) for call in ideal_calls()]


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        (REFUSED, "429s"),
        (LOST, "jobs done"),
        (TWICE, "done more than once"),
        (SLOW, "share of the limit used"),
        (REVERSED, "typical distance from the order sent"),
    ],
)
def test_each_broken_promise_is_found(calls: list[Call], name: str) -> None:
    """If one thing goes wrong in a run, only the promise about it is reported."""
    assert broken(check_promises(plan(), calls)) == [name]


def test_a_run_without_a_successful_call_breaks_the_promise_that_jobs_run() -> None:
    """A run with no call, and a run with only refused calls, also have an account."""
    assert "jobs done" in broken(check_promises(plan(), []))
    assert "jobs done" in broken(check_promises(plan(), [Call(100.0, 1, 429)]))


def test_a_few_jobs_out_of_order_break_no_promise() -> None:
    """
    Several threads call at once, so neighbours can arrive in another order, and a stalled worker delays some jobs.
    """
    swapped = [call._replace(job=call.job ^ 1) for call in ideal_calls()]
    held_back = [call._replace(job=(call.job + 20) % JOBS) for call in ideal_calls()]
    assert broken(check_promises(plan(), swapped)) == []
    assert broken(check_promises(plan(), held_back)) == []


def test_without_throttlekit_nothing_is_promised() -> None:
    """The account has the same numbers, but no promise is kept or broken."""
    for calls in (ideal_calls(), REFUSED, []):
        assert {promise.kept for promise in check_promises(plan(throttled=False), calls)} == {None}


def test_the_use_of_the_limit_is_not_judged_if_the_run_is_short() -> None:
    """If there are few jobs, the burst decides the use of the limit, and the account says so."""
    promises = {promise.name: promise for promise in check_promises(plan(jobs=BURST), [Call(0.0, 0, 200)])}
    assert promises["share of the limit used"].expected == "too few jobs to judge"
