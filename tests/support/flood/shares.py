"""
Jobs of several tenants of one limit on real workers: a backlog, and jobs that are sent while it drains.

    happened = happen(Plan(backlog=["heavy"] * 10_000, coming=[(0.1, "light")], seconds=30), "dramatiq, redis", limit)

`happen` runs the plan, and returns pure figures. All times are seconds from the beginning of the window.
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
"""Two worker processes of each kind, and their broker."""

ALSO: dict[str, tuple[Callable[..., Flood], Kind]] = {
    "taskiq, Redis": (TaskiqFlood, "redis"),
    "taskiq, RabbitMQ": (TaskiqFlood, "rabbitmq"),
}
"""The same for frameworks that the benchmark does not show."""

_DENIALS = tuple(reason for reason in Reason if reason is not Reason.ALLOWED)


class Plan(NamedTuple):
    """
    The plan of a run.

    Attributes:
        backlog: The tenant of each job that waits when the window begins.
        coming: The time and the tenant of each later job, in this order.
        seconds: The length of the window. None: from the beginning until the last job of the backlog has run.
        acts: The actions of an operator, and their times.
        own: A tenant with a separate queue and workers. "": all tenants share them.
        struck: When the workers of `own` are killed. Without `own`: when all waiting jobs are deleted, as far as the
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
    The result of a run.

    Attributes:
        starts: The time and the job of each start, in this order.
        tenants: The tenant of each job.
        sent: When each job of the window was sent.
        grants: The times of the grants, in this order.
        asks: Decisions and looks of the limits' store per job that ran, including a share of those before the window.
            Reads of the rules, which each process makes once or twice per second, do not count.
        denied: How often the limits' store denied a request of a job. Looks do not count. None: not all workers have
            reported it. Workers that are killed, because a backlog is left, never report it.
        seconds: The length of the window.
        struck: When the workers were dead or the jobs were deleted.
        beyond_us: By how much time the grants exceed the bound; <= 0: it is kept. None: the rate was changed.
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
        """
        Return the wait in seconds of each job that was sent in the window, for tenants whose names start with *begin*.
        If a job has not run, the wait until the end counts.
        """
        ran = {job: at for at, job in reversed(self.starts)}
        mine = [(job, at) for job, at in self.sent.items() if self.tenants[job].startswith(begin)]
        return sorted(ran.get(job, self.seconds) - at for job, at in mine)

    def service(self, since: float, until: float) -> Counter[str]:
        """Return how many jobs of each tenant began."""
        return Counter(self.tenants[job] for at, job in self.starts if since < at <= until)

    def service_each(self, seconds: int) -> dict[str, list[int]]:
        """Return the same for each interval of *seconds* of the window, with the tenants that got most first."""
        whole = int(self.seconds // seconds)
        parts = [self.service(n * seconds, (n + 1) * seconds) for n in range(whole)]
        return {tenant: [got[tenant] for got in parts] for tenant, _ in sum(parts, Counter[str]()).most_common()}

    def use(self, rate: float, since: float, until: float) -> float:
        """Return the share of the limit that was granted; without a limit, the share that began."""
        times = self.grants or [at for at, _ in self.starts]
        return sum(since < at <= until for at in times) / (rate * (until - since))

    def apart(self, tenants: Sequence[str], since: float, until: float) -> int:
        """Return the largest difference between the jobs of two tenants in any interval."""
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
        """Return Jain's index of the jobs of *tenants*, in the worst window of *window* seconds."""
        worst = 1.0
        for number in range(int(self.seconds // window)):
            got = self.service(number * window, (number + 1) * window)
            rates = [got[tenant] for tenant in tenants]
            if any(rates):
                worst = min(worst, sum(rates) ** 2 / len(rates) / sum(rate * rate for rate in rates))
        return worst

    def order(self, tenant: str) -> tuple[float, float]:
        """Return the share of pairs of a tenant's jobs in the wrong order, and by how many seconds at most."""
        mine = [(at, job) for at, job in self.starts if self.tenants[job] == tenant]
        worst, next_start = 0.0, {job: at for at, job in reversed(mine)}
        earliest = float("inf")
        for job in sorted(next_start, reverse=True):
            worst = max(worst, next_start[job] - earliest)
            earliest = min(earliest, next_start[job])
        return inversions([job for _, job in mine]), worst


def percentile(values: Sequence[float], part: float) -> float:
    """Return the percentile *part* of sorted values."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


@contextlib.contextmanager
def _where(kind: Kind) -> Iterator[Servers]:
    with servers(kind) as where, redis_server() as limits:
        yield replace(where, limits_url=patient(f"{limits}/1"))


def happen(plan: Plan, workers: str, limit: FloodLimit, **options: Any) -> Happened:
    """
    Run *plan* on new servers, and leave nothing behind.

    Args:
        options: Further options of the flood. mode="none": there is no limit, and the jobs are sent by a round robin
            over one queue for each tenant, at the limit's rate.
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
        requests_first = ran_first = 0
        if plan.seconds is not None and flood.mode == "throttlekit":
            _wait_until_all_wait(plan, flooding, store)
            requests_first, began = scripts_run(store, ["evalsha"]), time.time()
        elif plan.seconds is not None:
            wait_until(lambda: _has_begun(flooding, pump), description="the workers run jobs", timeout=60)
            began = time.time()
        if plan.seconds is not None:
            ran_first = len(flooding.starts())
        control = Control(where.store_url.partition("?")[0], by="benchmark")
        sent, struck = _follow(plan, flooding, apart, pump, control, began)
        requests, seconds = scripts_run(store, ["evalsha"]), time.time() - began
        store.close()
        denied: int | None = None
        if plan.seconds is None:
            counts = flooding.stop().counts
            if counts.get(f"store: {Reason.ALLOWED.value}") == flooding.record.llen("grants"):  # all have reported
                denied = int(sum(counts.get(f"store: {reason.value}", 0) for reason in _DENIALS))
        else:  # with a backlog, workers that stop cleanly would first requeue every job
            flooding.kill()
        tenants = dict(enumerate([*plan.backlog, *(tenant for _, tenant in plan.coming)]))
        starts = sorted((start.at_us / 1e6 - began, int(start.job)) for start in flooding.starts())
        grants = [grant.at_us for grant in flooding.grants()]
    ran = max(1, len(starts) - ran_first)
    each_first = requests_first / max(1, len(plan.backlog))
    old = sum(job < len(plan.backlog) for at, job in starts if at > 0) / ran
    interval_us = limit.made().period_us / limit.made().amount
    return Happened(
        starts=starts,
        tenants=tenants,
        sent=sent,
        grants=[at_us / 1e6 - began for at_us in grants],
        asks=(requests - requests_first) / ran + each_first * old,
        denied=denied,
        seconds=seconds,
        struck=struck,
        beyond_us=None if plan.acts or not grants else bursts_beyond_us(grants, limit.burst, interval_us),
    )


class _Pump:
    """A simple round robin: a queue for each tenant, and one sender that takes a job of each in turn."""

    def __init__(self, flooding: Flooding, limit: FloodLimit) -> None:
        self._flooding = flooding
        self._queues: dict[str, deque[str]] = {}
        self._every = limit.made().period_us / limit.made().amount / 1e6
        self._next = time.time()

    def send(self, actor: str, index: str, tenant: str) -> None:
        self._queues.setdefault(tenant, deque()).append(index)

    def pass_on(self) -> None:
        """Send the jobs whose time has come."""
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
    """
    Send jobs and run actions at their times, until the window ends. Return when each job was sent, and when the workers
    were killed or the jobs deleted.
    """
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


def _has_begun(flooding: Flooding, pump: _Pump | None) -> bool:
    if pump is not None:
        pump.pass_on()
    return len(flooding.starts()) > flooding.flood.limits[0].burst


def _wait_until_all_wait(plan: Plan, flooding: Flooding, store: Any) -> None:
    """Wait until all jobs that have not run are on the waitlist, except for a few that workers hold."""

    def all_wait() -> bool:
        waiting = sum(store.hlen(name) for name in store.scan_iter("tk1:{*}:*:entries1", count=1000))
        return bool(waiting + flooding.record.scard("ended") >= len(plan.backlog) - 20)

    wait_until(all_wait, description="each job is on the waitlist", timeout=flooding.flood.give_up, every=0.25)
