"""Faults need servers that can be killed: a missing one skips with its reason, or fails where it is required."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from support.faults.strike import Case, Outcome, strike
from support.servers.processes import ServerMissing

Struck = Callable[[Case], Outcome]


@pytest.fixture
def struck() -> Struck:
    """Strike a case, and hold what came of it to every promise."""

    def struck(case: Case) -> Outcome:
        try:
            outcome = strike(case)
        except ServerMissing as error:
            if os.environ.get("THROTTLEKIT_REQUIRE_SERVERS") and not error.excused:
                raise
            pytest.skip(str(error))
        print(outcome)
        assert outcome.broken() == []
        return outcome

    return struck
