"""
The three promises, checked on the history of a run.

1. The bound of every limit, computed from the bodies that began, by the store's clock, as docs/guarantees.md states it.
2. No job is lost, failed, or run twice because it was throttled.
3. The limit is fully used, in order, in a run without faults; and again once the last fault is over.

This module uses only the definition of a limit and its guaranteed bound, and nothing of how the limit decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from plan import rate_of
from scheduler import SECOND
from world import Event, Plan, World

from throttlekit import Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.storage_keys import slots_of_holder

__all__ = ["check", "check_safety", "first_requests", "read_bodies"]

EARLY_US, RELAYED_EARLY_US, LATE_EARLY_US = 5_000, 30_000, 250_000
"""
How long before its units are free a job may be granted: a job that its process holds, a job that another process wakes,
and a job that is redelivered after a delay. If a job has limits in several stores (the memory of a process is one), the
first is also the longest time from the first decision to the start of the job.
"""
LEAST_USE, LEAST_USE_OF_SLOTS, LEAST_USE_BY_DELAYS = 0.93, 0.75, 0.5
"""The least part of a rate and of slots that is used while jobs wait, and of both if jobs are redelivered by delays."""
MOST_OUT_OF_ORDER = 0.1
"""The largest part of the jobs that may begin before a job that made its first request earlier."""
MOST_APART = 5
"""
By how many units the tenants of a limit may differ: two jobs of the largest cost, and jobs that request at the same
time.
"""
AT_ONCE_US = 20_000
"""Jobs that request or begin within this time of each other have no defined order."""
PATIENCE_US = {"holds": 8 * SECOND, "roams": 8 * SECOND, "relays": 8 * SECOND, "delays": 90 * SECOND}
"""How long after the last fault the last job may end, in addition to twice the time that the limits need."""


def check(world: World) -> list[str]:
    """Return the promises that the run broke, as text."""
    bodies = list(read_bodies(world.history, world.plan))
    return [
        *check_safety(world, bodies),
        *broken_ends(world, bodies),
        *broken_use(world, bodies),
        *broken_order(world),
        *broken_shares(world, bodies),
    ]


def check_safety(world: World, bodies: Sequence[Body]) -> list[str]:
    """Return what the run broke of the first two promises, except jobs that still wait."""
    history, plan = world.history, world.plan
    return [
        *(f"logged an error: {each.detail}" for each in history if each.what == "logged an error"),
        *broken_bounds(bodies, plan),
        *broken_slots(history, bodies),
        *broken_pauses(history, plan),
        *broken_deliveries(world, bodies),
    ]


@dataclass(eq=False)
class Body:
    """A body that began."""

    job: str
    process: str
    at_us: int
    charged: Sequence[Any]
    early_us: int
    grants: dict[str, tuple[int, int]] = field(default_factory=dict)
    """
    For each bucket: the era of its store at the grant, and the time of the grant. A new era begins when the store loses
    its state, or its clock steps back by more than a minute, because earlier charges no longer count. The time is that
    of the store's clock without its steps back, because these only delay.
    """
    ended_us: int | None = None
    died: bool = False
    problems: list[str] = field(default_factory=list)


def read_bodies(history: Sequence[Event], plan: Plan) -> Iterator[Body]:
    era, stepped_us, offset_us = ([0] * plan.stores for _ in range(3))
    grants: dict[tuple[str, str, int], tuple[int, int]] = {}
    at_work: dict[int, Body] = {}
    for event in history:
        store, offset = event.store, event.clock_us - event.at_us
        stepped_us[store] += max(0, offset_us[store] - offset)
        offset_us[store] = offset
        if event.what in ("lost state", "clock far back"):
            era[store] += 1
        elif event.what == "granted":
            for bucket in event.detail["buckets"]:
                grants[event.job, bucket, event.detail["at_us"]] = era[store], event.clock_us + stepped_us[store]
        elif event.what == "begun":
            body = Body(event.job, event.process, event.at_us, event.detail["charged"], event.detail["early_us"])
            body.problems += _wrong_begin(body, event, grants, plan)
            at_work[event.detail["body"]] = body
        elif event.what in ("ended", "received 429"):
            body = at_work.pop(event.detail["body"])
            body.ended_us = event.at_us
            yield body
        elif event.what == "killed":
            for number in [number for number, each in at_work.items() if each.process == event.process]:
                body = at_work.pop(number)
                body.died, body.ended_us = True, event.at_us
                yield body
    yield from at_work.values()


def _wrong_begin(
    body: Body, event: Event, grants: dict[tuple[str, str, int], tuple[int, int]], plan: Plan
) -> list[str]:
    """Return why the body should not have begun: no store granted it, or its units were not free."""
    wrong: list[str] = []
    most = {"delays": LATE_EARLY_US, "relays": RELAYED_EARLY_US}.get(plan.style, EARLY_US)
    if body.early_us > most:
        wrong.append(
            f"job {body.job} was granted {body.early_us} us before its units are free, at most {most} is allowed"
        )
    shared = [each for each in body.charged if each.limit.scope != "process"]
    for each in shared:
        found = grants.get((body.job, each.bucket, each.at_us))
        if found is None:
            wrong.append(f"job {body.job} began at {body.at_us} with a grant of {each.bucket} that no store made")
        else:
            body.grants[each.bucket] = found
    is_open = any(limit.on_store_failure == "open" for limit in plan.limits)
    if not shared and not is_open:
        wrong.append(f"job {body.job} began at {body.at_us} without a grant, although its limits are closed")
    return wrong


# The first promise


def broken_bounds(bodies: Sequence[Body], plan: Plan) -> list[str]:
    broken = [problem for body in bodies for problem in body.problems]
    granted: dict[tuple[Any, str, str, int], list[tuple[int, int]]] = {}
    steps_back = any(each.kind in ("clock-back", "clock-ahead") for each in plan.faults)
    for body in bodies:
        for each in body.charged:
            if not isinstance(each.limit, Concurrency):
                own = body.process if each.limit.scope == "process" else ""
                early_us = body.early_us if isinstance(each.limit, (TokenBucket, LeakyBucket)) else 0
                era, at_us = body.grants.get(each.bucket, (0, each.at_us))
                granted.setdefault((each.limit, each.bucket, own, era), []).append((at_us + early_us, each.cost))
    for (limit, bucket, own, era), grants in granted.items():
        in_parts = plan.stores > 1 or any(each.scope == "process" for each in plan.limits)  # see EARLY_US
        most = excess_of(limit, sorted(grants), EARLY_US if in_parts else 0, steps_back=steps_back)
        if most > 0:
            broken.append(f"the bound of {limit!r} ({bucket} {own}, era {era}) was exceeded by {most} units")
    return broken


def excess_of(limit: Any, granted: Sequence[tuple[int, int]], longer_us: int = 0, *, steps_back: bool = False) -> float:
    """
    Return by how many units a window exceeded the bound of a window that is *longer_us* longer; 0 or less if none did.

    Args:
        granted: The times and units of the grants, in order.
        steps_back: The clock has stepped back, so *granted* does not show in which calendar window each grant is.
    """
    if isinstance(limit, FixedWindow) and not steps_back:
        windows: Counter[int] = Counter()
        for at_us, cost in granted:
            windows[at_us // limit.period_us] += cost
        return max(windows.values()) - limit.amount
    if isinstance(limit, (SlidingLog, FixedWindow)):
        most = 2 * limit.amount if isinstance(limit, FixedWindow) else limit.amount
        return max(
            sum(cost for at_us, cost in granted if last_us - limit.period_us < at_us <= last_us) - most
            for last_us, _ in granted
        )
    # At most `most + w * amount / period` units in any window of length w, computed exactly in units times the
    # period. A SlidingWindow grants fewer.
    most = (
        (limit.amount + 1) * limit.period_us - 1
        if isinstance(limit, SlidingWindow)
        else limit.capacity * limit.period_us
    )
    most += longer_us * limit.amount
    lowest, units, worst = None, 0, -most
    lowest: int | None
    for at_us, cost in granted:
        earned = at_us * limit.amount
        before = units * limit.period_us - earned
        lowest = before if lowest is None else min(lowest, before)
        units += cost
        worst = max(worst, units * limit.period_us - earned - lowest - most)
    return worst / limit.period_us


def broken_slots(history: Sequence[Event], bodies: Sequence[Body]) -> list[str]:
    """
    Return violations of two rules: running bodies with a valid lease never hold more slots than there are, and no slot
    is released while its body runs.
    """
    limits = {
        each.bucket: each.limit for body in bodies for each in body.charged if isinstance(each.limit, Concurrency)
    }
    holders: dict[str, list[Body]] = {}  # a workflow holds its slot for several bodies
    for body in bodies:
        for each in body.charged:
            holders.setdefault(each.holder, []).append(body)
    stores = {bucket: each.store for each in history if each.what == "granted" for bucket in each.detail["buckets"]}
    leases: dict[str, dict[str, int]] = {bucket: {} for bucket in limits}
    broken: list[str] = []
    for event in history:
        here = {bucket: held for bucket, held in leases.items() if stores.get(bucket, 0) == event.store}
        if event.what == "lost state":
            for each in here.values():
                each.clear()
        elif event.what == "granted":
            for bucket, holder in zip(event.detail["buckets"], event.detail["holders"], strict=True):
                if bucket in limits and holder:
                    leases[bucket][holder] = event.clock_us + limits[bucket].lease_us
        elif event.what == "renewed" and event.detail["bucket"] in limits:
            bucket, holder = event.detail["bucket"], event.detail["holder"]
            if event.detail["held"]:
                leases[bucket][holder] = event.clock_us + limits[bucket].lease_us
            else:
                leases[bucket].pop(holder, None)
        elif event.what == "returned" and event.detail["bucket"] in limits:
            holder = event.detail["holder"]
            leases[event.detail["bucket"]].pop(holder, None)
            broken += [
                f"the slot of job {body.job} was released at {event.at_us}, while its body was running"
                for body in holders.get(holder, ())
                if _is_running(body, event.at_us)
            ]
        elif event.what != "clock far back":
            continue
        for bucket, held in here.items():
            for holder, until_us in list(held.items()):
                held[holder] = min(until_us, event.clock_us + limits[bucket].lease_us)  # after a step back
                if until_us <= event.clock_us:
                    del held[holder]  # permanently, even if the clock steps back
            at_work = sum(
                slots_of_holder(holder)
                for holder in held
                if any(_is_running(body, event.at_us) for body in holders.get(holder, ()))
            )
            if at_work > limits[bucket].amount:
                broken.append(f"{at_work} slots of {limits[bucket]!r} were held at {event.at_us}")
    return broken


def _is_running(body: Body, at_us: int) -> bool:
    return body.at_us <= at_us and (body.ended_us is None or at_us < body.ended_us)


def broken_pauses(history: Sequence[Event], plan: Plan) -> list[str]:
    """Return the grants that were made while a limit was paused."""
    broken: list[str] = []
    for store in range(plan.stores):
        broken += _broken_pauses([event for event in history if event.store == store])
    return broken


def _broken_pauses(history: Sequence[Event]) -> list[str]:
    until: dict[str, int] = {}
    longest: dict[str, int] = {}
    broken: list[str] = []
    for event in history:
        for bucket, until_us in list(until.items()):
            if until_us <= event.clock_us:
                del until[bucket], longest[bucket]  # permanently, even if the clock steps back
            else:
                # After a step back, the pause lasts at most its length from now on.
                until[bucket] = min(until_us, event.clock_us + longest[bucket])
        if event.what == "lost state":
            until.clear()
            longest.clear()
        elif event.what == "paused":
            for bucket in event.detail["buckets"]:
                for_us = event.detail["for_us"]
                until[bucket] = max(until.get(bucket, 0), event.clock_us + for_us)
                longest[bucket] = max(longest.get(bucket, 0), for_us)
        elif event.what == "granted":
            for bucket in event.detail["buckets"]:
                if event.clock_us < until.get(bucket, 0):
                    broken.append(f"job {event.job} was granted at {event.at_us} while {bucket} was paused")
    return broken


# The second promise


def broken_deliveries(world: World, bodies: Sequence[Body]) -> list[str]:
    plan = world.plan
    broken: list[str] = []
    had_body = {(body.process, body.job) for body in bodies}
    sent, died, begun, refused = Counter[str](), Counter[str](), Counter[str](), set[str]()
    may_fail = {job.id for job in plan.jobs if job.max_wait is not None}
    if any(limit.queue is not None for limit in plan.limits):
        may_fail |= {job.id for job in plan.jobs}
    for event in world.history:
        if event.what == "sent":
            sent[event.job] += 1
        elif event.what == "failed":
            refused.add(event.job)
            if event.job not in may_fail or "WaitedTooLong" not in event.detail["why"]:
                broken.append(f"job {event.job} failed: {event.detail['why']}")
        elif event.what == "redelivered":
            died[event.job] += (event.process, event.job) in had_body  # it was not acknowledged
        elif event.what == "received 429":
            sent[event.job] += 1
    for body in bodies:
        begun[body.job] += 1
    for job, times in begun.items():
        if times > sent[job] + died[job]:
            broken.append(
                f"job {job} ran {times} times; it was sent {sent[job]} times, {died[job]} processes died in its body"
            )
    for job in plan.jobs:
        if not job.lost and not begun[job.id] and job.id not in refused and job.id not in world.waiting:
            broken.append(f"job {job.id} did not run")
    return broken


# The third promise


def broken_use(world: World, bodies: Sequence[Body]) -> list[str]:
    """
    Check that the limit is used while jobs wait: from the start if there are no faults, otherwise after the last one.
    """
    found, least = use_of(world, bodies), LEAST_USE
    if isinstance(world.plan.limits[0], Concurrency):
        least = LEAST_USE_OF_SLOTS
    if world.plan.style == "delays":
        least = LEAST_USE_BY_DELAYS
    if found is None or found[0] >= least:
        return []
    return [f"{found[0]:.3f} of {world.plan.limits[0]!r} was used {found[1]}, at least {least} is promised"]


def broken_ends(world: World, bodies: Sequence[Body]) -> list[str]:
    """Check that all jobs end, and that the last one ends in time: after the last fault, nothing holds up jobs."""
    quiet_us, needed_us = quiet_from(world), needed_for_the_rest(world, bodies)
    most_us = quiet_us + 2 * needed_us + PATIENCE_US[world.plan.style]
    ended_us = max((body.ended_us or 0 for body in bodies), default=0)
    broken = [f"job {each} never ended" for each in sorted(world.waiting)]
    if ended_us <= most_us:
        return broken
    return [*broken, f"the last job ended at {ended_us / SECOND:.1f} s; all were to end by {most_us / SECOND:.1f} s"]


def quiet_from(world: World) -> int:
    """Return when all faults have ended and all jobs have been sent."""
    lease_us = max(map(_lease_us, world.plan.limits))  # a slot that is lost is free again after it
    begun = [fault.settles_us + lease_us for fault in world.plan.faults if fault.at_us <= world.now]
    return max([0, *begun, *(job.sent_us for job in world.plan.jobs)])


def needed_for_the_rest(world: World, bodies: Sequence[Body]) -> int:
    """Return how long the limits need, one after the other, for the jobs that begin after `quiet_from`."""
    needed, quiet_us = 0.0, quiet_from(world)
    for body in bodies:
        if body.at_us >= quiet_us:
            for limit in world.plan.limits:
                body_us = max(1, (body.ended_us or body.at_us) - body.at_us)
                needed += max(SECOND / rate_of(limit, body_us), body_us / world.plan.threads)
    return round(needed)


def use_of(world: World, bodies: Sequence[Body]) -> tuple[float, str] | None:
    """Return how much of the run's only limit was used while enough jobs waited for it, and in which time."""
    plan = world.plan
    (limit, *others) = plan.limits
    has_exits = any(job.receives_429 or job.max_wait for job in plan.jobs) or limit.queue is not None
    if others or has_exits or (plan.style == "delays" and plan.faults):
        return None
    begin = max([SECOND, *(fault.settles_us + _lease_us(limit) for fault in plan.faults if fault.at_us <= world.now)])
    requested = first_requests(world.history)
    waiting = [body.at_us for body in bodies if requested.get(body.job, begin) < begin <= body.at_us]
    enough = max(3, plan.processes * plan.threads)
    if len(waiting) <= enough:
        return None
    end = sorted(waiting)[-enough]
    if end - begin < 2 * SECOND:
        return None
    shown = f"from {begin / SECOND:.1f} to {end / SECOND:.1f} s"
    if isinstance(limit, Concurrency):
        if plan.threads < limit.amount:
            return None  # the jobs that wait may all be in one process
        held = sum(max(0, min(end, body.ended_us or end) - max(begin, body.at_us)) for body in bodies)
        return held / (limit.amount * (end - begin)), shown
    units = sum(each.cost for body in bodies for each in body.charged if begin < body.at_us <= end)
    is_bucket = isinstance(limit, (TokenBucket, LeakyBucket))
    edge = 1 if is_bucket else limit.amount  # units that became free just before, or just after
    return (units + edge) / (limit.amount * (end - begin) / limit.period_us), shown


def _lease_us(limit: Any) -> int:
    return limit.lease_us if isinstance(limit, Concurrency) else 0


def first_requests(history: Sequence[Event]) -> dict[str, int]:
    """Return when each job made its first request, in that order."""
    requested: dict[str, int] = {}
    for event in history:
        if event.what in ("denied", "granted"):
            requested.setdefault(event.job, event.at_us)
    return requested


def broken_order(world: World) -> list[str]:
    found = out_of_order(world)
    if found is None or found <= MOST_OUT_OF_ORDER:
        return []
    return [f"{found:.0%} of the jobs began before a job with an earlier request, {MOST_OUT_OF_ORDER:.0%} are allowed"]


def out_of_order(world: World) -> float | None:
    """Return the part of the jobs that began before a job with an earlier request, in a run without faults."""
    plan = world.plan
    if len(plan.limits) > 1 or plan.faults or plan.style == "delays" or plan.limits[0].share is not None:
        return None
    if any(job.receives_429 or job.max_wait for job in plan.jobs) or plan.limits[0].queue is not None:
        return None
    if plan.threads <= plan.limits[0].capacity:
        return None  # jobs of a process without a free thread wait, and other jobs are granted
    requested, granted = first_requests(world.history), dict[str, int]()
    for event in world.history:
        if event.what == "granted":
            granted.setdefault(event.job, event.at_us)
    ahead = sum(
        any(requested[each] < requested[job] - AT_ONCE_US and granted[each] > at_us + AT_ONCE_US for each in granted)
        for job, at_us in granted.items()
    )
    return ahead / max(1, len(granted))


def broken_shares(world: World, bodies: Sequence[Body]) -> list[str]:
    found = units_apart(world, bodies)
    if found is None or found <= MOST_APART:
        return []
    return [f"tenants of equal shares are {found} units apart, {MOST_APART} are allowed"]


def units_apart(world: World, bodies: Sequence[Body]) -> int | None:
    """
    Return by how many units the tenants of a limit differ for the time in which all of them had waiting jobs, in a run
    without faults.
    """
    plan, (limit, *others) = world.plan, world.plan.limits
    if others or plan.faults or plan.style == "delays" or limit.share is None or limit.queue is not None:
        return None
    if plan.threads <= limit.capacity or any(job.receives_429 or job.max_wait for job in plan.jobs):
        return None
    begin = max(first_requests(world.history).values())
    tenant_of = {job.id: job.kwargs["tenant"] for job in plan.jobs}
    last = {tenant_of[body.job]: body.at_us for body in sorted(bodies, key=lambda each: each.at_us)}
    units = dict.fromkeys(last, 0)
    for body in bodies:
        if begin < body.at_us < min(last.values()):
            units[tenant_of[body.job]] += sum(each.cost for each in body.charged)
    return max(units.values()) - min(units.values())
