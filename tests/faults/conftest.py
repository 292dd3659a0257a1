"""The fixture that injects a fault into a flood."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome, strike

StrikeCase = Callable[[Case], Outcome]


@pytest.fixture
def strike_case() -> StrikeCase:
    """A function that runs a flood with a fault, and checks every promise on the outcome."""

    def strike_case(case: Case) -> Outcome:
        outcome = strike(case)
        print(outcome)
        assert outcome.broken() == []
        return outcome

    return strike_case
