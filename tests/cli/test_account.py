"""The account of a run finds each promise that is broken."""

from __future__ import annotations

import pytest

from throttlekit_cli.demo import BURST, RATE, Call, Plan, Promise, check_promises

JOBS = BURST + 9 * RATE


def plan(*, jobs: int = JOBS, throttled: bool = True) -> Plan:
    return Plan(framework="dramatiq", jobs=jobs, workers=2, throttled=throttled)


def ideal_calls() -> list[Call]:
    """The burst at once, and every other job at its time."""
    return [Call(100 + max(0, job + 1 - BURST) / RATE, job, 200) for job in range(JOBS)]


def broken(promises: list[Promise]) -> list[str]:
    return [promise.name for promise in promises if promise.kept is False]


def test_a_perfect_run_keeps_every_promise() -> None:
    """All jobs once, no 429, in order, the limit used to the full."""
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
def test_each_promise_is_found_broken(calls: list[Call], name: str) -> None:
    """One thing goes wrong, and only the promise about it is named."""
    assert broken(check_promises(plan(), calls)) == [name]


def test_a_run_without_an_answer_breaks_the_promise_that_jobs_run() -> None:
    """No call at all, and only refused calls, are accounts too."""
    assert "jobs done" in broken(check_promises(plan(), []))
    assert "jobs done" in broken(check_promises(plan(), [Call(100.0, 1, 429)]))


def test_a_few_jobs_that_change_places_break_no_promise() -> None:
    """Several threads call at once, so neighbours may arrive in another order; a stalled worker holds some back."""
    swapped = [call._replace(job=call.job ^ 1) for call in ideal_calls()]
    held_back = [call._replace(job=(call.job + 20) % JOBS) for call in ideal_calls()]
    assert broken(check_promises(plan(), swapped)) == []
    assert broken(check_promises(plan(), held_back)) == []


def test_without_throttlekit_nothing_is_promised() -> None:
    """The same numbers; no promise is kept or broken."""
    for calls in (ideal_calls(), REFUSED, []):
        assert {promise.kept for promise in check_promises(plan(throttled=False), calls)} == {None}


def test_the_use_of_the_limit_is_not_judged_if_the_flood_is_over_at_once() -> None:
    """Of few jobs the burst decides, and the account says so."""
    promises = {promise.name: promise for promise in check_promises(plan(jobs=BURST), [Call(0.0, 0, 200)])}
    assert promises["share of the limit used"].expected == "too few jobs to judge"
