"""
Changes of waitlists without a request of a job (jobs that are gone, pauses, slow-downs, returned units), and queries of
operators.

decide.py decides the requests of jobs. Every change in this file ends in the same way: jobs for which there are units
are woken.

lua/throttlekit_lua/wait_forget.lua, wait_pause.lua, wait_slow.lua, wait_settle.lua, wait_return.lua, wait_clear.lua,
wait_where.lua, wait_list.lua mirror this file. Change all, or the parity tests fail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from throttlekit._core.algorithm import Algorithm
from throttlekit._core.answer import WITHOUT_JOB, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import ONLY_LOOKS, Stored, find_claim, make_entry, wake_and_store
from throttlekit._core.latency import Drop
from throttlekit._core.slowdown import Pause, Refusal, Remaining, apply_refusal, apply_remaining
from throttlekit._core.waitlist import KEPT_US, Place, Ring, State, Waitlist

__all__ = [
    "Charge",
    "Waiting",
    "Where",
    "clear",
    "forget",
    "kept_until_us",
    "list_waiting",
    "pause",
    "return_units",
    "slow",
    "where",
]


class Charge(NamedTuple):
    """
    A charge of one limit that has to be returned, because another store denied the request.

    Attributes:
        granted_us: The time of the charge. If it is None, nothing was charged, and the job only gets a position.
        full_us: `Use.full_us` after the charge.
        place: The position of the job on the list, or None if the job had no entry.
        turn_us: The time for which the job keeps its turn, from now on, or None if it has no turn.
    """

    claim: StoreClaim
    granted_us: int | None = None
    full_us: int = 0
    place: Place | None = None
    turn_us: int | None = None

    @property
    def bucket(self) -> str:
        return self.claim.bucket


class Where(NamedTuple):
    """
    The position of a job on one list.

    Attributes:
        claim: The number of the claim to which the list belongs.
        state: The state of the job's entry: kept if the job waits on another list.
        position: The number of jobs that wait ahead of it.
        in_us: The estimated time until its request passes, if each job ahead of it takes as many units.
        for_us: The time since its first denial.
    """

    claim: int
    state: State
    position: int
    in_us: int
    for_us: int


class Waiting(NamedTuple):
    """
    The jobs of one list.

    Attributes:
        jobs: The number of jobs that wait to be woken.
        woken: The number of woken jobs that have not requested their units.
        owners: The number of owners with waiting jobs.
        first: The first waiting jobs: the owner and the id of each.
    """

    jobs: int = 0
    woken: int = 0
    owners: int = 0
    first: tuple[tuple[str, str], ...] = ()


def forget(
    claim: StoreClaim, state: Stored, now_us: int, ids: Sequence[str], owner: str, ring: Ring, *, keep: bool = False
) -> Stored:
    """
    Remove jobs that no longer wait, because they expired, or were revoked, cancelled or deleted. Then wake other jobs.
    Without *ids*, only wake jobs after a change of the limit, such as returned units, a higher rate or a pause's end.

    Args:
        owner: Remove only entries of this owner, because another owner may have the message now. If it is "", remove
            entries of any owner.
        keep: Keep the positions of the jobs instead, because something outside the store delays them.
    """
    if state.waitlist is None or not state.waitlist.epoch:
        return state
    found = find_claim(claim, state, now_us, WITHOUT_JOB)
    for id in ids:
        entry = found.waitlist.entries.get(id)
        if entry is None or owner not in ("", entry.owner):
            continue
        if keep:
            found.waitlist.keep(entry, entry.owner, now_us + KEPT_US)
        else:
            found.waitlist.forget(entry)
    return wake_and_store(found, now_us, ring)


def pause(claim: StoreClaim, state: Stored, now_us: int, for_us: int | None, emptied: bool, ring: Ring) -> Stored:
    """Pause a limit, or end its pause: see `Pause.change`. Then wake jobs."""
    waitlist = state.waitlist or Waitlist()
    waitlist.pause = waitlist.pause.at(now_us).change(now_us, for_us, emptied=emptied)
    return _find_and_wake(claim, Stored(state.taken, waitlist), now_us, ring)


def slow(claim: StoreClaim, state: Stored, now_us: int, why: Refusal | Remaining | Drop, ring: Ring) -> Stored:
    """
    Slow a limit down after a refusal or a report, or reduce the slots of a limit that adapts to latency. Then wake
    jobs, because the pace may also have risen.
    """
    algorithm: Any = claim.algorithm
    if isinstance(why, Drop):
        known = algorithm.sanitize(state.taken, now_us)
        after = algorithm.apply_drop(known, now_us, why.granted_us)
        return _find_and_wake(claim, state if after is known else state._replace(taken=after), now_us, ring)
    found = find_claim(claim, state, now_us, WITHOUT_JOB)
    waitlist = found.waitlist
    if isinstance(why, Refusal):
        waitlist.slow = apply_refusal(waitlist.slow, why, waitlist.pause.until_us, now_us)
    else:
        until_reset = -(-why.reset_us * 1000 // max(1, algorithm.mark))
        ours = algorithm.there(found.taken, now_us) + until_reset
        waitlist.slow = apply_remaining(waitlist.slow, why, ours, now_us)
    return _find_and_wake(claim, Stored(state.taken, waitlist), now_us, ring)


def return_units(charge: Charge, state: Stored, now_us: int, requester: Requester, ring: Ring, epoch: str) -> Stored:
    """
    Return the units of one claim, because another store denied the request. Then wake jobs.

    The job keeps its position and its turn. A bucket that was full before the charge has gained units since, which it
    would have lost without the charge. Only the rest of the charge is returned, so that at most the burst passes at
    once.

    Args:
        requester: The caller. If its job is "", it gets no position. Its time of waiting and number of denials include
            the denial by the other store.
    """
    claim = charge.claim
    algorithm = claim.algorithm
    if not algorithm.size:
        return state
    known = algorithm.sanitize(state.taken, now_us)
    if charge.granted_us is not None:
        by = algorithm.size
        if algorithm.overflows:
            by -= min(by, max(0, now_us - (charge.full_us - by)))
        known = algorithm.settle(known, now_us, charge.granted_us, -by) if by else known
    found = find_claim(claim, Stored(known, state.waitlist), now_us, requester)
    if requester.job and found.entry is None:
        turn_us = 0 if charge.turn_us is None else now_us + charge.turn_us
        entry = make_entry(found, now_us, requester, epoch, charge.place)
        found.waitlist.keep(entry, requester.owner, now_us + KEPT_US, turn_us)
    return wake_and_store(found, now_us, ring)


def clear(state: Stored) -> Stored:
    """Remove all entries of one list, but not its pause and slow-down. The owners notice that the epoch has changed."""
    waitlist = state.waitlist
    if waitlist is None or not waitlist.epoch:
        return state
    left = Waitlist(pause=waitlist.pause, slow=waitlist.slow)
    return Stored(state.taken, None if left.is_plain else left)


def where(claims: Sequence[StoreClaim], states: Sequence[Stored], now_us: int, id: str) -> Sequence[Where]:
    """Find the entries of a job on the lists of *claims*."""
    found: list[Where] = []
    for i, (claim, state) in enumerate(zip(claims, states, strict=True)):
        entry = state.waitlist.entries.get(id) if state.waitlist is not None else None
        if entry is None:
            continue
        each = find_claim(claim, state, now_us, ONLY_LOOKS)
        position, at_us = 0, entry.at_us
        if entry.state is not State.WOKEN:
            owners = each.waitlist.owners.values()
            position = sum(bisect_left(owner.waiting, (entry.place, "")) for owner in owners)
            ahead = each.waitlist.units_held(now_us) + position * entry.cost
            at_us = max(each.ready(ahead), each.waitlist.pause.until_us)
        for_us = max(0, now_us - entry.since_us)
        found.append(Where(i, entry.state, position, max(0, at_us - now_us), for_us))
    return found


def list_waiting(state: Stored, most: int) -> Waiting:
    """Count the jobs on one list, and return at most *most* of the first waiting jobs."""
    if state.waitlist is None:
        return Waiting()
    owners = state.waitlist.owners.values()
    order = sorted((place, owner.name, id) for owner in owners for place, id in owner.waiting)
    woken = sum(len(owner.woken) for owner in owners)
    first = tuple((name, id) for _, name, id in order[:most])
    return Waiting(len(order), woken, sum(bool(owner.waiting) for owner in owners), first)


def kept_until_us(algorithm: Algorithm, stored: Stored, now_us: int) -> int:
    """
    Return the time at which a waitlist expires: two days from now, or the end of its pause or slow-down if that is
    later. A waitlist that has only retry times of callers without a position expires at the last of these times.
    """
    waitlist = stored.waitlist or Waitlist()
    if not waitlist.epoch and waitlist.pause == Pause() and waitlist.slow is None:
        return waitlist.next_retry_us
    last_us = max(now_us + KEPT_US, waitlist.pause.until_us, waitlist.slow.last_us if waitlist.slow else 0)
    if not waitlist.pause.emptied_us:
        return last_us
    known = algorithm.adopt_rate(algorithm.sanitize(stored.taken, now_us), now_us)
    return max(last_us, algorithm.use(algorithm.exhaust(known, waitlist.pause.emptied_us), now_us).full_us)


def _find_and_wake(claim: StoreClaim, state: Stored, now_us: int, ring: Ring) -> Stored:
    return wake_and_store(find_claim(claim, state, now_us, WITHOUT_JOB), now_us, ring)
