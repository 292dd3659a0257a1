"""
One decision over several claims: all or nothing. The authority that every store is held to.

The memory store runs this file; lua/throttlekit_lua/acquire.lua mirrors it.
Change both, or the parity tests fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from throttlekit._core.gcra import Charge, admit, believed_us, ready_us
from throttlekit._core.line import EMPTY, GRACE_US, GUESTS_US, Line

__all__ = ["Ask", "Caller", "Place", "Reason", "State", "Verdict", "acquire"]


class Caller(Enum):
    """Who asks, and so what a denial writes."""

    JOB = "job"
    """Comes back through its framework: a denial books a slot."""
    GUEST = "guest"
    """Cannot keep a place: a denial suggests an instant."""
    PEEK = "peek"
    """Only looks: nothing is written, whatever the answer."""


class Reason(Enum):
    """Why a decision came out as it did."""

    ALLOWED = "allowed"
    EXHAUSTED = "exhausted"
    """The limit has no unit left for this cost now."""
    IN_LINE = "in line"
    """There may be a unit, but others have waited longer."""
    EARLY = "early"
    """The job came back before its slot; it keeps it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One claim as a store sees it: a charge on a bucket, and the spacing of its line."""

    charge: Charge
    spacing_us: int


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the line of claim number `claim`: the slot that a returning job holds."""

    claim: int
    slot_us: int


@dataclass(frozen=True, slots=True)
class State:
    """What is stored for one key. None: nothing is."""

    tat_us: int | None = None
    line: Line | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The answer to one request.

    Attributes:
        claim: The binding claim: of the denying ones, the one with the latest slot; 0 when allowed.
        now_us: The instant of the decision, by the store's clock.
        retry_us: The earliest instant at which the request would pass if nobody else asks.
        slot_us: The instant to come back at; `now_us` when allowed.
        tats_us: The buckets' states after the decision, one per claim.
    """

    reason: Reason
    claim: int
    now_us: int
    retry_us: int
    slot_us: int
    tats_us: tuple[int | None, ...]

    @property
    def allowed(self) -> bool:
        return self.reason is Reason.ALLOWED


def acquire(
    asks: Sequence[Ask],
    states: Sequence[State],
    now_us: int,
    *,
    caller: Caller,
    place: Place | None = None,
    patience_us: int | None = None,
) -> tuple[Verdict, Sequence[State]]:
    """
    Decide whether every one of *asks* may pass at *now_us*, and charge all of them or none.

    Time is an argument, never read. A denial charges nothing; it moves on the line of the binding
    claim only, and forgets what is stale of every claim's bucket (`believed_us`). A grant without right
    of way ends the lines that were given up: else one job in each grace time would pass until their
    last slot. A peek, and a return before the slot, change nothing at all.

    Args:
        states: What is stored for each claim's key, in the order of *asks*.
        place: The slot that a returning job brings. A place that its line does not know
            (forged, or the line was reset) is ignored while it lies ahead: the job books again.
        patience_us: How long the job will wait for a slot; None means as long as it takes. A slot
            further off is told and not booked: nobody would come for it, and its units would go unused.

    Returns:
        The verdict, and the states to store: the very objects of *states* where nothing changed.
    """
    lines = [_living(state, now_us) for state in states]
    tats = tuple(believed_us(state.tat_us, now_us, ask.charge) for state, ask in zip(states, asks, strict=True))
    holder = place is not None and place.slot_us <= now_us
    if place is not None and now_us < place.slot_us < lines[place.claim].end_us:
        return Verdict(Reason.EARLY, place.claim, now_us, place.slot_us, place.slot_us, tats), states

    binding, slot_us, opens_us, retry_us, reason = 0, now_us, now_us, now_us, Reason.ALLOWED
    for i, ask in enumerate(asks):
        if ask.charge.charge_us == 0:
            continue
        ready = ready_us(tats[i], now_us, ask.charge)
        opens = ready if holder else max(ready, lines[i].end_us)
        if opens <= now_us:
            continue
        retry_us = max(retry_us, opens)
        slot = _slot(lines[i], opens, caller, holder)
        if slot > slot_us:
            binding, slot_us, opens_us = i, slot, opens
            reason = Reason.EXHAUSTED if ready > now_us else Reason.IN_LINE

    if caller is Caller.PEEK:
        return Verdict(reason, binding, now_us, retry_us, slot_us, tats), states
    changed = list(states)
    if reason is Reason.ALLOWED:
        tats = tuple(admit(tat, now_us, ask.charge) for tat, ask in zip(tats, asks, strict=True))
    elif patience_us is None or slot_us - now_us <= patience_us:
        line = _book(lines[binding], slot_us + asks[binding].spacing_us, opens_us, caller, holder)
        changed[binding] = State(states[binding].tat_us, line)
    for i, ask in enumerate(asks):
        if ask.charge.charge_us and tats[i] != states[i].tat_us:
            given_up = reason is Reason.ALLOWED and not holder and lines[i] is EMPTY
            changed[i] = State(tats[i], None if given_up else changed[i].line)
    return Verdict(reason, binding, now_us, retry_us, slot_us, tats), changed


def _living(state: State, now_us: int) -> Line:
    """The key's line; empty once the bucket has stood full for the grace time: those in it are not coming."""
    if state.line is None or state.tat_us is None or now_us - state.tat_us >= GRACE_US:
        return EMPTY
    return state.line


def _slot(line: Line, opens_us: int, caller: Caller, holder: bool) -> int:
    if holder:
        return max(line.late_us, opens_us)
    if caller is Caller.GUEST:
        return max(line.guest_us, opens_us)
    return opens_us


def _book(line: Line, after_us: int, opens_us: int, caller: Caller, holder: bool) -> Line:
    if holder:
        return Line(line.tail_us, after_us, line.guest_us)
    if caller is Caller.GUEST:
        return Line(line.tail_us, line.late_us, min(after_us, opens_us + GUESTS_US))
    return Line(after_us, line.late_us, line.guest_us)
