"""
A backlog, real `dramatiq` worker processes with one of several limiters, and the record of a run.

    with support.servers.flood.servers("redis") as where:
        result = run(Flood(limits=(FloodLimit("partner", "50/s", 50),), jobs=400), where)

`support.flood.figures` calculates figures from the result of `run`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

import redis

from support.dramatiq.workers import dramatiq_command
from support.faults.processes import Command, Fleet
from support.flood.limits import FloodLimit
from support.servers.flood import Sender, Servers
from support.waiting import wait_until

__all__ = ["Flood", "FloodLimit", "FloodRecord", "Flooding", "Grant", "Start", "run"]

Mode = Literal["throttlekit", "naive", "native", "blocking", "none"]
_MODULE = "support.flood.jobs"
_QUICK_RECOVERY = {"maintenance_chance": 200_000}
_LONG_QUIET = 10.0
_RUNS = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Flood:
    """
    The plan of a flood.

    Attributes:
        limits: The limits of the actor `job`, which runs the whole backlog. `naive` and `native` use the first one.
        jobs: How many jobs are sent before the workers start; `account_of` returns the second argument of each.
        body: How many seconds each job takes.
        give_up: After how many seconds the workers are stopped, even if jobs are left.
        kills: The times in seconds at which every process is killed, and new ones are started.
        pace: How many jobs per second are sent while the workers run, instead of a backlog.
        options: Dramatiq's options of the actor.
        settle: How many seconds without an event end the flood.
        others: Further actors and their limits, on the same queue.
        faulty: Brokers and workers will die, so the others must detect it soon.
        apart: Whether each worker process of Dramatiq has its own command, because a command ends with any of its
            processes.
        slow_s: The bodies call a `HiddenPartner` in the recording Redis, and an answer that takes longer is an
            overload. None: they call no partner.
    """

    limits: tuple[FloodLimit, ...]
    jobs: int
    mode: Mode = "throttlekit"
    processes: int = 2
    threads: int = 4
    body: float = 0.0
    give_up: float = 120.0
    kills: tuple[float, ...] = ()
    pace: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settle: float = 1.5
    account_of: Callable[[int], str] = field(default=lambda index: "one", compare=False)
    others: Mapping[str, tuple[FloodLimit, ...]] = field(default_factory=dict[str, tuple[FloodLimit, ...]])
    faulty: bool = False
    apart: bool = False
    slow_s: float | None = None
    flooding: ClassVar[type[Flooding]]

    def environment(self, where: Servers, queue: str) -> dict[str, str]:
        actors = {"job": self.limits, **self.others}
        options = _QUICK_RECOVERY if where.kind == "redis" and (self.kills or self.faulty) else {}
        config = {
            "broker_url": where.broker_url,
            "store_url": where.store_url,
            "record_url": f"{where.redis_base}/2",
            "queue": queue,
            "mode": self.mode,
            "body": self.body,
            "actors": {name: [asdict(limit) for limit in limits] for name, limits in actors.items()},
            "actor_options": dict(self.options),
            "broker_options": options,
            "slow_s": self.slow_s,
        }
        return {"TK_FLOOD": json.dumps({**config, **self.more(where)})}

    def more(self, where: Servers) -> dict[str, Any]:
        """Return the additional configuration of the workers of one framework."""
        return {}


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a body, by the clock of the recording Redis."""

    at_us: int
    job: str
    process: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant of the store, with the name, the charge and the new state of each bucket."""

    at_us: int
    buckets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class FloodRecord:
    """
    The record of a flood.

    Attributes:
        ends: The job of each body that ended.
        counts: Counts of the workers: deliveries, operations (enqueue, ack, nack), cpu, and the store's answers by
            reason, without processes that were killed.
        broker_commands: The commands of the broker's Redis, including polling. None for RabbitMQ.
        left: How many messages are still in the broker, including dead letters.
    """

    flood: Flood
    starts: list[Start]
    ends: list[str]
    grants: list[Grant]
    counts: dict[str, float]
    broker_commands: int | None
    left: int
    log: str

    @property
    def begun_twice(self) -> int:
        """How many bodies began, minus one for each job. A job whose body was killed must begin again."""
        return len(self.starts) - len({start.job for start in self.starts})

    @property
    def ended_twice(self) -> int:
        return len(self.ends) - len(set(self.ends))


def run(flood: Flood, where: Servers, kind: type[Flooding] | None = None) -> FloodRecord:
    """Run *flood*. When this returns, no process, message or key of it is left."""
    with (kind or flood.flooding)(flood, where) as flooding:
        if flood.pace is None:
            flooding.send_backlog()
        flooding.start()
        _follow(flooding)
        return flooding.stop()


class Flooding:
    """A running flood, which a test can control step by step."""

    def __init__(self, flood: Flood, where: Servers) -> None:
        base = redis.Redis.from_url(where.redis_base)
        base.flushall()
        base.close()
        queue = self.queue = f"flood-{next(_RUNS)}"
        self.flood = flood
        self.record: Any = redis.Redis.from_url(f"{where.redis_base}/2", decode_responses=True)
        self._sender = self.sender(where, queue)
        self._environment = flood.environment(where, queue)
        self._workers: Fleet | None = None
        self._logs: list[str] = []
        self.send = self._sender.send

    def __enter__(self) -> Flooding:
        return self

    def __exit__(self, *error: object) -> None:
        if self._workers is not None:
            self._workers.close()
        self._sender.close()
        self.record.close()

    @property
    def running(self) -> bool:
        return self._workers is not None and self._workers.running

    ready = "ready for action"
    """What each worker process prints when it is ready."""

    counts_cpu = True
    """Whether the workers count the CPU that they use. Otherwise it is read before they are stopped."""

    def sender(self, where: Servers, queue: str) -> Any:
        """Return the producer."""
        return Sender(where, queue)

    @property
    def started(self) -> bool:
        return self._workers is not None

    @property
    def fleet(self) -> Fleet:
        """The current workers."""
        assert self._workers is not None
        return self._workers

    @property
    def commands(self) -> Sequence[Command]:
        """The current commands."""
        return self.fleet.commands

    def workers(self) -> Fleet:
        """Start the worker processes, and return them."""
        commands, each = (self.flood.processes, 1) if self.flood.apart else (1, self.flood.processes)
        command = dramatiq_command(_MODULE, processes=each, threads=self.flood.threads)
        return Fleet([command] * commands, self._environment)

    def send_backlog(self) -> None:
        """Send all jobs of the flood."""
        for index in range(self.flood.jobs):
            self.send("job", str(index), self.flood.account_of(index))

    def send_many(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Send a job for each actor and index, in this order, in batches: for backlogs of many thousands."""
        self._sender.send_many(jobs)

    def start(self) -> None:
        """Start the workers, and return when they are ready or have failed."""
        workers = self._workers = self.workers()
        wait_until(
            lambda: workers.log().count(self.ready) >= self.flood.processes or not workers.running,
            description="the workers are ready",
        )

    def kill(self) -> None:
        """Kill every worker process at once."""
        if self._workers is not None:
            self._workers.kill()
            self._logs.append(self._workers.log())
            self._workers.close()
            self.expire()

    def log(self) -> str:
        """Return the output of the current workers."""
        return self.fleet.log()

    def stop_workers(self, number: int) -> None:
        """Stop the workers with a signal, after which they must end without SIGKILL."""
        self.fleet.signal(number)
        assert self.fleet.ends_within(30), self.log()[-3000:]
        self._logs.append(self.log())
        self.fleet.close()

    def purge(self) -> None:
        """Delete all waiting jobs, as far as the framework can: see its sender."""
        self._sender.purge()

    def expire(self) -> None:
        """Let the next workers detect at once that all workers are dead."""
        self._sender.expire(self._sender.heartbeats())

    def stop(self) -> FloodRecord:
        """Stop the workers cleanly, and return the record."""
        if self._workers is not None:
            if not self.counts_cpu and self.running:
                self.record.hincrbyfloat("counts", "cpu", self._workers.cpu_seconds())
            self._workers.stop()
            self._logs.append(self._workers.log())
        record = self.record
        return FloodRecord(
            flood=self.flood,
            starts=self.starts(),
            ends=record.lrange("ends", 0, -1),
            grants=self.grants(),
            counts={name: float(count) for name, count in record.hgetall("counts").items()},
            broker_commands=self._sender.commands(),
            left=self.left(),
            log="".join(self._logs),
        )

    def left(self) -> int:
        """Return how many messages are still in the broker, including dead letters."""
        return int(self._sender.left())

    def starts(self) -> list[Start]:
        """Return the starts of bodies until now."""
        return [_start(line) for line in self.record.lrange("starts", 0, -1)]

    def grants(self) -> list[Grant]:
        """Return the grants of the store until now, in the order of its clock."""
        found = [_grant(line) for line in self.record.lrange("grants", 0, -1)]
        return sorted(found, key=lambda grant: grant.at_us)


Flood.flooding = Flooding


def _follow(flooding: Flooding) -> None:
    """Kill workers and send jobs as the flood's plan says, until it is over."""
    flood, record = flooding.flood, flooding.record
    kills = sorted(flood.kills)
    sent = 0 if flood.pace else flood.jobs
    began = quiet_since = time.monotonic()
    seen: tuple[int, ...] = ()
    while flooding.running:
        now = time.monotonic() - began
        if kills and now >= kills[0]:
            kills.pop(0)
            flooding.kill()
            flooding.start()
        while flood.pace and sent < min(flood.jobs, now * flood.pace):
            flooding.send("job", str(sent), flood.account_of(sent))
            sent += 1
        last, seen = seen, (record.llen("starts"), record.llen("ends"))
        quiet_since = time.monotonic() if seen != last else quiet_since
        done = sent == flood.jobs and record.scard("ended") == flood.jobs
        quiet = time.monotonic() - quiet_since
        # A job that runs twice after a kill may still wait.
        settled = quiet > flood.settle and (flooding.left() == 0 or quiet > _LONG_QUIET)
        if now > flood.give_up or (done and not kills and settled):
            return
        time.sleep(0.02 if kills or flood.pace else 0.1)


def _start(line: str) -> Start:
    at_us, job, process = line.split()
    return Start(int(at_us), job, int(process))


def _grant(line: str) -> Grant:
    at_us, buckets = json.loads(line)
    return Grant(at_us, tuple((name, charge_us, tat_us) for name, charge_us, tat_us in buckets))
