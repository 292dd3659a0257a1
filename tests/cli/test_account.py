"""The account of a run finds each promise that is broken."""

from __future__ import annotations

import pytest

from throttlekit_cli.demo.account import Account, account_of
from throttlekit_cli.demo.fleet import Call
from throttlekit_cli.demo.flood import jobs_of
from throttlekit_cli.demo.ledger import Run
from throttlekit_cli.demo.plan import Plan
from throttlekit_cli.demo.report import broken_promises


def plan(*, jobs: int = 40, rate: str = "10/s", burst: int | None = 10, throttled: bool = True, seed: int = 1) -> Plan:
    return Plan.of(jobs=jobs, rate=rate, burst=burst, workers=2, seed=seed, throttled=throttled, url=None)


def ideal_calls() -> list[Call]:
    """Forty calls that use 10/s with a burst of 10 to the full."""
    return [Call(arrived=100 + max(0, number - 9) / 10, status=200) for number in range(40)]


def run(job: int, status: int = 200, wait: float = 1.0) -> Run:
    return Run(job=job, sent_at=50.0, began_at=50.0 + wait, status=status)


def ideal_runs() -> list[Run]:
    return [run(job) for job in range(40)]


def account(calls: list[Call] | None = None, runs: list[Run] | None = None) -> Account:
    return account_of(plan(), ideal_calls() if calls is None else calls, ideal_runs() if runs is None else runs, [1, 2])


def test_a_perfect_run_breaks_no_promise() -> None:
    """All jobs once, no 429, the limit used to the full."""
    perfect = account()
    assert broken_promises(plan(), perfect) == []
    assert perfect.use == pytest.approx(1.0)
    assert perfect.burst_needed == pytest.approx(10.0)
    assert perfect.mean_deferrals == pytest.approx(3 / 40)


REFUSED = [*ideal_calls(), Call(arrived=103.0, status=429)]
TOO_DENSE = [Call(arrived=100.0, status=200)] * 14 + ideal_calls()[14:]
SLOW = [Call(arrived=100 + number / 8, status=200) for number in range(40)]


@pytest.mark.parametrize(
    ("calls", "runs", "broken"),
    [
        (REFUSED, None, "429s"),
        (TOO_DENSE, None, "burst that the calls came to"),
        (SLOW, None, "share of the limit used"),
        (None, ideal_runs()[1:], "jobs run"),
        (None, [], "jobs run"),
        (None, [*ideal_runs(), run(3)], "duplicates"),
        (None, [*ideal_runs(), run(3, status=0)], "failed runs"),
    ],
)
def test_each_promise_is_found_broken(calls: list[Call] | None, runs: list[Run] | None, broken: str) -> None:
    """One thing goes wrong, and only the promise about it is named."""
    assert broken_promises(plan(), account(calls, runs)) == [broken]


def test_without_throttlekit_nothing_is_promised_and_retries_are_counted() -> None:
    """A flood full of 429s breaks no promise; each run after a job's first is a retry."""
    bare = plan(throttled=False)
    drawn_up = account_of(bare, REFUSED, [run(0, 429), run(0, 429), run(0), run(1)], [])
    assert broken_promises(bare, drawn_up) == []
    assert sorted(drawn_up.deferrals) == [0, 2]


@pytest.mark.parametrize(("jobs", "rate", "burst"), [(20, "10/s", 10), (1, "1/h", 1), (400, "50/s", 1)])
def test_the_share_of_the_limit_is_not_judged_where_it_means_nothing(jobs: int, rate: str, burst: int) -> None:
    """Floods that are over at once, and bursts too small for any delivery, say why there is no promise."""
    small = plan(jobs=jobs, rate=rate, burst=burst)
    drawn_up = account_of(small, [Call(arrived=0.0, status=200), Call(arrived=1e6, status=200)], [], [])
    assert drawn_up.use < 0.1
    assert "share of the limit used" not in broken_promises(small, drawn_up)


def test_the_longest_wait_is_that_of_a_run_that_was_answered() -> None:
    """A run that got a 429 did not end the wait."""
    runs = [*ideal_runs(), run(5, 429, wait=9.0), run(6, 200, wait=4.0)]
    assert account(runs=runs).longest_wait == 4.0


def test_the_same_seed_gives_the_same_jobs_and_another_gives_others() -> None:
    """Accounts, work and order depend on the seed; every job is there once."""
    assert jobs_of(plan(seed=5)) == jobs_of(plan(seed=5))
    assert jobs_of(plan(seed=5)) != jobs_of(plan(seed=6))
    assert sorted(job.job for job in jobs_of(plan())) == list(range(40))


@pytest.mark.parametrize(("rate", "burst", "partner"), [("20/s", 20, 25), ("100/minute", 3, 4), ("100/s", 1, 26)])
def test_the_partner_allows_a_quarter_of_a_second_more_than_the_limit(rate: str, burst: int, partner: int) -> None:
    """Calls that were allowed in time still have to travel."""
    assert plan(rate=rate, burst=burst).partner_burst == partner
