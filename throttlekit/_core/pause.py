"""What stops all jobs of a limit for a while, or slows it down: an operator, or the service downstream."""

from __future__ import annotations

import math

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Stored
from throttlekit._core.slowdown import Fall, Heard, fallen, heard
from throttlekit._core.waitlist import Pause, Waitlist

__all__ = ["clear", "pause", "slow"]


def pause(state: Stored, now_us: int, for_us: int | None, *, emptied: bool = False) -> Stored:
    """
    Let no job pass for *for_us*, unless a longer pause is in force; None: end the pause now.

    Args:
        emptied: The service downstream answered 429: once *for_us* is over, one period's units count as used, evenly,
            up to that instant. A 429 and a pause end each in their own time: neither shortens the other.
    """
    waitlist = state.waitlist or Waitlist()
    known = waitlist.pause.at(now_us)
    if for_us is None:
        waitlist.pause = Pause(min(known.until_us, now_us), now_us, min(known.emptied_us, now_us))
    else:
        until_us = now_us + for_us
        waitlist.pause = Pause(max(known.until_us, until_us), now_us, max(known.emptied_us, until_us if emptied else 0))
    return Stored(state.taken, waitlist)


def slow(state: Stored, claim: StoreClaim, why: Fall | Heard, now_us: int) -> Stored:
    """Slow the limit down, as the service downstream has refused a job of *claim*, or said what is left."""
    waitlist, algorithm = state.waitlist or Waitlist(), claim.algorithm
    known, slow = waitlist.pause.at(now_us), waitlist.slow and waitlist.slow.at(now_us)
    if isinstance(why, Fall):
        waitlist.slow = fallen(slow, why, known.until_us, now_us)
    else:
        taken = algorithm.adopted(algorithm.sanitized(state.taken, now_us), now_us)
        if known.emptied_us:
            taken = algorithm.exhausted(taken, known.emptied_us)
        more = math.floor(why.reset_us / (max(1, algorithm.mark) / 1000))
        waitlist.slow = heard(slow, why, algorithm.there(taken, now_us) + more, now_us)
    return Stored(state.taken, waitlist)


def clear(state: Stored) -> Stored:
    """Remove all jobs that wait."""
    waitlist = state.waitlist
    if waitlist is None or (waitlist.pause == Pause() and waitlist.slow is None):
        return Stored(state.taken)
    return Stored(state.taken, Waitlist(pause=waitlist.pause, slow=waitlist.slow))
