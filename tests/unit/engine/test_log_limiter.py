"""Messages that are logged at most once per period."""

from __future__ import annotations

from throttlekit._util.log_limiter import CountedEvery, Every


def test_due_once_in_each_period() -> None:
    """A message is due at once, and then not again until the period has passed."""
    now = [0.0]
    every_30_s = Every(30, clock=lambda: now[0])
    due = []
    for now[0] in (0.0, 0.0, 29.9, 30.0, 31.0, 60.0):
        due.append(every_30_s.due())
    assert due == [True, False, False, True, False, True]


def test_names_without_an_event_for_long_are_forgotten() -> None:
    """A process with a new limit for each job does not remember all of them, but those that are in use."""
    every_30_s = CountedEvery(30, clock=lambda: 0.0)
    assert every_30_s.one_more("in use") == 1
    for number in range(30_000):
        assert every_30_s.one_more(str(number)) == 1
        assert every_30_s.one_more("in use") == 0
    assert len(every_30_s._counts) <= 10_000
