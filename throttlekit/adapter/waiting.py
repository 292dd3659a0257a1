"""Where a job waits in a line, and which line moves faster than its jobs know: for the adapters of RQ and huey."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from throttlekit._core.decision import Charged, Decision
from throttlekit._engine.ticket import Ticket, limit_ref
from throttlekit.adapter.outcome import Run

__all__ = [
    "Lane", "lane_behind", "lane_in", "leaves_units",
]  # fmt: skip

_SOON = 0.03
"""Seconds. A job that is granted no sooner than this before it is expected is on time."""

_LATE_US = 5000
"""Jobs come a little late: what a limit loses in so many µs says nothing."""


class Lane(NamedTuple):
    """
    The line in which a job waits, and where it stands there.

    Attributes:
        name: Stands for the line; "" if the job stands in none.
        start, number: Its place: lower ones go first.
        slots: Whether it waits for a slot of a concurrency limit.
        sooner: By how many seconds it is to come sooner than its place says, guessing that those before it do not come.
        told_us: When it is to come by its place, by the store's clock; 0: not known.
    """

    name: str = ""
    start: int = 0
    number: int = 0
    slots: bool = False
    sooner: float = 0.0
    told_us: int = 0

    @property
    def place(self) -> tuple[str, int, int]:
        """Where it stands: the same after each answer, for as long as it keeps its place."""
        return self.name, self.start, self.number


def lane_in(ticket: Mapping[str, Any] | None) -> Lane:
    """Where a job that carries *ticket* stands."""
    return _lane_of(Ticket.read(ticket))


def _lane_of(ticket: Ticket) -> Lane:
    place = ticket.places.get(ticket.limit_ref)
    if place is None:
        return Lane(ticket.line, slots=ticket.slots)
    sooner = max(0, place.due_us - ticket.due_us) / 1_000_000
    return Lane(ticket.line, place.start, place.number, ticket.slots, sooner, place.due_us)


def leaves_units(decision: Decision | None, lain: float = _SOON) -> bool:
    """
    Whether a grant leaves enough for as much again that has *lain* there for so many seconds, or more than half of what
    can pass at once: then the job that stands next in the line may not have to wait for its instant. So it is after a
    rate was raised, where each job comes on time, by the old rate.
    """
    if decision is None or not decision.allowed or decision.remaining < max(1, decision.cost):
        return False
    limit, remaining = decision.limit, decision.remaining
    return 2 * remaining > limit.capacity or remaining * limit.period_us > limit.amount * lain * 1_000_000


def lane_behind(run: Run, *, early: float | None = None, lain: float = _SOON) -> str:
    """
    The name of the lane whose next job is to ask at once, as *run* was granted; "": none is.

    So it is if the grant leaves units, if the limit was full and has lost half of what the job took or more, or if the
    job was granted before it was expected, by `_SOON`, or by as much as that where the burst is small: the line moves
    faster than its jobs know.

    Args:
        early: By how many seconds, by the `expected` of its entry. None: as its ticket says, by the first answer that
            it had: those behind it know no more.
        lain: For `leaves_units`. Infinite where a job that is made to ask goes before those that have never asked.
    """
    ticket, decision = Ticket.read(run.job.ticket), run.decision
    lane = _lane_of(ticket)
    # When a slot comes free is a guess: one that came early says nothing of the next.
    if not lane.name or lane.slots or decision is None:
        return ""
    if early is None and decision.charged:
        early = ((ticket.told_us or ticket.due_us) - decision.charged[0].at_us) / 1_000_000
    early_us = (early or 0.0) * 1_000_000
    if early_us > _SOON * 1_000_000 or leaves_units(decision, lain):
        return lane.name
    for charged in decision.charged:
        if limit_ref(charged.limit) == ticket.limit_ref and charged.limit.amount:
            return lane.name if _has_lost(charged, early_us) else ""
    return ""


def _has_lost(charged: Charged, early_us: float) -> bool:
    """Whether a limit has lost units that a grant would else have left; or, of a small burst, may have."""
    limit = charged.limit
    unit_us = limit.period_us / limit.amount
    half_us = max(_LATE_US, charged.cost * unit_us / 2)
    is_small = limit.capacity <= 2 * charged.cost or limit.capacity * unit_us <= 2 * _SOON * 1_000_000
    return charged.idle_us > half_us or (early_us > half_us and is_small)
