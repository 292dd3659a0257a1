"""
One decision over several claims: all or nothing. The authority that every store is held to.

Each algorithm says what one claim means (`Algorithm`); this file names no algorithm. The memory store runs it;
lua/throttlekit_lua/acquire.lua and pause.lua mirror it. Change all, or the parity tests fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.claim import StoreClaim
from throttlekit._core.line import EMPTY, GRACE_US, GUESTS_US, Line

__all__ = ["ELSEWHERE", "Caller", "Place", "Reason", "State", "Verdict", "acquire", "kept_until_us", "pause"]

ELSEWHERE = -1
"""The claim number of a `Place` whose line is kept in another store."""


class Caller(Enum):
    """What kind of caller makes the request, and so what a denial writes."""

    JOB = "job"
    """A job, which comes back through its framework: a denial books its place in the line."""
    GUEST = "guest"
    """A caller without a job, which cannot keep a place: a denial suggests an instant."""
    PEEK = "peek"
    """A caller that only looks: the store writes nothing, whatever the answer."""


class Reason(Enum):
    """Why a decision came out as it did."""

    ALLOWED = "allowed"
    EXHAUSTED = "exhausted"
    """The limit has no unit left for this cost now."""
    IN_LINE = "in line"
    """There may be a unit, but other jobs have waited longer."""
    EARLY = "early"
    """The job came back before it is due; it keeps its place."""
    FULL = "queue full"
    """As many jobs wait as the limit allows. Nothing is booked."""
    PAUSED = "paused"
    """No job passes for now: the service downstream answered 429, or an operator paused the limit."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a returning job in the line of claim number `claim`, and when the job is due."""

    claim: int
    due_us: int


class State(NamedTuple):
    """What is stored for one key: the algorithm's own state, and the line. None: nothing is stored."""

    taken: Any = None
    line: Line | None = None


class Verdict(NamedTuple):
    """
    The answer to one request.

    Attributes:
        claim: The number of the binding claim: of those that deny, the one that is due last; 0 when allowed.
        now_us: The instant of the decision, by the store's clock.
        retry_us: The earliest instant at which the request would pass if no other request came.
        due_us: The instant to come back at; `now_us` when allowed.
        uses: What is used of each claim's limit after the decision; None: that claim was not decided.
        asked_us: The instant of the decision on each claim, where several stores with clocks of their own
            decide; else empty.
    """

    reason: Reason
    claim: int
    now_us: int
    retry_us: int
    due_us: int
    uses: tuple[Use | None, ...]
    asked_us: tuple[int, ...] = ()

    @property
    def allowed(self) -> bool:
        return self.reason is Reason.ALLOWED


def acquire(
    claims: Sequence[StoreClaim],
    states: Sequence[State],
    now_us: int,
    *,
    caller: Caller,
    place: Place | None = None,
    max_wait_us: int | None = None,
) -> tuple[Verdict, Sequence[State]]:
    """
    Decide whether every one of *claims* may pass at *now_us*, and charge all of them or none.

    Time is an argument, never read. A denial charges nothing. It moves on the line of the binding claim only. Every
    answer replaces state that is stale (`Algorithm.sanitized`): else each would take the limit for just used up, until
    the clock is as late as it was. A grant to a newcomer ends the lines that were given up: else one job in each grace
    time would pass until their last instant. A peek, and a return before the job is due, change nothing else; but where
    instants are estimates (`Algorithm.estimates`), a job that returns early passes if there is room.

    Args:
        states: What is stored for each claim's key, in the order of *claims*.
        place: The place that a returning job brings. A place that its line does not know (forged, or the line was
            reset) is ignored while it lies ahead: the job books again.
        max_wait_us: How long the job will wait; None means as long as it takes. An instant further off is returned
            and not booked: the job would not come for it, and its units would go unused.

    Returns:
        The verdict, and the states to store: the very objects of *states* where nothing changed.
    """
    states = _as_of_now(states, now_us)
    known = [claim.algorithm.sanitized(state.taken, now_us) for claim, state in zip(claims, states, strict=True)]
    paused = [state.line.paused_us if state.line else 0 for state in states]
    taken = [
        claim.algorithm.exhausted(held, until_us) if until_us else held
        for claim, held, until_us in zip(claims, known, paused, strict=True)
    ]
    lines = [
        _living(state, claim.algorithm, held, now_us) for state, claim, held in zip(states, claims, taken, strict=True)
    ]
    holder = place is not None and place.due_us <= now_us
    early = None
    if place is not None and place.claim != ELSEWHERE and now_us < place.due_us < lines[place.claim].end_us:
        uses = _uses(claims, taken, now_us)
        early = Verdict(Reason.EARLY, place.claim, now_us, place.due_us, place.due_us, uses)
        if not claims[place.claim].algorithm.estimates:
            return early, _mended(states, known)

    binding, due_us, opens_us, retry_us, reason = 0, now_us, now_us, now_us, Reason.ALLOWED
    for i, claim in enumerate(claims):
        if claim.algorithm.size == 0:
            continue
        ready = max(claim.algorithm.ready_us(taken[i], now_us), paused[i])
        opens = ready if holder or early else max(ready, lines[i].end_us)
        if opens <= now_us:
            continue
        retry_us = max(retry_us, opens)
        due = _due(lines[i], opens, caller, holder)
        full = claim.max_queue_us is not None and not holder and opens - max(now_us, paused[i]) > claim.max_queue_us
        if reason is not Reason.FULL and (due > due_us or full):
            binding, due_us, opens_us = i, due, opens
            reason = Reason.FULL if full else Reason.EXHAUSTED if ready > now_us else Reason.IN_LINE
            reason = Reason.PAUSED if paused[i] > now_us and not full else reason

    if early is not None and reason is not Reason.ALLOWED:
        return early, _mended(states, known)
    if caller is Caller.PEEK:
        verdict = Verdict(reason, binding, now_us, retry_us, due_us, _uses(claims, taken, now_us))
        return verdict, _mended(states, known)
    changed = list(states)
    if reason is Reason.ALLOWED:
        taken = [claim.algorithm.admit(held, now_us) for held, claim in zip(taken, claims, strict=True)]
    elif reason is not Reason.FULL and (max_wait_us is None or due_us - now_us <= max_wait_us):
        algorithm, spacing_us = claims[binding].algorithm, claims[binding].spacing_us
        distance_us = algorithm.distance_us(taken[binding], now_us, spacing_us)
        line = _book(lines[binding], due_us + distance_us, opens_us, caller, holder)
        changed[binding] = State(states[binding].taken, line)
    for i, claim in enumerate(claims):
        if claim.algorithm.size == 0:
            continue
        if reason is Reason.ALLOWED:
            changed[i] = State(taken[i], _after_grant(lines[i], changed[i].line, holder or early is not None))
        elif known[i] is not states[i].taken:
            changed[i] = State(known[i], changed[i].line)
    return Verdict(reason, binding, now_us, retry_us, due_us, _uses(claims, taken, now_us)), changed


def pause(state: State, now_us: int, for_us: int | None) -> State:
    """
    Let no job pass for *for_us*, unless a longer pause is in force; None: end the pause now.

    When the pause ends, the limit counts one period's units as used, evenly, up to that instant.
    """
    (state,) = _as_of_now([state], now_us)
    line, until_us = state.line or EMPTY, now_us + (for_us or 0)
    if line.paused_us <= now_us if for_us is None else line.paused_us >= until_us:
        return state
    return State(state.taken, replace(line, paused_us=until_us, paused_from_us=now_us))


def kept_until_us(state: State, algorithm: Algorithm, now_us: int) -> int:
    """The instant from which the line of *state* means nothing any more."""
    line = state.line or EMPTY
    last_us = max(line.end_us, line.guest_us, line.paused_us)
    if not line.paused_us:
        return last_us
    taken = algorithm.exhausted(algorithm.sanitized(state.taken, now_us), line.paused_us)
    return max(last_us, algorithm.use(taken, now_us).full_us)


def _uses(claims: Sequence[StoreClaim], taken: Sequence[Any], now_us: int) -> tuple[Use, ...]:
    return tuple(claim.algorithm.use(held, now_us) for claim, held in zip(claims, taken, strict=True))


def _as_of_now(states: Sequence[State], now_us: int) -> Sequence[State]:
    """*states* with their lines as they count now: the very sequence, unless a clock has stepped back."""
    if not any(state.line and state.line.paused_from_us > now_us for state in states):
        return states
    return [State(state.taken, state.line and state.line.at(now_us)) for state in states]


def _mended(states: Sequence[State], known: Sequence[Any]) -> Sequence[State]:
    """*states* with what is *known* to be taken of each: the very sequence, unless something was stale."""
    if all(held is state.taken for held, state in zip(known, states, strict=True)):
        return states
    return [State(held, state.line) for held, state in zip(known, states, strict=True)]


def _living(state: State, algorithm: Algorithm, taken: Any, now_us: int) -> Line:
    """The key's line; empty once units have lain idle for the grace time: the jobs in it are not coming."""
    if state.line is None:
        return EMPTY
    busy_until_us = 0 if taken is None else algorithm.busy_until_us(taken, now_us)
    if now_us - max(busy_until_us, state.line.paused_us) >= GRACE_US:
        return state.line.cleared() or EMPTY
    return state.line


def _after_grant(line: Line, stored: Line | None, right_of_way: bool) -> Line | None:
    """The line after a grant: a grant ends a pause, and a grant to a newcomer ends a line that was given up."""
    if line.paused_us:
        return replace(line, paused_us=0, paused_from_us=0) if line.end_us or line.guest_us else None
    return None if line is EMPTY and not right_of_way else stored


def _due(line: Line, opens_us: int, caller: Caller, holder: bool) -> int:
    if holder:
        return max(line.late_us, opens_us)
    if caller is Caller.GUEST:
        return max(line.guest_us, opens_us)
    return opens_us


def _book(line: Line, after_us: int, opens_us: int, caller: Caller, holder: bool) -> Line:
    if holder:
        return replace(line, late_us=after_us)
    if caller is Caller.GUEST:
        return replace(line, guest_us=min(after_us, opens_us + GUESTS_US))
    return replace(line, tail_us=after_us)
