"""Messages that are logged at most once per period."""

from __future__ import annotations

from throttlekit._util.log_limiter import Every


def test_due_once_in_each_period() -> None:
    """A message is due at once, and then not again until the period has passed."""
    now = [0.0]
    every_30_s = Every(30, clock=lambda: now[0])
    due = []
    for now[0] in (0.0, 0.0, 29.9, 30.0, 31.0, 60.0):
        due.append(every_30_s.due())
    assert due == [True, False, False, True, False, True]
