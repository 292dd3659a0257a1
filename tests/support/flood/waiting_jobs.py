"""
Many jobs that wait for one limit, on four real worker processes: their cost, and what happens to them.

    found = happen(Plan(jobs=100_000), "Celery, Redis")

The backlog need not drain. It is measured for some time, with a change of the rate, a restart of all workers and the
SIGKILL of one of them. Then every job is searched for: it is done, or the broker has it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import redis

from support.faults.processes import Command, cpu_seconds
from support.flood.contents import contents, ready
from support.flood.figures import bursts_beyond_us, full_from, lateness
from support.flood.limits import FloodLimit
from support.flood.meters import pids_of_broker, pids_of_redis, pss_mb, scripts_run
from support.flood.run import Flooding
from support.flood.shares import STOCK, WOKEN, WORKERS
from support.rq.flood import OURS_SIMPLE
from support.servers.flood import Servers, servers
from support.servers.processes import patient, redis_server
from support.waiting import wait_until
from throttlekit import Control

__all__ = ["KINDS", "Found", "Plan", "Work", "happen"]

KINDS = [name for name in WORKERS if name not in (STOCK, WOKEN)]
_FULL_FOR, _FULL = 3.0, 0.95
"""The limit is fully used from a time on if at least `_FULL` of it is used in the `_FULL_FOR` seconds after it."""

_STILL, _MORE = 8.0, 1.4
"""The workers take no more of the backlog if, for `_STILL` seconds, they took at most `_MORE` jobs per job that ran."""

_FOLLOWED = 2.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """
    The plan of a run.

    Attributes:
        jobs: How many jobs wait. If many of them have run, as many are sent before the next phase.
        rate, burst: The rate per second and the burst of the limit.
        window: The maximum duration of the measurement in seconds. For a short backlog: the time in which three fifths
        run. slow, fast: The rates that are set. patience: The seconds that the workers have to take the backlog, and to
        stop. after: The maximum time in seconds until the limit is fully used again.
    """

    jobs: int
    rate: int = 50
    burst: int = 10
    processes: int = 4
    window: float = 30.0
    slow: int = 10
    fast: int = 100
    patience: float = 300.0
    after: float = 60.0

    @property
    def seconds(self) -> float:
        return min(self.window, 0.6 * self.jobs / self.rate)


class Work(NamedTuple):
    """CPU in µs per job, and requests to the limits' store per job."""

    workers: float
    broker: float
    store: float
    asks: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """
    The result of a run. Times are in seconds.

    Attributes:
        sent: How many jobs were sent, including replacements.
        taken, taken_s: How many of the first jobs the workers had taken when the window began, and after how many
        seconds. first_s, ready_s: From the start of the workers' commands to the first start of a job, and until all
        are ready. worker_mb, peak_mb: The memory (PSS) of each worker with its children when the window began, and the
        maximum of
            any worker at the end of a phase.
        sent_b, broker_b, store_b: The memory of the broker in bytes per job before the workers started and when the
            window began, and that of the limits' store.
        line, drain: The cost to add a job to the waitlist, and to run a job of the window.
        use, load: The used share of the limit in the window, and the load of the machine at its end, by the kernel.
        overtaken, places: Of the jobs that began, the share that began after a job that was sent later, and the largest
            displacement.
        beyond_us: By how much time the grants exceed the bound; <= 0: it is kept.
        extra_1_s, extra_100_s: From the call of `set` to the first and the hundredth start beyond the old rate. None:
        not
            in time.
        restart, kill: The seconds from the SIGTERM to all workers or the SIGKILL of one to each event. None: not in
        time. twice_before, twice: How many bodies began twice before the kill, and in total. lost, doubled, again,
        dead, stranded: Jobs that are missing; that the broker has twice; that it has although they
            are done; that are dead letters; that it has and will not deliver.
        done, waiting: Jobs that ran, and that the broker has at the end.
        deliveries: Deliveries to workers that were stopped cleanly, as they count them.
    """

    sent: int
    taken: int
    taken_s: float
    first_s: float
    ready_s: float
    worker_mb: list[float]
    peak_mb: float
    sent_b: float
    broker_b: float
    store_b: float
    line: Work
    drain: Work
    use: float
    load: float
    overtaken: float
    places: int
    beyond_us: float
    extra_1_s: float | None
    extra_100_s: float | None
    restart: dict[str, float | None]
    kill: dict[str, float | None]
    twice_before: int
    twice: int
    lost: int
    doubled: int
    again: int
    dead: int
    stranded: int
    done: int
    waiting: int
    deliveries: float


def happen(plan: Plan, workers: str) -> Found:
    """Run *plan* on new servers, and leave nothing behind."""
    flood_of, kind = WORKERS[workers]
    limit = FloodLimit("partner", f"{plan.rate}/s", plan.burst)
    how: dict[str, Any] = {"processes": plan.processes, "apart": True}
    if workers.startswith("RQ"):
        how["kinds"] = (OURS_SIMPLE,) * plan.processes
    flood = flood_of(limits=(limit,), jobs=plan.jobs, **how)
    with servers(kind) as found, redis_server() as limits:
        where = replace(found, limits_url=patient(f"{limits}/1"))
        with flood.flooding(flood, where) as flooding:
            return _Measuring(plan, where, flooding).measure()


@dataclass(frozen=True)
class _Reading:
    """CPU of processes in seconds since their start, and requests to the limits' store."""

    workers: float
    broker: float
    store: float
    asks: int

    def until(self, later: _Reading, jobs: int) -> Work:
        pairs = (self.workers, later.workers), (self.broker, later.broker), (self.store, later.store)
        each = max(1, jobs)
        return Work(*(1e6 * (b - a) / each for a, b in pairs), (later.asks - self.asks) / each)


@dataclass
class _Measuring:
    """One measurement, phase by phase."""

    plan: Plan
    where: Servers
    flooding: Flooding
    sent: int = 0
    peak_mb: float = 0.0
    store: Any = field(init=False)

    def measure(self) -> Found:
        plan, flooding = self.plan, self.flooding
        self.store = redis.Redis.from_url(self.where.store_url)
        empty = self._memory()
        self._send(plan.jobs)
        sent_b = (self._memory()[0] - empty[0]) / plan.jobs
        before, launched = self._read(), time.time()
        flooding.start()
        ready_s = time.time() - launched
        first, left = self._cpu_of_workers(), self._wait_until_taken()
        at_backlog, began, taken = self._read(), time.time(), plan.jobs - left
        memory, worker_mb = self._memory(), self._worker_mb()
        # The workers' CPU until now is for interpreters and imports, and not for jobs.
        line = replace(before, workers=first).until(at_backlog, taken)
        time.sleep(plan.seconds)
        drained, ended, load = self._read(), time.time(), os.getloadavg()[0]
        starts = flooding.starts()
        first_s = min((start.at_us for start in starts), default=0) / 1e6 - launched
        inside = sum(began < start.at_us / 1e6 <= ended for start in starts)
        overtaken, places = lateness([int(job) for job in dict.fromkeys(start.job for start in starts)])
        changed, extra, constant_from = self._faster()
        restart = self._restart()
        twice_before, kill = self._twice(), self._kill()
        self._stop()
        grants = [grant.at_us for grant in flooding.grants()]
        interval_us = 1e6 / plan.rate
        parts = [at for at in grants if at < changed * 1e6], [at for at in grants if at > constant_from * 1e6]
        held = contents(self.where, self._queue)
        done = set(flooding.record.smembers("ended"))
        self.store.close()
        return Found(
            sent=self.sent,
            taken=taken,
            taken_s=began - launched - min(first_s, ready_s),
            first_s=first_s,
            ready_s=ready_s,
            worker_mb=worker_mb,
            peak_mb=self.peak_mb,
            sent_b=sent_b,
            broker_b=(memory[0] - empty[0]) / plan.jobs,
            store_b=(memory[1] - empty[1]) / plan.jobs,
            line=line,
            drain=at_backlog.until(drained, inside),
            use=inside / (plan.rate * (ended - began)),
            load=load,
            overtaken=overtaken,
            places=places,
            beyond_us=max((bursts_beyond_us(part, plan.burst, interval_us) for part in parts if part), default=0.0),
            extra_1_s=extra[0],
            extra_100_s=extra[1],
            restart=restart,
            kill=kill,
            twice_before=twice_before,
            twice=self._twice(),
            lost=self.sent - len(done | set(held.waiting)) - held.dead,
            doubled=sum(held.waiting.values()) - len(held.waiting),
            again=len(set(held.waiting) & done),
            dead=held.dead,
            stranded=held.stranded,
            done=len(done),
            waiting=len(set(held.waiting) - done),
            deliveries=float(flooding.record.hget("counts", "deliveries") or 0),
        )

    # Phases

    def _wait_until_taken(self) -> int:
        """Wait until the workers have taken all jobs or take no more. Return about how many are left."""
        until, left, last = time.monotonic() + self.plan.patience, [ready(self.where, self._queue)], time.monotonic()
        while left[-1] and time.monotonic() < until:
            time.sleep(0.25)
            left.append(ready(self.where, self._queue))
            # Jobs that are taken after others have run are no progress.
            if left[-1] < left[0] - 2 * _MORE * self.plan.rate * _STILL or not self.flooding.record.llen("starts"):
                left, last = left[-1:], time.monotonic()
            elif time.monotonic() - last > _STILL:
                break
        return left[-1] // 2

    def _faster(self) -> tuple[float, tuple[float | None, float | None], float]:
        """
        Set the slow rate, then the fast one. Return the time of the first change, the times of extra starts, and the
        end.
        """
        plan = self.plan
        self._top_up()
        changed = time.time()
        with Control(self.where.store_url, by="benchmark") as control:
            control.set("partner", f"{plan.slow}/s", burst=plan.burst)
            with contextlib.suppress(AssertionError):
                wait_until(
                    lambda: self._begun_since(time.time() - 2) <= 2 * plan.slow + 2,
                    description="the limit is slow",
                    timeout=plan.after,
                    every=0.1,
                )
            called = time.time()
            control.set("partner", f"{plan.fast}/s", burst=plan.burst)
            extra = lambda: self._extra(called)  # noqa: E731
            with contextlib.suppress(AssertionError):
                wait_until(
                    lambda: extra()[1] is not None,
                    description="a hundred extra jobs have started",
                    timeout=plan.after / 2,
                    every=0.1,
                )
            found = extra()
            control.unset("partner")
        time.sleep(_FOLLOWED)
        return changed, found, time.time()

    def _extra(self, called: float) -> tuple[float | None, float | None]:
        """Return when the first and the hundredth start beyond the slow rate occurred."""
        starts = self._starts()
        last = max((at for at in starts if at <= called), default=called)
        since = [at for at in starts if at > called]
        due = [round((at - last) * self.plan.slow) for at in since]
        extra = {number + 1 - would: at - called for number, (at, would) in enumerate(zip(since, due, strict=True))}
        more = [next((extra[n] for n in sorted(extra) if n >= least), None) for least in (1, 100)]
        return more[0], more[1]

    def _restart(self) -> dict[str, float | None]:
        """Stop all workers, and start them again."""
        self._top_up()
        sigterm_at = time.time()
        self._stop()
        stopped = time.time()
        self.flooding.start()
        ready = time.time()
        found = self._until_full(stopped, self.plan.burst)
        first = min((at for at in self._starts() if at > stopped), default=None)
        self._worker_mb()
        return {
            "stopped": stopped - sigterm_at,
            "ready": ready - sigterm_at,
            "first": None if first is None else first - sigterm_at,
            "full": None if found is None else found - sigterm_at,
        }

    def _kill(self) -> dict[str, float | None]:
        """Kill one of the workers. "use" is the used share of the limit in the seconds after that."""
        self._top_up()
        killed = time.time()
        self.flooding.commands[-1].kill()
        found = self._until_full(killed, 0)
        time.sleep(max(0.0, killed + self.plan.seconds / 2 - time.time()))
        over = time.time()
        use = self._begun_since(killed, over) / (self.plan.rate * (over - killed))
        self._worker_mb()
        return {"full": None if found is None else found - killed, "use": use}

    def _until_full(self, since: float, burst: int) -> float | None:
        units = _FULL * self.plan.rate * _FULL_FOR + burst
        with contextlib.suppress(AssertionError):
            return wait_until(
                lambda: full_from(self._starts(), since, units=units, seconds=_FULL_FOR),
                description="the limit is fully used",
                timeout=self.plan.after,
                every=0.25,
            )
        return None

    def _stop(self) -> None:
        """Send SIGTERM to every worker, and SIGKILL to workers that still run after the plan's patience."""
        self._worker_mb()
        commands = [command for command in self.flooding.commands if command.running]
        for command in commands:
            command.terminate()
        until = time.monotonic() + self.plan.patience
        for command in commands:
            command.ends_within(max(0.1, until - time.monotonic()))
            command.kill()

    def _top_up(self) -> None:
        """Send jobs until as many wait as in the beginning, if more than a quarter has run."""
        missing = self.plan.jobs - (self.sent - int(self.flooding.record.scard("ended")))
        if missing > self.plan.jobs / 4:
            self._send(missing)
            self._wait_until_taken()

    def _send(self, jobs: int) -> None:
        self.flooding.send_many(("job", str(index)) for index in range(self.sent, self.sent + jobs))
        self.sent += jobs

    # Readings

    @property
    def _queue(self) -> str:
        return str(self.flooding.queue)

    def _starts(self) -> list[float]:
        return sorted(start.at_us / 1e6 for start in self.flooding.starts())

    def _begun_since(self, since: float, until: float = float("inf")) -> int:
        return sum(since < at <= until for at in self._starts())

    def _twice(self) -> int:
        jobs = [start.job for start in self.flooding.starts()]
        return len(jobs) - len(set(jobs))

    def _read(self) -> _Reading:
        servers = pids_of_broker(self.where), pids_of_redis(self.store)
        return _Reading(self._cpu_of_workers(), *map(cpu_seconds, servers), scripts_run(self.store))

    def _cpu_of_workers(self) -> float:
        return self.flooding.fleet.cpu_seconds() if self.flooding.started else 0.0

    def _memory(self) -> tuple[float, float]:
        """
        Return the bytes of the broker and of the limits' store: Redis's used memory, or that of RabbitMQ's processes.
        """
        store = float(self.store.info("memory")["used_memory"])
        if self.where.kind == "rabbitmq":
            return 1e6 * pss_mb(pids_of_broker(self.where)), store
        with redis.Redis.from_url(self.where.broker_url) as broker:
            return float(broker.info("memory")["used_memory"]), store

    def _worker_mb(self) -> list[float]:
        found = [pss_mb(_pids(command)) for command in self.flooding.commands if command.running]
        self.peak_mb = max(self.peak_mb, *found, 0.0)
        return found


def _pids(command: Command) -> list[int]:
    return [command.pid, *command.children()]
