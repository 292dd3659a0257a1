"""Floods on real workers while the limiter's servers change hands, and while RabbitMQ is restarted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Framework, Outcome

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the collector to find.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


def _case(framework: Framework, fault: str) -> Case:
    return Case(framework=framework, fault=fault, jobs=100, rate=30 if framework == "rq" else 60)


@pytest.mark.parametrize("framework", ["dramatiq", "rq", "celery"])
def test_a_fail_over_under_sentinel_admits_no_more_than_its_lag(
    struck: Callable[[Case], Outcome], framework: Framework
) -> None:
    """A master that dies while its replica lags admits at most burst + rate × lag too many, and every job is done."""
    outcome = struck(_case(framework, "Sentinel fail-over"))
    assert outcome.grants >= 100


@pytest.mark.parametrize("framework", ["dramatiq", "rq", "celery"])
def test_a_slot_that_moves_from_node_to_node_breaks_no_bound(
    struck: Callable[[Case], Outcome], framework: Framework
) -> None:
    """A limit whose slot moves four times in a flood, key by key, grants not one too many, and every job is done."""
    struck(_case(framework, "slot migration"))


@pytest.mark.parametrize("framework", ["dramatiq", "celery"])
def test_a_restart_of_rabbitmq_loses_nothing(struck: Callable[[Case], Outcome], framework: Framework) -> None:
    """A RabbitMQ that restarts delivers again what its workers held, and no job is lost."""
    struck(Case(framework=framework, fault="broker restart", broker="rabbitmq", jobs=60))
