"""Floods on real workers while the limiter's servers fail over or move slots, and while RabbitMQ is restarted."""

from __future__ import annotations

import pytest

from support.celery.quiet import QUIET
from support.faults.strike import Case, Framework, strike_and_check

pytestmark = [pytest.mark.workers, *QUIET]


def _case(framework: Framework, fault: str) -> Case:
    return Case(framework=framework, fault=fault, jobs=100, rate=30 if framework == "rq" else 60)


@pytest.mark.parametrize("framework", ["dramatiq", "rq", "celery"])
def test_a_fail_over_under_sentinel_admits_no_more_than_its_lag(framework: Framework) -> None:
    """After the death of a master whose replica lags, at most burst + rate × lag extra units are admitted."""
    outcome = strike_and_check(_case(framework, "Sentinel fail-over"))
    assert outcome.grants >= 100


@pytest.mark.parametrize("framework", ["dramatiq", "rq", "celery"])
def test_a_moving_hash_slot_breaks_no_bound(framework: Framework) -> None:
    """If a limit's hash slot moves four times in a flood, key by key, no extra unit is granted, and every job runs."""
    strike_and_check(_case(framework, "slot migration"))


@pytest.mark.parametrize("framework", ["dramatiq", "celery"])
def test_a_restart_of_rabbitmq_loses_nothing(framework: Framework) -> None:
    """A RabbitMQ that restarts redelivers the messages that its workers held, and no job is lost."""
    strike_and_check(Case(framework=framework, fault="broker restart", broker="rabbitmq", jobs=60))
