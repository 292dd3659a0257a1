"""
Jobs of several tenants under one limit on real workers: a backlog, and jobs that come while it drains.

    happened = happen(Plan(backlog=["heavy"] * 10_000, coming=[(0.1, "light")], seconds=30), "dramatiq, redis", limit)

`happen` lets it happen; what it returns is pure figures. All times are seconds from the beginning of the window.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import redis

from support.celery.flood import CeleryFlood
from support.flood.figures import bursts_beyond_us, inversions
from support.flood.limits import FloodLimit
from support.flood.meters import scripts_run
from support.flood.run import Flood, Flooding
from support.rq.flood import OURS_SIMPLE, RqFlood
from support.servers.flood import Kind, Servers, servers
from support.servers.processes import patient, redis_server
from support.taskiq.flood import TaskiqFlood
from support.waiting import wait_until
from throttlekit import Control
from throttlekit._core.answer import Reason

__all__ = ["ALSO", "STOCK", "WOKEN", "WORKERS", "Happened", "Plan", "happen", "percentile"]

STOCK, WOKEN = "RQ, stock", "RQ, stock, woken"
_CELERY, _SIMPLE = partial(CeleryFlood, pool="threads", threads=4), ("rq.SimpleWorker", "rq.SimpleWorker")
WORKERS: dict[str, tuple[Callable[..., Flood], Kind]] = {
    "Dramatiq, Redis": (Flood, "redis"),
    "Dramatiq, RabbitMQ": (Flood, "rabbitmq"),
    "Celery, Redis": (_CELERY, "redis"),
    "Celery, RabbitMQ": (_CELERY, "rabbitmq"),
    "RQ, ours": (partial(RqFlood, kinds=(OURS_SIMPLE, OURS_SIMPLE)), "redis"),
    STOCK: (partial(RqFlood, kinds=("rq.SimpleWorker+scheduler", "rq.SimpleWorker")), "redis"),
    WOKEN: (partial(RqFlood, kinds=_SIMPLE, wakes=True), "redis"),
}
"""What runs jobs: two worker processes of each kind, and their broker."""

ALSO: dict[str, tuple[Callable[..., Flood], Kind]] = {
    "taskiq, Redis": (TaskiqFlood, "redis"), "taskiq, RabbitMQ": (TaskiqFlood, "rabbitmq"),
}  # fmt: skip
"""The same of the frameworks that the benchmark does not show."""

_DENIALS = tuple(reason for reason in Reason if reason is not Reason.ALLOWED)


class Plan(NamedTuple):
    """
    What is to happen.

    Attributes:
        backlog: The tenant of each job that waits when the window begins.
        coming: When each job comes after that, and whose it is; in this order.
        seconds: The length of the window. None: until the last job of the backlog has run, from its first moment on.
        acts: What an operator does, and when.
        own: A tenant with a queue and workers of its own. "": all have the same.
        struck: When its workers are killed; where there is none, when all jobs that wait are deleted, as far as the
            framework can.
    """

    backlog: Sequence[str]
    coming: Sequence[tuple[float, str]] = ()
    seconds: float | None = None
    acts: Sequence[tuple[float, Callable[[Control], object]]] = ()
    own: str = ""
    struck: float = math.inf


@dataclass(frozen=True)
class Happened:
    """
    What happened.

    Attributes:
        starts: When each body began, and its job; in this order.
        tenants: Of each job.
        sent: When each job was sent that came within the window.
        grants: When the store granted; in this order.
        asks: Decisions of the limits' store, with the looks at its waitlists, for each job that ran: a share of those
            before the window included. Not the rules, which each process reads once or twice a second, whatever its
            jobs do.
        denied: How often the limits' store denied a job that asked, for whatever reason. Looks are not counted.
            None: not all workers have reported it. Those that are killed, as a backlog is left, never do.
        seconds: The window.
        struck: When workers were dead, or jobs gone, as the plan says.
        beyond_us: How far the grants break the bound, as time; <= 0: it holds. None: the rate was changed.
    """

    starts: Sequence[tuple[float, int]]
    tenants: Mapping[int, str]
    sent: Mapping[int, float]
    grants: Sequence[float]
    asks: float
    denied: int | None
    seconds: float
    struck: float
    beyond_us: float | None

    def waits(self, begin: str) -> list[float]:
        """Of each job that came: seconds until it ran, of tenants that begin so; at least, if it has not."""
        ran = {job: at for at, job in reversed(self.starts)}
        mine = [(job, at) for job, at in self.sent.items() if self.tenants[job].startswith(begin)]
        return sorted(ran.get(job, self.seconds) - at for job, at in mine)

    def service(self, since: float, until: float) -> Counter[str]:
        """Jobs of each tenant that began."""
        return Counter(self.tenants[job] for at, job in self.starts if since < at <= until)

    def service_each(self, seconds: int) -> dict[str, list[int]]:
        """The same for each so many seconds of the window, of those that got most first."""
        whole = int(self.seconds // seconds)
        parts = [self.service(n * seconds, (n + 1) * seconds) for n in range(whole)]
        return {tenant: [got[tenant] for got in parts] for tenant, _ in sum(parts, Counter[str]()).most_common()}

    def use(self, rate: float, since: float, until: float) -> float:
        """The share of the limit that was granted; without a limit, that began."""
        times = self.grants or [at for at, _ in self.starts]
        return sum(since < at <= until for at in times) / (rate * (until - since))

    def apart(self, tenants: Sequence[str], since: float, until: float) -> int:
        """The worst difference of what two tenants got in any interval, in jobs."""
        got, least, most = Counter[str](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        pairs = [(a, b) for a in tenants for b in tenants if a < b]
        for at, job in self.starts:
            if since < at <= until and self.tenants[job] in tenants:
                got[self.tenants[job]] += 1
                for a, b in pairs:
                    least[a, b] = min(least[a, b], got[a] - got[b])
                    most[a, b] = max(most[a, b], got[a] - got[b])
        return max((most[pair] - least[pair] for pair in pairs), default=0)

    def jain(self, tenants: Sequence[str], window: float) -> float:
        """Jain's index of what *tenants* got, in the worst of the windows of so many seconds."""
        worst = 1.0
        for number in range(int(self.seconds // window)):
            got = self.service(number * window, (number + 1) * window)
            rates = [got[tenant] for tenant in tenants]
            if any(rates):
                worst = min(worst, sum(rates) ** 2 / len(rates) / sum(rate * rate for rate in rates))
        return worst

    def order(self, tenant: str) -> tuple[float, float]:
        """Of one tenant's jobs: the share of pairs in the wrong order, and by how many seconds at most."""
        mine = [(at, job) for at, job in self.starts if self.tenants[job] == tenant]
        worst, next_start = 0.0, {job: at for at, job in reversed(mine)}
        earliest = float("inf")
        for job in sorted(next_start, reverse=True):
            worst = max(worst, next_start[job] - earliest)
            earliest = min(earliest, next_start[job])
        return inversions([job for _, job in mine]), worst


def percentile(values: Sequence[float], part: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


@contextlib.contextmanager
def _where(kind: Kind) -> Iterator[Servers]:
    with servers(kind) as where, redis_server() as limits:
        yield replace(where, limits_url=patient(f"{limits}/1"))


def happen(plan: Plan, workers: str, limit: FloodLimit, **options: Any) -> Happened:
    """
    Let *plan* happen on fresh servers; nothing of it is left.

    Args:
        options: More of the flood. mode="none": no limit; the jobs are sent by a round robin over one queue for each
            tenant, at the limit's rate.
    """
    flood_of, kind = {**WORKERS, **ALSO}[workers]
    flood = flood_of(limits=(limit,), jobs=len(plan.backlog), give_up=600.0, settle=0.5, **options)
    with _where(kind) as where, contextlib.ExitStack() as stack:
        apart = stack.enter_context(flood.flooding(flood, where)) if plan.own else None
        flooding = stack.enter_context(flood.flooding(flood, where))
        store: Any = redis.Redis.from_url(where.store_url)
        pump = _Pump(flooding, limit) if flood.mode == "none" else None
        for index, tenant in enumerate(plan.backlog):
            (apart if apart and tenant == plan.own else pump or flooding).send("job", str(index), tenant)
        flooding.start()
        if apart:
            apart.start()
        began = time.time()
        asked_first = ran_first = 0
        if plan.seconds is not None and flood.mode == "throttlekit":
            _wait_until_in_line(plan, flooding, store)
            asked_first, began = scripts_run(store, ["evalsha"]), time.time()
        elif plan.seconds is not None:
            wait_until(lambda: _works(flooding, pump), description="the workers work", timeout=60)
            began = time.time()
        if plan.seconds is not None:
            ran_first = len(flooding.starts())
        control = Control(where.store_url.partition("?")[0], by="benchmark")
        sent, struck = _follow(plan, flooding, apart, pump, control, began)
        asked, seconds = scripts_run(store, ["evalsha"]), time.time() - began
        store.close()
        denied: int | None = None
        if plan.seconds is None:
            counts = flooding.stop().counts
            if counts.get(f"store: {Reason.ALLOWED.value}") == flooding.record.llen("grants"):  # all have reported
                denied = int(sum(counts.get(f"store: {reason.value}", 0) for reason in _DENIALS))
        else:  # with a backlog that is left, workers that stop in peace would put back every job first
            flooding.kill()
        tenants = dict(enumerate([*plan.backlog, *(tenant for _, tenant in plan.coming)]))
        starts = sorted((start.at_us / 1e6 - began, int(start.job)) for start in flooding.starts())
        grants = [grant.at_us for grant in flooding.grants()]
    ran = max(1, len(starts) - ran_first)
    each_first = asked_first / max(1, len(plan.backlog))
    old = sum(job < len(plan.backlog) for at, job in starts if at > 0) / ran
    interval_us = limit.made().period_us / limit.made().amount
    return Happened(
        starts=starts,
        tenants=tenants,
        sent=sent,
        grants=[at_us / 1e6 - began for at_us in grants],
        asks=(asked - asked_first) / ran + each_first * old,
        denied=denied,
        seconds=seconds,
        struck=struck,
        beyond_us=None if plan.acts or not grants else bursts_beyond_us(grants, limit.burst, interval_us),
    )


class _Pump:
    """A round robin of one's own: a queue for each tenant, and one sender that takes one of each in turn."""

    def __init__(self, flooding: Flooding, limit: FloodLimit) -> None:
        self._flooding = flooding
        self._queues: dict[str, deque[str]] = {}
        self._every = limit.made().period_us / limit.made().amount / 1e6
        self._next = time.time()

    def send(self, actor: str, index: str, tenant: str) -> None:
        self._queues.setdefault(tenant, deque()).append(index)

    def pass_on(self) -> None:
        """Send what is due by now."""
        while self._queues and self._next <= time.time():
            tenant, queue = next(iter(self._queues.items()))
            self._flooding.send("job", queue.popleft(), tenant)
            del self._queues[tenant]
            if queue:
                self._queues[tenant] = queue
            self._next += self._every


def _follow(
    plan: Plan, flooding: Flooding, apart: Flooding | None, pump: _Pump | None, control: Control, began: float
) -> tuple[dict[int, float], float]:
    """Send and do what is due, until the window ends; return when each job was sent, and when it had struck."""
    sent: dict[int, float] = {}
    struck = math.inf
    coming, acts = deque(enumerate(plan.coming, len(plan.backlog))), deque(plan.acts)
    while True:
        now = time.time() - began
        while coming and coming[0][1][0] <= now:
            job, (_, tenant) = coming.popleft()
            sent[job] = time.time() - began
            (pump or flooding).send("job", str(job), tenant)
        while acts and acts[0][0] <= now:
            acts.popleft()[1](control)
        if now >= plan.struck and struck == math.inf:
            if apart is not None:
                apart.kill()
            else:
                flooding.purge()
            struck = time.time() - began
        if pump is not None:
            pump.pass_on()
        if plan.seconds is None:
            if flooding.record.scard("ended") >= len(plan.backlog) or now > flooding.flood.give_up:
                return sent, struck
        elif now >= plan.seconds:
            return sent, struck
        time.sleep(0.002 if plan.coming else 0.05)


def _works(flooding: Flooding, pump: _Pump | None) -> bool:
    if pump is not None:
        pump.pass_on()
    return len(flooding.starts()) > flooding.flood.limits[0].burst


def _wait_until_in_line(plan: Plan, flooding: Flooding, store: Any) -> None:
    """All that have not run are on the waitlist, but for the few that a worker has in its hands."""

    def placed() -> bool:
        waiting = sum(store.hlen(name) for name in store.scan_iter("tk1:{*}:*:entries1", count=1000))
        return bool(waiting + flooding.record.scard("ended") >= len(plan.backlog) - 20)

    wait_until(placed, description="each job has its place in line", timeout=flooding.flood.give_up, every=0.25)
