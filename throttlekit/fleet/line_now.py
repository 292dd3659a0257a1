"""What a stored waiting line says to people. Reads what lua/throttlekit_lua/line.lua and slowdown.lua write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from throttlekit._core.slowdown import Slowdown, pace_of

__all__ = ["LineNow", "SlowNow", "line_of", "slow_now"]

_NUMBERS = 20
"""Fields of a line, before the secret of its seals; then comes its slowdown, if there is one."""


class SlowNow(NamedTuple):
    """
    A limit that is slower for a while.

    Attributes:
        rate: Units a second that pass now, at most.
        by: "adapt": downstream refused calls; "headers": downstream said how much is left.
        ends: In how many seconds it is over, if nothing else is heard.
    """

    rate: float
    by: str
    ends: float


class LineNow(NamedTuple):
    """
    A waiting line. Times in seconds.

    Attributes:
        waiting: Jobs in it, and `waiting_units`, what they take.
        last_starts: In how long the last of them is to come back; None: none waits.
        paused: How long the key is paused yet; None: it is not.
        slowed: How it is slowed down; None: it is not.
    """

    waiting: int = 0
    waiting_units: int = 0
    last_starts: float | None = None
    paused: float | None = None
    slowed: SlowNow | None = None


def line_of(text: bytes | None, now_us: int, mark: int = 1) -> LineNow:
    """
    The waiting line whose numbers are stored as *text*; an empty one if that is something else.

    Args:
        mark: That of its algorithm, see `Algorithm.mark`.
    """
    fields = (text or b"").split(b" ")
    try:
        numbers = [int(number) for number in fields[:_NUMBERS]]
        extra, paused_us, last_us, waiting = (numbers[at] for at in (4, 13, 17, 19))
    except (IndexError, ValueError):
        return LineNow()
    paused = (paused_us - now_us) / 1e6 if paused_us > now_us else None
    starts = max(0, last_us - now_us) / 1e6 if waiting else None
    return LineNow(waiting, waiting + extra, starts, paused, slow_now(fields[_NUMBERS + 1 :], mark, now_us))


def slow_now(fields: Sequence[bytes], mark: int, now_us: int) -> SlowNow | None:
    """The slowdown that is stored as *fields*; None: there is none now. *mark*: as for `line_of`."""
    try:
        slow = Slowdown(*map(int, fields)).at(now_us)
        pace = pace_of(slow, mark, 1, now_us)
    except (TypeError, ValueError, ZeroDivisionError):  # of another release
        return None
    if pace is None:
        return None
    heard = now_us < slow.heard_us and pace.each == slow.each_ns
    ends_us = slow.heard_us if heard else slow.back_us
    return SlowNow(1e9 / pace.each, "headers" if heard else "adapt", (ends_us - now_us) / 1e6)
