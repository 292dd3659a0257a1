"""
Jobs with a fault do not stop the other jobs of their limit: each framework on each broker, each fault.

Two kinds of jobs share a limit (`support.others`): those in front have the fault, and the few behind them do not. While
the fault lasts, each of the jobs behind runs once, long before those in front could run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.celery.quiet import QUIET
from support.others.jobs import FAULTS
from support.others.matrix import Result, run
from support.others.stacks import STACKS

pytestmark = [pytest.mark.workers, *QUIET]

_STORE = "a job whose store is unavailable is redelivered every few seconds, and is the first on its waitlist"
_IN_TURN = "each job uses its turn on the waitlist only to be denied by its other limit"
_FAILS_IN_TURN = "a job whose function no longer exists uses a unit of its limit before it fails"
_DEAD_IN_FRONT = "jobs that no worker takes keep their turns for seconds"

NOT_JUDGED: dict[tuple[str, str], str] = {
    ("RQ, stock", "pause"): _IN_TURN,
    ("RQ, stock", "429"): _IN_TURN,
    ("RQ, stock", "set"): _IN_TURN,
    ("RQ, stock", "undecodable"): _FAILS_IN_TURN,
    ("RQ, stock", "store"): _STORE,
    ("RQ, stock", "queue"): _DEAD_IN_FRONT,
    ("Dramatiq, Redis", "undecodable"): _DEAD_IN_FRONT,
    ("Dramatiq, RabbitMQ", "undecodable"): _DEAD_IN_FRONT,
    ("RQ, ours", "undecodable"): _DEAD_IN_FRONT,
}
"""
The stacks and faults for which the jobs behind sometimes or always run later than the deadline, with the reason. For
stock workers of RQ, `tests/adapters/rq/test_first_of_line.py` shows that these jobs do run.
"""


class Fleets:
    """The results of each stack. All faults of a stack happen at the same time, since workers need seconds to start."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], Result] = {}
        self._seen: set[str] = set()

    def result(self, stack: str, fault: str, rabbitmq_url: str | None) -> Result:
        """Return the result of a fault. Each result is returned once: a test that runs again has its own fleet."""
        if (stack, fault) not in self._results:
            judged = [each for each in FAULTS if (stack, each) not in NOT_JUDGED]
            faults = [fault] if stack in self._seen else judged
            self._seen.add(stack)
            self._results |= {(stack, each): result for each, result in run(stack, faults, rabbitmq_url).items()}
        return self._results.pop((stack, fault))


@pytest.fixture(scope="module")
def fleets(redis_base: str) -> Iterator[Fleets]:
    return Fleets()


def _cells() -> Iterator[object]:
    for stack in STACKS:
        for fault in FAULTS:
            marks: list[pytest.MarkDecorator] = []
            if reason := NOT_JUDGED.get((stack, fault)):
                marks = [pytest.mark.skip(reason=reason)]
            yield pytest.param(stack, fault, marks=marks, id=f"{stack}-{fault}")


@pytest.mark.parametrize(("stack", "fault"), list(_cells()))
def test_jobs_behind_a_fault_run(stack: str, fault: str, fleets: Fleets, request: pytest.FixtureRequest) -> None:
    """Each of the jobs behind runs once, while the fault lasts."""
    rabbitmq_url = request.getfixturevalue("rabbitmq_url") if STACKS[stack].kind == "rabbitmq" else None
    result = fleets.result(stack, fault, rabbitmq_url)
    assert result.all_ran_once, str(result)
