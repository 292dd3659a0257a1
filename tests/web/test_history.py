"""The last minutes, as the server adds them up: exact, bounded, and free of what was not read."""

from __future__ import annotations

from throttlekit.fleet.last_minute import Step
from throttlekit_web._history import MAX_STEPS, History


def _steps(first: int, last: int, units: int = 1) -> dict[str, tuple[Step, ...]]:
    return {"a": tuple(Step(number, 1, units, {"exhausted": 2, "paused": 3}, 0.5) for number in range(first, last + 1))}


def test_a_later_reading_replaces_a_step() -> None:
    """A step grows until it has ended; of the jobs that wait in it the highest number counts."""
    history = History()
    history.add(_steps(1, 5), {"a": 7})
    history.add(_steps(2, 5, units=9), {"a": 4})
    history.add(_steps(2, 6, units=9), {"a": 2})
    assert history.since("a", 0) == [
        [1, 1, 2, 3, 0.5, -1],
        *([number, 9, 2, 3, 0.5, -1] for number in (2, 3, 4)),
        [5, 9, 2, 3, 0.5, 7],
        [6, 9, 2, 3, 0.5, 2],
    ]
    assert [row[0] for row in history.since("a", 5)] == [5, 6]


def test_a_step_that_was_not_read_is_missing() -> None:
    """It is not taken for one without decisions."""
    history = History()
    history.add(_steps(1, 5), {})
    history.add(_steps(10, 14), {})
    assert [row[0] for row in history.since("a", 0)] == [*range(1, 6), *range(10, 15)]


def test_the_history_is_bounded() -> None:
    """15 minutes are kept, of the limits that were read last."""
    history = History()
    for last in range(5, 500, 5):
        history.add(_steps(last - 4, last), {})
    assert len(history.since("a", 0)) == MAX_STEPS
    for number in range(1_000):
        history.add({f"other-{number}": (Step(1, 0, 0, {}, 0.0),)}, {})
    assert history.since("a", 0) == []
    assert len(history.since("other-0", 0)) == 1
