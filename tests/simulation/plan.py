"""The plan that follows from a seed: the limits, the jobs, the fleet and the faults of one run."""

from __future__ import annotations

import random
from typing import Any

from scheduler import MS, SECOND
from world import Plan, SimJob

from faults import KINDS, draw_faults
from throttlekit import (
    Concurrency,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    Share,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)

__all__ = ["draw_plan", "rate_of"]

STYLES = ("holds", "holds", "holds", "roams", "relays", "delays")


def draw_plan(seed: int, kinds: list[str] | None = None) -> Plan:
    """
    Return the plan of *seed*.

    Args:
        kinds: The allowed kinds of faults. None: any.
    """
    choose = random.Random(f"plan {seed}")
    style = choose.choice(STYLES)
    limits = draw_limits(choose, style)
    apart = style != "relays" and limits[-1].scope != "process" and len(limits) > 1
    stores = choose.choice((1, 2)) if apart else 1
    jobs, seconds = draw_jobs(choose, limits)
    count = choose.choice((0, 1, 2, 3, 5))
    kinds = [*KINDS] if kinds is None else kinds
    if style == "delays" and any(isinstance(limit, Concurrency) for limit in limits):
        kinds = [each for each in kinds if each != "clock-ahead"]  # the known fault of README.md
    leg = choose.choice(((200, 1000), (200, 1000), (100, 300), (500, 5000)))
    return Plan(
        seed,
        style,
        limits,
        jobs,
        choose.randint(1, 5),
        choose.randint(1, 4),
        stores,
        leg,
        lateness=choose.choice((0.05, 0.05, 1.0)),
        redelivered_in=choose.choice((200, 1000, 3000)) * MS,
        faults=draw_faults(choose, kinds, count, seconds),
    )


def draw_limits(choose: random.Random, style: str) -> tuple[Limit, ...]:
    first = draw_limit(choose, "first", may_open=style != "roams")
    kind = choose.random()
    if kind < 0.75:
        return (first,)
    if kind < 0.85:
        return first, TokenBucket("keyed", f"{choose.choice((2, 5, 10))}/s", burst=choose.randint(1, 5), key="{key}")
    if kind < 0.93 and not isinstance(first, Concurrency):
        return first, Concurrency("slots", choose.randint(1, 4), lease=choose.randint(2, 5))
    if style == "relays":
        return (first,)  # jobs make their requests in another process
    return first, TokenBucket("own", f"{choose.choice((5, 10))}/s", burst=choose.randint(1, 5), scope="process")


def draw_limit(choose: random.Random, name: str, *, may_open: bool) -> Limit:
    amount, options = choose.choice((2, 5, 5, 10)), dict[str, Any]()
    if choose.random() < 0.2:
        options["share"] = Share("{tenant}")
    if choose.random() < 0.1 and may_open:  # otherwise: the known fault of README.md
        options["on_store_failure"] = "open"
    if choose.random() < 0.05:
        options["queue"] = choose.randint(3, 20)
    kind = choose.random()
    if kind < 0.1:
        return LeakyBucket(name, (amount, 1), **options)
    if kind < 0.2:
        return FixedWindow(name, (amount, choose.choice((1, 2))), **options)
    if kind < 0.3:
        return SlidingWindow(name, (amount, choose.choice((1, 2))), **options)
    if kind < 0.4:
        return SlidingLog(name, (amount, choose.choice((1, 2))), **options)
    if kind < 0.6:
        return Concurrency(name, choose.randint(1, 5), lease=choose.randint(1, 4), **options)
    most = choose.choice((1, 1, 1, 3))
    cost: Any = cost_of if most > 1 else 1
    return TokenBucket(name, (amount, 1), burst=max(most, choose.choice((1, 2, 5, 10))), cost=cost, **options)


def cost_of(job: Job) -> int:
    cost: int = job.kwargs["cost"]
    return cost


def draw_jobs(choose: random.Random, limits: tuple[Limit, ...]) -> tuple[list[SimJob], float]:
    """Return random jobs, and in how many seconds *limits* admit them."""
    slots = [limit for limit in limits if isinstance(limit, Concurrency)]
    body_us = choose.choice((100, 200, 300, 2000)) * MS if slots else choose.choice((1, 10, 50)) * MS
    rate = min(rate_of(limit, body_us) for limit in limits)
    count = min(40, max(10, round(rate * choose.randint(5, 15))))
    seconds = count / rate
    within = choose.choice((MS, SECOND, 3 * SECOND, round(seconds * SECOND * 1.5)))
    receives_429 = 0.05 if choose.random() < 0.15 else 0
    max_wait = choose.choice((1, 3)) if choose.random() < 0.1 else None
    jobs = [
        SimJob(
            f"{choose.getrandbits(32):08x}",
            choose.randrange(within),
            max(MS, round(body_us * choose.uniform(0.5, 1.5))),
            {"key": choose.choice("ab"), "tenant": choose.choice("uvvww"), "cost": choose.randint(1, 3)},
            max_wait if choose.random() < 0.5 else None,
            choose.choice((0.3, 1.5)) if choose.random() < receives_429 else 0,
        )
        for _ in range(count)
    ]
    return sorted(jobs, key=lambda each: each.sent_us), seconds


def rate_of(limit: Any, body_us: float) -> float:
    """Return how many jobs per second *limit* admits."""
    if isinstance(limit, Concurrency):
        return limit.amount * SECOND / body_us
    return limit.amount * SECOND / limit.period_us / (2 if callable(limit.cost) else 1)
