"""
One decision over several claims: all or nothing. The authority that every store is held to.

Each algorithm says what one claim means (`Algorithm`); this file names no algorithm. line.py says where a job stands.
The memory store runs it; lua/throttlekit_lua/acquire.lua, leave.lua, pause.lua and slow.lua mirror it. Change all, or
the parity tests fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from throttlekit._core.absence import overtaken, tidied
from throttlekit._core.algorithm import Algorithm
from throttlekit._core.claim import StoreClaim
from throttlekit._core.line import (
    AT_DOOR,
    EMPTY,
    FURTHEST_US,
    GRACE_US,
    GUESTS_US,
    LOOK_US,
    Ahead,
    Line,
    Place,
    Standing,
    ahead_of,
    begun,
    charged,
    genuine,
    joined,
    left,
    passed,
    promised,
    signed,
    standing,
)  # fmt: skip
from throttlekit._core.slowdown import Fall, Heard, Pace, after_429, pace_of, paced, ready_after, slowed
from throttlekit._core.verdict import Caller, Reason, Verdict

__all__ = ["State", "acquire", "kept_until_us", "leave", "pause", "slow"]


class State(NamedTuple):
    """What is stored for one key: the algorithm's own state, and the line. None: nothing is stored."""

    taken: Any = None
    line: Line | None = None


class _Look(NamedTuple):
    """One claim of a request, as it was found."""

    taken: Any
    line: Line
    place: Place | None
    """What the job brings, if the line gave it."""
    stands: Standing
    before: Ahead
    """What stands before it."""
    ahead: Ahead
    """What it waits for: less, where a unit would be lost meanwhile."""
    there: int
    ready_us: int
    """When there is a unit for the job alone."""
    passes_us: int
    """When there are units for it and for all before it, and no pause."""
    back_us: int
    """When the job is to come back: sooner, if others were set aside just now, and more may be then."""
    pace: Pace | None = None
    """How the limit is slowed down."""
    idle_us: int = 0
    """For how long it has lost what came, before a job that has a place; 0 while it is paused or slowed down."""


def acquire(
    claims: Sequence[StoreClaim],
    states: Sequence[State],
    now_us: int,
    *,
    caller: Caller,
    places: Sequence[Place | None] = (),
    max_wait_us: int | None = None,
    grace_us: int = GRACE_US,
    secret: str = "",
) -> tuple[Verdict, Sequence[State]]:
    """
    Decide whether every one of *claims* may pass at *now_us*, and charge all of them or none.

    Time is an argument, never read. A denial charges nothing. The job then stands in the line of each claim that
    denies it, and in no other: it leaves the lines of those that would let it pass, and keeps its place there in its
    ticket; without shares and a bound on the queue, it gets one there if it had none. Right of way in one line never
    counts in another. Every denial keeps what was set aside. Every answer
    replaces state that is stale (`Algorithm.sanitized`): else each would take the limit for just used up, until the
    clock is as late as it was. A peek changes nothing else; any other answer also replaces what another rate wrote.

    Args:
        states: What is stored for each claim's key, in the order of *claims*.
        places: The places that a returning job brings, one for each claim, or none at all. A place that its line did
            not give (forged, or the line lost its state) is ignored.
        max_wait_us: How long the job will wait; None means as long as it takes. A job whose instant is further off
            gets no place, and leaves the lines in which it stood: it would not come for its units. 0: it waits for no
            new instant; one that comes back early, to no later instant than it had, waits on.
        grace_us: How long units lie for the job before it is taken not to come, once it waits.
        secret: Seals the places of a line that begins now: any text that callers cannot guess.

    Returns:
        The verdict, and the states to store: the very objects of *states* where nothing changed.
    """
    states = _as_of_now(states, now_us)
    believed = [claim.algorithm.sanitized(state.taken, now_us) for claim, state in zip(claims, states, strict=True)]
    known = [claim.algorithm.adopted(taken, now_us) for claim, taken in zip(claims, believed, strict=True)]
    given = places or (None,) * len(claims)
    looks = [
        _look(claim, taken, state.line or EMPTY, place, now_us, caller, grace_us, secret)
        for claim, taken, state, place in zip(claims, known, states, given, strict=True)
    ]
    verdict = _verdict(claims, looks, now_us, caller)
    uses = [claim.algorithm.use(look.taken, now_us) for look, claim in zip(looks, claims, strict=True)]
    if caller is Caller.PEEK:
        return verdict._replace(uses=tuple(uses)), _mended(states, believed)
    changed = list(states)
    if verdict.allowed:
        for i, (claim, look) in enumerate(zip(claims, looks, strict=True)):
            if claim.algorithm.size:
                taken = claim.algorithm.admit(look.taken, now_us)
                changed[i] = State(taken, _after_grant(claim, look, states[i].line, now_us))
                uses[i] = claim.algorithm.use(taken, now_us)
                if look.idle_us:
                    uses[i] = uses[i]._replace(units=look.idle_us)
        return verdict._replace(uses=tuple(uses)), changed
    at_hand = zip(looks, states, strict=True)
    tidy = [look.line if state.line and state.line.jobs else state.line for look, state in at_hand]
    if verdict.reason is Reason.FULL:
        tidied_states = zip(states, tidy, strict=True)
        kept = [state if line is state.line else State(state.taken, line) for state, line in tidied_states]
        return verdict._replace(uses=tuple(uses)), _mended(kept, known)
    told_us = max(look.passes_us for look in looks)
    held = looks[verdict.claim].place
    no_later = verdict.reason is Reason.EARLY and held is not None and verdict.due_us <= held.due_us
    patient = max_wait_us is None or verdict.due_us - now_us <= max_wait_us or (max_wait_us == 0 and no_later)
    sealed: list[Place | None] = list(given)
    for i, (claim, look, state) in enumerate(zip(claims, looks, states, strict=True)):
        if not claim.algorithm.size:
            continue
        line = tidy[i]
        if caller is Caller.GUEST:
            if i == verdict.claim and patient:
                after_us = verdict.due_us + claim.algorithm.pace_us(look.taken, now_us)
                line = replace(look.line, guest_us=min(after_us, look.passes_us + GUESTS_US))
        elif look.passes_us > now_us and patient:
            line = charged(look.line, claim.tenant, look.stands, claim.step)
            line = joined(line, look.stands, look.there, claim.algorithm.mark, now_us, told_us, grace_us, claim.step)
            sealed[i] = signed(line, claim.bucket, look.stands.entry.start, look.stands.entry.number, told_us)
        else:
            if look.stands.waits:
                line = left(look.line, look.stands.entry, look.before.least)
            place, entry = look.place, look.stands.entry
            if patient and caller is Caller.JOB and not claim.step and claim.max_queue is None:
                # In the order of coming: the jobs that this line denies meanwhile stand behind it.
                line, sealed[i] = promised(line or EMPTY, claim.bucket, claim.cost, given[i], now_us, secret, told_us)
            elif place is not None and not look.stands.tags and entry.number == place.number:
                sealed[i] = signed(look.line, claim.bucket, entry.start, entry.number, told_us)
        if line is not state.line or known[i] is not state.taken:
            changed[i] = State(known[i], line)
    given_any = patient and caller is not Caller.GUEST
    return verdict._replace(uses=tuple(uses), places=tuple(sealed) if given_any else ()), changed


def leave(state: State, claim: StoreClaim, place: Place, now_us: int) -> State:
    """The state once the job with *place* waits no longer: it expired, or was revoked, cancelled or deleted."""
    (state,) = _as_of_now([state], now_us)
    line = state.line or EMPTY
    known = genuine(line, claim.bucket, place)
    if known is None:
        return state
    stands = standing(line, claim.tenant, claim.cost, claim.step, claim.lead, known, now_us, 0, first=False)
    if not stands.waits:
        return state
    return State(state.taken, left(line, stands.entry, ahead_of(line, stands.entry).least))


def pause(state: State, now_us: int, for_us: int | None, *, emptied: bool = False) -> State:
    """Let no job pass for *for_us*, or end the pause: see `Pause.changed`."""
    (state,) = _as_of_now([state], now_us)
    line = state.line or EMPTY
    known = line.pause
    changed = known.changed(now_us, for_us, emptied=emptied)
    return state if changed is known else State(state.taken, line.with_pause(changed))


def slow(state: State, claim: StoreClaim, why: Fall | Heard, now_us: int) -> State:
    """The state once the service downstream has refused a job of *claim*, or said what is left."""
    (state,) = _as_of_now([state], now_us)
    line = state.line or EMPTY
    changed = slowed(line.slow, why, claim.algorithm, state.taken, line.pause, now_us)
    return state if changed is line.slow else State(state.taken, replace(line, slow=changed))


def kept_until_us(state: State, algorithm: Algorithm, now_us: int) -> int:
    """The instant from which the line of *state* means nothing any more."""
    line = state.line or EMPTY
    last_us = max(line.until_us, line.guest_us, line.paused_us, 0 if line.slow is None else line.slow.last_us)
    if not line.emptied_us:
        return last_us
    known = algorithm.adopted(algorithm.sanitized(state.taken, now_us), now_us)
    return max(last_us, algorithm.use(after_429(algorithm, known, line.emptied_us), now_us).full_us)


def _as_of_now(states: Sequence[State], now_us: int) -> Sequence[State]:
    """*states* with their lines as they count now: the very sequence, unless a clock has stepped back."""
    lines = [state.line and state.line.at(now_us) for state in states]
    if all(line is state.line for line, state in zip(lines, states, strict=True)):
        return states
    return [State(state.taken, line) for line, state in zip(lines, states, strict=True)]


def _mended(states: Sequence[State], known: Sequence[Any]) -> Sequence[State]:
    """*states* with what is *known* to be taken of each: the very sequence, unless something was stale."""
    if all(held is state.taken for held, state in zip(known, states, strict=True)):
        return states
    return [State(held, state.line) for held, state in zip(known, states, strict=True)]


def _look(
    claim: StoreClaim, taken: Any, line: Line, place: Place | None, now_us: int, caller: Caller, grace_us: int,
    secret: str,
) -> _Look:  # fmt: skip
    algorithm = claim.algorithm
    taken = after_429(algorithm, taken, line.emptied_us)
    if algorithm.size == 0:
        return _Look(taken, line, None, _NOWHERE, _NOBODY, _NOBODY, 0, now_us, now_us, now_us)
    pace = None if line.slow is None else pace_of(line.slow, algorithm.mark, claim.cost, now_us)
    ready = partial(ready_after, algorithm, taken, pace)
    ready_us = ready(0, now_us)
    if not line.jobs and ready_us <= now_us and line.paused_us <= now_us:
        return _Look(taken, line, None, _NOWHERE, _NOBODY, _NOBODY, 0, now_us, now_us, now_us, pace)
    there = algorithm.there(taken, now_us)
    there = there if pace is None else pace.there(now_us, there)
    line = begun(line, now_us, secret)
    place = genuine(line, claim.bucket, place)
    own = place.number if place is not None else 0
    line, soon = tidied(line, there, algorithm.mark, now_us, grace_us, own)
    first = caller is Caller.AGAIN
    longest_us = max(grace_us, line.grace_us)
    stands = standing(line, claim.tenant, claim.cost, claim.step, claim.lead, place, now_us, longest_us, first)
    ahead = before = ahead_of(line, stands.entry)
    if algorithm.estimates:  # slots are lost, and their instants not known; but the first must not be passed for ever
        due = not line.over_us or now_us < line.over_us + LOOK_US + longest_us
    else:
        due = place is not None and place.due_us <= now_us
    kept = not stands.tags and place is not None and due
    if kept and line.paused_us <= now_us and algorithm.tight(longest_us):
        # A unit would be lost while it waits for the job in front. Where there is none, only a few come back for the
        # next, or each would as often as jobs are due. Where instants are estimates, a job comes in its turn.
        about = 0 if ready_us <= now_us else max(0, ahead.about - (0 if algorithm.estimates else AT_DOOR))
        ahead = Ahead(about, about)
    # No job passes before a pause ends: what will be there then is known, but where instants are estimates.
    opens_us = now_us if algorithm.estimates else max(now_us, line.paused_us)
    passes_us = ready(ahead.about, opens_us) if ahead.about else ready_us
    if passes_us > opens_us:
        passes_us += ahead.about * algorithm.slack_us(longest_us)
        passes_us = min(passes_us, now_us + FURTHEST_US)
    soon_us = now_us + longest_us
    if passes_us <= now_us and ahead.most > ahead.about and ready(ahead.most, now_us) > now_us:
        passes_us = soon_us  # no job passes by a guess
    back_us = max(min(passes_us, soon_us) if soon else passes_us, line.paused_us)
    passes_us = max(passes_us, line.paused_us)
    idle_us = 0 if place is None or pace is not None or line.paused_us else algorithm.idle_us(taken, now_us)
    return _Look(taken, line, place, stands, before, ahead, there, ready_us, passes_us, back_us, pace, idle_us)


_NOBODY = Ahead()
_NOWHERE = standing(EMPTY, "", 1, 1, 0, None, 0, 0, first=False)


def _verdict(claims: Sequence[StoreClaim], looks: Sequence[_Look], now_us: int, caller: Caller) -> Verdict:
    reason, binding, due_us, retry_us = Reason.ALLOWED, 0, now_us, now_us
    for i, (claim, look) in enumerate(zip(claims, looks, strict=True)):
        if look.passes_us <= now_us:
            continue
        line = look.line
        retry_us = max(retry_us, look.passes_us)
        due = look.back_us
        if caller is Caller.GUEST and line.guest_us <= look.passes_us + GUESTS_US:
            due = max(line.guest_us, due)
        newcomer = look.stands.tags == "finishes" and not claim.algorithm.holds(look.taken, now_us)
        full = claim.max_queue is not None and newcomer and len(line.jobs) >= claim.max_queue
        if reason is not Reason.FULL and (due > due_us or full):
            binding, due_us = i, due
            place = look.place
            if full:
                reason = Reason.FULL
            elif place is not None and place.due_us > now_us:
                reason = Reason.EARLY
            elif line.paused_us > now_us:
                reason = Reason.PAUSED
            else:
                reason = Reason.EXHAUSTED if look.ready_us > now_us else Reason.IN_LINE
    return Verdict(reason, binding, now_us, retry_us, due_us, ())


def _after_grant(claim: StoreClaim, look: _Look, stored: Line | None, now_us: int) -> Line | None:
    """The line after a grant: a grant ends a pause. Where no job waits, nothing else is written."""
    line = look.line
    if stored is not None and stored.slow is not None:
        after = paced(stored.slow, look.pace, now_us)
        line, stored = replace(line, slow=after), replace(stored, slow=after)
    if stored is None or not stored.jobs:
        after_pause = stored and stored.unpaused()
        return after_pause if after_pause and (after_pause.epoch or after_pause.slow) else None
    if claim.algorithm.holds(look.taken, now_us):  # it takes nothing of what the others wait for
        return (left(line, look.stands.entry, look.before.least) if look.stands.waits else line).unpaused()
    over_us = min(line.over_us or now_us, now_us) if look.before.least else 0
    line = charged(line, claim.tenant, look.stands, claim.step)
    in_order = not claim.step and claim.max_queue is None
    if in_order and look.before.least > look.ahead.least and 2 * look.idle_us >= claim.algorithm.size:
        line = overtaken(line, look.stands.entry, now_us)
    return passed(line, look.stands, look.ahead.least, over_us)
