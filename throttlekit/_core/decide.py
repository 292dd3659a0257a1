"""
One decision over several limits: it charges all of them, or none. This file is the reference for every store.

A decision has four steps. `find_claim` reads the state of each limit. `_verdict` decides. `_grant` charges every limit,
or `_deny` gives the job a position on each waitlist. Then waiting jobs for which there are units are woken.

Example: a job names a rate of 100/minute with nothing left, and 5 slots, of which 2 are free. The rate denies it. The
job waits on the list of the rate, keeps its position on the list of the slots, and is charged nothing.

This file does not depend on an algorithm: `Algorithm` computes what one claim costs, and when it passes. waitlist.py
computes which jobs wait, and which one is next.

lua/throttlekit_lua/decide.lua mirrors this file, step by step. Change both, or the parity tests fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.answer import WITHOUT_JOB, Answer, Caller, Kept, Look, Position, Reason, Requester, Waited
from throttlekit._core.claim import CLASS, CLASSES, StoreClaim
from throttlekit._core.late import early_us, lateness_us
from throttlekit._core.slowdown import Pace, Pause, charge_pace, pace_of, ready_after
from throttlekit._core.storage_keys import is_workflow
from throttlekit._core.waitlist import (
    DEAF,
    FUTURE_US,
    KEPT_US,
    LEAD_US,
    PATIENCE_US,
    Entry,
    Place,
    Ring,
    State,
    Waitlist,
    Wake,
    WakeRules,
)

__all__ = [
    "ONLY_LOOKS",
    "TURN_US",
    "Bell",
    "Found",
    "Stored",
    "bears_early",
    "decide",
    "early_us_of",
    "find_claim",
    "look",
    "make_entry",
    "scarcity",
    "wake_and_store",
]

TURN_US = 1_000_000
"""The time for which a job keeps its turn in a limit while another, less scarce limit delays it."""

_RETRY_SPREAD_US = 60_000_000
"""Retry times of callers without a position are spread over at most this time, because callers may never return."""

_SOONEST_US = 1_000
"""The shortest delay between a denial and the return of the job by its framework."""

Bell = Callable[[str, str, Wake | None], bool]
"""A function like `Ring`, for all lists. Its first argument is the bucket of the list on which the job waits."""

ONLY_LOOKS = Requester(Caller.PEEK)
"""The caller of a query."""


class Stored(NamedTuple):
    """The stored data of one key: the algorithm's state, and the waitlist. Each is None if it is not stored."""

    taken: Any = None
    waitlist: Waitlist | None = None


class Found(NamedTuple):
    """One claim of a request, with the state that was read for it."""

    claim: StoreClaim
    known: Any
    """The stored state of the algorithm, corrected by `Algorithm.sanitize` and `Algorithm.adopt_rate`."""
    taken: Any
    """The same state, after `Algorithm.exhaust` if there was a 429."""
    waitlist: Waitlist
    entry: Entry | None
    turn: bool
    """Whether the job was woken on this list. It keeps its turn if another limit then denies it."""
    ready: Callable[[int], int]
    """
    Returns the time at which the request passes, if the given number of other units pass before it. For a rate, this
    is not before a pause ends.
    """
    passes_us: int
    """The time from which there are units for the job besides those kept for woken jobs; not before a pause ends."""
    until_us: int
    """The job may be granted now if `passes_us` is not later than this time."""
    first: bool
    """Whether no waiting job has to pass before this one. Also true if there is no unit for this job now."""
    pace: Pace | None


def decide(
    claims: Sequence[StoreClaim], states: Sequence[Stored], now_us: int, requester: Requester, bell: Bell, epoch: str
) -> tuple[Answer, Sequence[Stored]]:
    """
    Decide whether every one of *claims* may pass at *now_us*, and charge all of them or none.

    A denial charges nothing. The job then waits on the list of the limit that delays it longest, and keeps its position
    on the lists of the other limits. A woken job passes ahead of all others. A job that was not woken passes only if no
    job waits, or if all waiting jobs are skipped. A job that one limit woke and another limit denied keeps its turn in
    the first limit.

    Args:
        states: The stored data of each claim's key, in the order of *claims*. The waitlists are changed in place.
        bell: Sends a wake to another process.
        epoch: The epoch of each list that is created.

    Returns:
        The answer, and the states to store.
    """
    early_us = early_us_of(claims, requester)
    looks = [find_claim(claim, state, now_us, requester, early_us) for claim, state in zip(claims, states, strict=True)]
    waited, own = _find_wait(looks, now_us, requester), list[tuple[int, Wake]]()
    if requester.caller is not Caller.PEEK:
        for i, each in enumerate(looks):
            if _waits_for_late(each, now_us):
                each.waitlist.wake(_wake_rules(each, now_us), now_us, _ring_of(i, each, requester, bell, own))
                looks[i] = find_claim(claims[i], states[i], now_us, requester, early_us)
    reason, binding, retry_us, ahead = _verdict(looks, now_us, requester.caller, waited)
    if requester.caller is Caller.PEEK:
        kept_as = [
            state._replace(taken=claim.algorithm.sanitize(state.taken, now_us))
            for claim, state in zip(claims, states, strict=True)
        ]
        return Answer(reason, binding, now_us, retry_us, _uses(looks, now_us)), kept_as
    positions: tuple[Position | None, ...] = ()
    kept = None
    if reason is Reason.ALLOWED:
        positions = _positions_of(looks)
        looks = [_grant(each, now_us, retry_us) for each in looks]
    elif reason is not Reason.FULL and requester.job:
        waited = Waited(waited.for_us, waited.denials + 1, binding)
        kept = Kept(binding, _deny(looks, binding, now_us, requester._replace(waited=waited), epoch), ahead)
        if lateness_us(requester.owner):
            comes = [_late_retry_us(each, requester, now_us, early_us) for each in looks]
            retry_us, kept = max(at_us for at_us, _ in comes), kept._replace(position=comes[binding][1])
            _keep_if_over(looks[binding], requester, now_us, retry_us)
    elif reason is not Reason.FULL:
        retry_us = _spread_retry(looks[binding], retry_us, now_us, requester.max_wait_us)
    granted = reason is Reason.ALLOWED
    more, looked = _wake_all(looks, now_us, requester, bell, requester.free + (0 if granted else 1), granted=granted)
    wakes = tuple(sorted((*own, *more), key=lambda each: each[0]))
    uses, known = _uses(looks, now_us), waited if waited.denials else None
    answer = Answer(reason, binding, now_us, retry_us, uses, kept, wakes, looked, positions, waited=known)
    return answer, [_state_to_store(each) for each in looks]


def look(
    claim: StoreClaim, state: Stored, now_us: int, owner: str, free: int, ids: Sequence[str], bell: Bell
) -> tuple[Look, Stored]:
    """
    Look at one list for *owner*: wake jobs, and return those jobs of the owner that may request their units.

    Args:
        claim: A claim of one unit.
        free: The number of free threads of the owner.
        ids: The first jobs that the owner holds. `Look.again` of the result lists those without an entry on the list.
    """
    if state.waitlist is None or not state.waitlist.epoch:
        find_claim(claim, state, now_us, ONLY_LOOKS)  # corrects times of a pause or slow-down that a wrong clock wrote
        return Look("", again=tuple(ids)), state
    found = find_claim(claim, state, now_us, WITHOUT_JOB)
    waitlist = found.waitlist
    if waitlist.look_us <= now_us:
        waitlist.look_us = 0
    again: list[str] = []
    for id in ids:
        entry = waitlist.entries.get(id)
        if entry is None or entry.owner != owner:
            again.append(id)
        elif entry.state is State.KEPT:
            waitlist.enter(entry, owner, None)
    requester = Requester(Caller.JOB, owner=owner)
    _, looked = _wake_all([found], now_us, requester, bell, free)
    wakes = tuple(Wake(id, _in_us(at_us, now_us)) for at_us, id in waitlist.woken_of(owner))
    owners = sum(bool(each.waiting) for each in waitlist.owners.values())
    return Look(waitlist.epoch, wakes, tuple(again), owners, looked[0][1] if looked else None), _state_to_store(found)


def early_us_of(claims: Sequence[StoreClaim], requester: Requester) -> int:
    """Return the time before its units are free at which a woken job may be granted; 0 if a claim does not allow it."""
    if not all(map(bears_early, claims)):
        return 0
    return early_us(requester.owner) if requester.early_us is None else requester.early_us


def bears_early(claim: StoreClaim) -> bool:
    """
    Whether a job may be granted a little before its body begins. A bucket can charge the job for the time at which the
    body begins, and a slot is held until the body ends. A window or a log would charge the job at the time of the
    grant, so the unit would expire too early.
    """
    algorithm = claim.algorithm
    return not algorithm.size or algorithm.overflows or algorithm.estimates


def find_claim(claim: StoreClaim, state: Stored, now_us: int, requester: Requester, early_us: int = 0) -> Found:
    """Read the state of one claim: the units in use, and the waitlist."""
    algorithm, waitlist = claim.algorithm, state.waitlist or Waitlist()
    waitlist.pause = waitlist.pause.at(now_us)
    waitlist.slow = waitlist.slow and waitlist.slow.at(now_us)
    before, emptied_us = algorithm.sanitize(state.taken, now_us), waitlist.pause.emptied_us
    known = algorithm.adopt_rate(before, now_us)
    if known is not before and requester.caller is not Caller.PEEK:
        waitlist.next_retry_us = 0  # retry times were spread at another rate
    taken = algorithm.exhaust(known, emptied_us) if emptied_us else known
    pace = pace_of(waitlist.slow, algorithm.mark, claim.cost, now_us) if algorithm.size else None
    opens_us = now_us if algorithm.estimates else max(now_us, waitlist.pause.until_us)
    ready = partial(ready_after, algorithm, taken, pace, at_us=opens_us)
    entry = waitlist.entries.get(requester.job) if requester.job else None
    turn, until_us, first = _has_turn(entry), now_us, True
    passes_us = max(now_us, waitlist.pause.until_us) if algorithm.size else now_us
    if algorithm.size and not algorithm.holds(taken, now_us):
        kept = 0 if turn else waitlist.units_held(now_us)
        late_us = lateness_us(requester.owner)
        if late_us and entry is not None and not turn:
            ahead = waitlist.rank_of(entry.place, now_us) * claim.cost
            if ready(kept + ahead) <= now_us + late_us:
                turn, kept = True, kept - waitlist.units_held_late(now_us)
        passes_us = max(ready(kept), waitlist.pause.until_us)
        if turn and algorithm.overflows and waitlist.pause.until_us <= now_us:
            until_us = now_us + early_us
        first = turn or passes_us > now_us or not waitlist.comes_first(now_us)
    return Found(claim, known, taken, waitlist, entry, turn, ready, passes_us, until_us, first, pace)


def _verdict(looks: Sequence[Found], now_us: int, caller: Caller, waited: Waited) -> tuple[Reason, int, int, int]:
    """
    Return four values: the reason, the number of the binding claim, the estimated time at which the request passes, and
    the number of jobs on the binding claim's list that this estimate assumes to pass before.
    """
    denies = [i for i, each in enumerate(looks) if each.passes_us > each.until_us or not each.first]
    if not denies:
        return Reason.ALLOWED, 0, max(now_us, *(each.passes_us for each in looks)), 0
    binding = max(denies, key=lambda i: (looks[i].waitlist.pause.until_us > now_us, looks[i].passes_us, -i))
    found = looks[binding]
    retry_us, jobs = found.passes_us, 0
    if not found.turn:
        waitlist, entry = found.waitlist, found.entry
        waiting = sum(len(owner.waiting) for owner in waitlist.owners.values())
        jobs = waiting if entry is None else waitlist.rank_of(entry.place, now_us)
        ahead = jobs * found.claim.cost  # assume that each of these jobs takes as many units as this one
        retry_us = max(retry_us, found.ready(waitlist.units_held(now_us) + ahead))
    if caller is not Caller.AGAIN and not waited.denials and not any(each.entry for each in looks):
        for i, each in enumerate(looks):
            most = each.claim.max_queue
            holds = not each.claim.algorithm.size or each.claim.algorithm.holds(each.taken, now_us)
            if not holds and most is not None and _jobs_on(each.waitlist, now_us) >= most:
                return Reason.FULL, i, retry_us, jobs
    if found.waitlist.pause.until_us > now_us:
        return Reason.PAUSED, binding, retry_us, jobs
    return Reason.EXHAUSTED if found.ready(0) > now_us else Reason.IN_LINE, binding, retry_us, jobs


def _grant(found: Found, now_us: int, begins_us: int) -> Found:
    """
    Charge one claim. A bucket is charged for the time *begins_us*, at which the body begins. Remove the job's entry and
    a pause that has ended.
    """
    claim, waitlist, entry = found.claim, found.waitlist, found.entry
    if not claim.algorithm.size:
        return found
    taken = claim.algorithm.admit(found.taken, now_us, begins_us)
    waitlist.pause = Pause()
    waitlist.slow = waitlist.slow and charge_pace(waitlist.slow, found.pace, begins_us)
    if entry is not None:
        waitlist.pass_entry(entry)
    return found._replace(known=taken, taken=taken, entry=None)


def _find_wait(looks: Sequence[Found], now_us: int, requester: Requester) -> Waited:
    """Return how long the job has waited and how often it was denied: the most that its process or an entry knows."""
    entries = [(i, each.entry) for i, each in enumerate(looks) if each.entry is not None]
    for_us = max((requester.waited.for_us, *(now_us - entry.since_us for _, entry in entries)))
    denials = max((requester.waited.denials, *(entry.denials for _, entry in entries)))
    return Waited(for_us, denials, next((i for i, entry in entries if entry.state is not State.KEPT), None))


def _deny(looks: Sequence[Found], binding: int, now_us: int, requester: Requester, epoch: str) -> str:
    """
    Give the job a position on each list. It waits on the list of claim number *binding*. Return the epoch of that list.
    """
    bound = looks[binding]
    for i, each in enumerate(looks):
        if i == binding or not each.claim.algorithm.size:
            continue
        turn_us = 0
        if _has_turn(each.entry) and each.ready(0) <= each.until_us:
            counts = bound.waitlist.pause.until_us <= now_us and scarcity(each.claim) < scarcity(bound.claim)
            turn_us = now_us + TURN_US if counts else now_us
        each.waitlist.keep(make_entry(each, now_us, requester, epoch), requester.owner, now_us + KEPT_US, turn_us)
    entry, waitlist = make_entry(bound, now_us, requester, epoch), bound.waitlist
    until_us = None if requester.max_wait_us is None else now_us + requester.max_wait_us + lateness_us(requester.owner)
    waitlist.enter(entry, requester.owner, until_us)
    return waitlist.epoch


def _in_us(at_us: int, now_us: int) -> int:
    """Return the delay until a job that was woken for *at_us* makes its request; 0 if a wrong clock wrote that time."""
    return max(0, at_us - now_us) if at_us <= now_us + FUTURE_US else 0


def _spread_retry(found: Found, retry_us: int, now_us: int, max_wait_us: int | None) -> int:
    """Return the retry time of a caller without a position: later than that of each such caller denied before it."""
    waitlist, last_us = found.waitlist, retry_us + _RETRY_SPREAD_US
    if waitlist.next_retry_us <= last_us:
        retry_us = max(retry_us, waitlist.next_retry_us)
    if max_wait_us is None or retry_us - now_us <= max_wait_us:
        waitlist.next_retry_us = min(retry_us + found.claim.algorithm.pace_us(found.taken, now_us), last_us)
    return retry_us


def _late_retry_us(found: Found, requester: Requester, now_us: int, early_us: int) -> tuple[int, int]:
    """
    Return the retry time of a job that its framework returns after a delay, and the number of jobs ahead of it. The
    time assumes that each of these jobs passes.
    """
    algorithm, waitlist, late_us = found.claim.algorithm, found.waitlist, lateness_us(requester.owner)
    entry = waitlist.entries.get(requester.job)
    if entry is None:
        return now_us, 0
    before = waitlist.rank_of(entry.place, now_us) + waitlist.count_expected(requester.owner, now_us)
    kept = waitlist.units_held(now_us) - waitlist.units_held_late(now_us)
    passes_us = found.ready(kept + before * found.claim.cost)
    if algorithm.overflows and algorithm.keeps_us < late_us:
        passes_us -= early_us  # a free unit is lost if no job takes it at once
    return max(now_us + _SOONEST_US, passes_us, waitlist.pause.until_us), before


def _keep_if_over(bound: Found, requester: Requester, now_us: int, retry_us: int) -> None:
    """
    Take the job out of the order, but keep its position, if its framework may return it after its longest wait. So no
    other job waits for it.
    """
    entry = bound.waitlist.entries.get(requester.job)
    if requester.max_wait_us is None or retry_us - now_us + lateness_us(requester.owner) <= requester.max_wait_us:
        return
    if entry is not None and entry.until_us is not None:
        bound.waitlist.keep(entry, requester.owner, entry.until_us)


def make_entry(found: Found, now_us: int, requester: Requester, epoch: str, before: Place | None = None) -> Entry:
    """
    Return the job's entry for one list, or a new one. *requester* contains the time for which the job has waited, and
    the number of its denials. If the job's workflow holds the slot, the entry costs no unit and is ahead of all others.

    Args:
        before: The position that a new entry gets, because the job had it before. In a new list, later jobs get
            positions after it.
    """
    claim, waitlist, entry = found.claim, found.waitlist, found.entry
    waitlist.epoch = waitlist.epoch or epoch
    holds = claim.algorithm.holds(found.taken, now_us)
    if entry is not None and holds == (entry.cost > 0):
        waitlist.forget(entry)
        entry = None
    if entry is None:
        if before is None or holds:
            first, rank = holds or requester.caller is Caller.AGAIN, 0 if holds else CLASSES - 1 - claim.lead // CLASS
            place, step = waitlist.new_place(claim.tenant, claim.step, rank, first=first)
        else:
            place, step = before, 0
            waitlist.number, waitlist.v = max(waitlist.number, place.number), max(waitlist.v, place.tag)
        workflow, tenant = _workflow_of(claim), claim.tenant
        entry = Entry(requester.job, place, 0, requester.owner, workflow=workflow, tenant=tenant, step=step)
    if not holds:
        entry.cost = claim.cost  # it may have changed since the last request
    entry.since_us, entry.denials = max(0, now_us - requester.waited.for_us), requester.waited.denials
    return entry


def _wake_all(
    looks: Sequence[Found], now_us: int, requester: Requester, bell: Bell, free: int, *, granted: bool = False
) -> tuple[tuple[tuple[int, Wake], ...], tuple[tuple[int, int], ...]]:
    """
    Wake jobs of each list. Return the wakes of the caller's own jobs, and the lists at which its process should look,
    each with the delay until the look.
    """
    wakes: list[tuple[int, Wake]] = []
    looked: list[tuple[int, int]] = []
    listens = requester.owner != "" and not lateness_us(requester.owner)
    for i, found in enumerate(looks):
        waitlist = found.waitlist
        if not waitlist.epoch or not found.claim.algorithm.size:
            continue
        if listens:
            waitlist.set_free(requester.owner, free, now_us)
        ring = _ring_of(i, found, requester, bell, wakes)
        workflow = _workflow_of(found.claim)
        if granted and workflow:
            waitlist.wake_workflow(workflow, now_us, ring)
        entry = waitlist.entries.get(requester.job) if requester.job else None
        waits = entry is not None and entry.state is State.WAITING
        at_us = waitlist.wake(_wake_rules(found, now_us), now_us, ring, waits=waits)
        in_us = waitlist.next_look(at_us, now_us, by_job=bool(requester.job)) if listens else None
        if in_us is not None:
            looked.append((i, in_us))
    return tuple(wakes), tuple(looked)


def wake_and_store(found: Found, now_us: int, ring: Ring) -> Stored:
    """Wake jobs of one list after a change of it. Return the state to store."""
    if found.waitlist.epoch and found.claim.algorithm.size:
        found.waitlist.wake(_wake_rules(found, now_us), now_us, ring)
    return _state_to_store(found)


def _ring_of(number: int, found: Found, requester: Requester, bell: Bell, own: list[tuple[int, Wake]]) -> Ring:
    """Return a `Ring` that sends one claim's wakes to other processes, and adds those of the caller's jobs to *own*."""

    def ring(owner: str, wake: Wake | None) -> bool:
        if owner != requester.owner:
            return bell(found.claim.bucket, owner, wake)
        if wake is not None:
            own.append((number, wake))
        return True

    return ring


def _waits_for_late(found: Found, now_us: int) -> bool:
    """Whether the first job of the list is returned by its framework after a delay. Then any request wakes it."""
    owner = None if found.first else found.waitlist.head(now_us)[1]
    return owner is not None and lateness_us(owner.name) > 0


def _wake_rules(found: Found, now_us: int) -> WakeRules:
    algorithm: Algorithm = found.claim.algorithm.of_one()
    pace = pace_of(found.waitlist.slow, algorithm.mark, 1, now_us)

    def ready_us(units: int) -> int:
        return ready_after(algorithm, found.taken, pace, units - 1, now_us)

    def keeps(units: int) -> bool:
        if algorithm.estimates:
            return units <= _window(algorithm)
        return algorithm.keeps_us >= 2 * units * algorithm.mark // 1000

    return WakeRules(ready_us, _window(algorithm), None if algorithm.estimates else LEAD_US, keeps, algorithm.mark)


def _window(algorithm: Algorithm) -> int:
    """Return how many woken jobs an owner may have at a time: .25 s of the rate, or a quarter of the slots."""
    if algorithm.estimates:
        return max(1, int(algorithm.params[0]) // 4)
    return max(1, PATIENCE_US * 1000 // max(1, algorithm.mark))


def _workflow_of(claim: StoreClaim) -> str:
    holder = claim.algorithm.holder
    return holder if is_workflow(holder) else ""


def _jobs_on(waitlist: Waitlist, now_us: int) -> int:
    """
    Return the length of the queue: the jobs that wait, and the woken jobs that return after a delay. Jobs of owners
    that do not listen are not counted.
    """
    owners = [owner for owner in waitlist.owners.values() if owner.free != DEAF]
    late = [owner.name for owner in owners if lateness_us(owner.name)]
    return sum(len(owner.waiting) for owner in owners) + sum(waitlist.count_expected(name, now_us) for name in late)


def _uses(looks: Sequence[Found], now_us: int) -> tuple[Use, ...]:
    return tuple(each.claim.algorithm.use(each.taken, now_us) for each in looks)


def _state_to_store(found: Found) -> Stored:
    """Return the state to store. An empty waitlist is stored only if it has a pause, a slow-down or a retry time."""
    waitlist = found.waitlist
    if waitlist.epoch and not waitlist.entries:
        waitlist = waitlist.without_jobs()
    return Stored(found.known, waitlist if waitlist.epoch or not waitlist.is_plain else None)


def scarcity(claim: StoreClaim) -> tuple[int, str]:
    """
    Return the sort key of a limit; the scarcest limit is first. At equal rates, the names decide, which are unique, so
    two limits never block each other.
    """
    return -claim.algorithm.mark, claim.bucket


def _has_turn(entry: Entry | None) -> bool:
    return entry is not None and (entry.state is State.WOKEN or entry.at_us > 0)


def _positions_of(looks: Sequence[Found]) -> tuple[Position | None, ...]:
    """Return the position of a granted job on each list, or nothing if the job has not waited."""
    if not any(each.entry for each in looks):
        return ()
    return tuple(None if each.entry is None else Position(each.entry.place, _has_turn(each.entry)) for each in looks)
