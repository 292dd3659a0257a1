"""What strikes a case of the tests of faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome, strike

Struck = Callable[[Case], Outcome]


@pytest.fixture
def struck() -> Struck:
    """Strike a case, and hold what came of it to every promise."""

    def struck(case: Case) -> Outcome:
        outcome = strike(case)
        print(outcome)
        assert outcome.broken() == []
        return outcome

    return struck
