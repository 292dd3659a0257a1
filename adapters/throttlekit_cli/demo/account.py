"""The account of a run: the numbers that follow from the partner's record and the workers' ledger. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from throttlekit_cli.demo.fleet import Call
from throttlekit_cli.demo.ledger import Run
from throttlekit_cli.demo.plan import Plan

__all__ = ["MIN_USE", "Account", "account_of", "burst_needed"]

MIN_USE = 0.9
_MIN_SECONDS = 2.0
_MIN_BURST_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """
    The numbers of a run.

    Attributes:
        seconds: From the first call to the last.
        jobs: The jobs of the plan.
        done: Jobs with at least one answered call.
        duplicates: Answered calls of jobs that already had an answer.
        failed: Runs without any answer.
        calls: Calls that the partner received.
        refused: Calls that the partner answered with 429.
        burst_needed: The smallest burst with which the partner would have answered every call.
        use: Answered calls, as a share of what the limit allows in that time.
        use_unjudged: Why there is no promise about *use*; "" if there is one.
        deferrals: How often each job was put back: by the limit, or by its framework after a 429.
        longest_wait: From sending a job to the run that was answered, in seconds.
    """

    seconds: float
    jobs: int
    done: int
    duplicates: int
    failed: int
    calls: int
    refused: int
    burst_needed: float
    use: float
    use_unjudged: str
    deferrals: Sequence[int]
    longest_wait: float

    @property
    def lost(self) -> int:
        return self.jobs - self.done

    @property
    def mean_deferrals(self) -> float:
        return sum(self.deferrals) / self.jobs


def account_of(plan: Plan, calls: Sequence[Call], runs: Sequence[Run], deferrals: Sequence[int]) -> Account:
    """Compute the account of a run. *deferrals* are the limit's; without throttlekit, runs are counted instead."""
    answered = [call.arrived for call in calls if call.status == 200]
    served = Counter(run.job for run in runs if run.status == 200)
    if not plan.throttled:
        deferrals = [count - 1 for count in Counter(run.job for run in runs).values()]
    seconds = calls[-1].arrived - calls[0].arrived if calls else 0.0
    return Account(
        seconds=seconds,
        jobs=plan.jobs,
        done=len(served),
        duplicates=sum(served.values()) - len(served),
        failed=sum(run.status not in (200, 429) for run in runs),
        calls=len(calls),
        refused=len(calls) - len(answered),
        burst_needed=burst_needed((call.arrived for call in calls), plan.per_second),
        use=len(answered) / (plan.burst + plan.per_second * seconds),
        use_unjudged=_unjudged(plan),
        deferrals=deferrals,
        longest_wait=max((run.began_at - run.sent_at for run in runs if run.status == 200), default=0.0),
    )


def _unjudged(plan: Plan) -> str:
    if plan.ideal < _MIN_SECONDS:
        return "too few jobs to judge"
    if plan.burst < plan.per_second * _MIN_BURST_SECONDS:
        # Jobs come back some hundredths of a second late; a smaller burst cannot make up for it.
        return f"none: the burst is less than {_MIN_BURST_SECONDS:g} s of the rate"
    return ""


def burst_needed(arrivals: Iterable[float], per_second: float) -> float:
    """
    The smallest burst b for which *arrivals*, in order, stay within `b + rate × w` in any window of length w.

    0 for no arrivals. Computed from the record alone, and not by the partner's rule.
    """
    most, lowest = 0.0, float("inf")
    for number, arrived in enumerate(arrivals):
        level = number - per_second * arrived
        lowest = min(lowest, level)
        most = max(most, level + 1 - lowest)
    return most
