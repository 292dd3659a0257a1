"""The warning for a worker whose jobs declare limits that no adapter applies: when it is not logged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from throttlekit import TokenBucket, _unlimited

PARTNER = TokenBucket("partner", "10/s")


def _start(*throttles: Any) -> None:
    """Simulate the start of a huey consumer with a task for each of *throttles*."""
    tasks = {f"task-{number}": SimpleNamespace(throttle=each) for number, each in enumerate(throttles)}
    registry = SimpleNamespace(_registry=tasks)
    _unlimited._huey_starts(SimpleNamespace(huey=SimpleNamespace(_registry=registry)))


@pytest.mark.parametrize(
    ("in_use", "throttles", "warnings"),
    [
        (False, (PARTNER,), 1),
        (False, (None, [PARTNER]), 1),
        (False, ("5/s", None, []), 0),  # the option of another package, and no option
        (True, (PARTNER,), 0),
    ],
)
def test_only_limits_without_an_adapter_cause_a_warning(
    in_use: bool, throttles: Any, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An adapter in use, a worker without limits, and another package's option `throttle` cause no warning."""
    monkeypatch.setattr(_unlimited._Process, "in_use", in_use)
    _start(*throttles)
    assert len(caplog.messages) == warnings
