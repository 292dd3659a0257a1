"""
Stacks of frameworks and brokers × faults of the first jobs: whether the jobs behind them run.

For each fault, `AHEAD` jobs of kind "a" wait before `BEHIND` jobs of kind "b" for one limit (`support.others.jobs`).
Half of the latter are denied before the fault begins, and have an old estimate; half are sent after it. During the
fault, they should run at the limit's rate.

    results = run("huey", FAULTS)
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import redis

from support.others.jobs import RATE, Fleet, account_of, limits_of
from support.others.stacks import STACKS, Running, Stack, delete_queues
from support.plain.plan import Producer
from support.servers.processes import RedisProcess, rabbitmq_server, redis_server
from support.waiting import wait_until
from throttlekit import Control

__all__ = ["AHEAD", "BEHIND", "DEADLINE_S", "Result", "SetupFailed", "run"]

AHEAD, BEHIND = 100, 6
DEADLINE_S = 30.0
"""The first jobs need 100 s at the limit's rate, and the jobs behind them 6 s."""

_RUNS = itertools.count(1)
_QUEUES = {"undecodable": "deployed", "queue": "dead"}  # the queues of kind "a"; all other jobs are in the queue "main"


class Result(NamedTuple):
    """
    Attributes:
        ran: The jobs of kind "b" that ran before the deadline, and how often each ran.
        seconds: After how many seconds all had run; `DEADLINE_S` if some had not.
    """

    ran: Mapping[str, int]
    seconds: float

    @property
    def all_ran_once(self) -> bool:
        return self.ran == dict.fromkeys(_indices("b", BEHIND), 1)

    def __str__(self) -> str:
        extra = sum(self.ran.values()) - len(self.ran)
        within = f" in {self.seconds:.1f} s" if len(self.ran) == BEHIND else ""
        return f"{len(self.ran)} of {BEHIND}{within}{f', {extra} extra' if extra else ''}"


class SetupFailed(Exception):
    """The state before the fault could not be reached."""


def run(stack: str, faults: Sequence[str], rabbitmq_url: str | None = None) -> dict[str, Result]:
    """
    Cause all *faults* at once in one fleet of *stack*. Nothing is left when this returns.

    Args:
        rabbitmq_url: None: start one, if the stack needs it.
    """
    with contextlib.ExitStack() as servers:
        base = servers.enter_context(redis_server())
        group = servers.enter_context(contextlib.closing(RedisProcess()))
        group.start()
        broker_url = f"{base}/0"
        if STACKS[stack].kind == "rabbitmq":
            broker_url = rabbitmq_url or servers.enter_context(rabbitmq_server())
        fleet = Fleet(
            framework=STACKS[stack].framework,
            broker_url=broker_url,
            redis_base=base,
            group_url=f"{group.url}/1",
            queue=f"others-{os.getpid()}-{next(_RUNS)}",
            form=STACKS[stack].form,
        )
        with contextlib.closing(_Run(STACKS[stack], fleet, faults, group)) as run:
            try:
                run.prepare()
            except AssertionError as error:
                raise SetupFailed(f"{error}\n{run.log()[-6000:]}") from error
            return run.judge()


class _Run:
    """One fleet of a stack, with a queue and workers for each of "main", "deployed" and "dead"."""

    def __init__(self, stack: Stack, fleet: Fleet, faults: Sequence[str], group: RedisProcess) -> None:
        self._stack, self._faults, self._group = stack, faults, group
        names = ["main", *(_QUEUES[fault] for fault in faults if fault in _QUEUES)]
        self._fleets = {name: replace(fleet, queue=f"{fleet.queue}-{name}") for name in names}
        self._producers: dict[str, Producer] = {name: each.producer() for name, each in self._fleets.items()}
        self._running: dict[str, Running] = {}
        self._record: Any = redis.Redis.from_url(fleet.record_url, decode_responses=True)
        self._store: Any = redis.Redis.from_url(fleet.store_url, decode_responses=True)
        self._control = Control(fleet.store_url, by="test")

    def prepare(self) -> None:
        """Let all jobs wait, and begin the faults."""
        for name, fleet in self._fleets.items():
            self._running[name] = self._stack.start(fleet, 2 if name == "main" else 1)
        for name in self._fleets:
            self._wait_until_ready(name)
        for fault in self._faults:
            self._send(fault, "a", AHEAD)
        self._wait_until_all_wait(AHEAD)
        for fault in self._faults:
            self._send(fault, "b", BEHIND // 2)
        self._wait_until_all_wait(AHEAD + BEHIND // 2)
        for fault in sorted(self._faults, key=lambda fault: fault != "undecodable"):  # a deployment takes seconds
            getattr(self, f"_begin_{fault}")()
        for fault in self._faults:
            left = AHEAD - len(self._ran(fault, "a"))
            assert left > 1.5 * DEADLINE_S * RATE, f"too few of the first jobs are left on this slow machine: {left}"

    def judge(self) -> dict[str, Result]:
        """Wait until all jobs of kind "b" have run, or until the deadline."""
        began = time.monotonic()
        for fault in self._faults:
            self._send(fault, "b", BEHIND - BEHIND // 2, first=BEHIND // 2)
        results: dict[str, Result] = {}
        while (now := time.monotonic() - began) < DEADLINE_S and len(results) < len(self._faults):
            for fault in set(self._faults) - set(results):
                if len(self._ran(fault)) == BEHIND:
                    results[fault] = Result({}, now)
            time.sleep(0.05)
        return {
            fault: Result(self._ran(fault), results[fault].seconds if fault in results else DEADLINE_S)
            for fault in self._faults
        }

    def log(self) -> str:
        return "".join(running.log() for running in self._running.values())

    def close(self) -> None:
        for running in self._running.values():
            running.close()
        for producer in self._producers.values():
            producer.close()
        self._control.close()
        self._record.close()
        self._store.close()
        if self._stack.kind == "rabbitmq":
            delete_queues(self._fleets["main"].broker_url, [fleet.queue for fleet in self._fleets.values()])

    def _send(self, fault: str, kind: str, count: int, first: int = 0) -> None:
        name = _queue_of(fault, kind)
        for index in _indices(kind, first + count)[first:]:
            limits = limits_of(kind, fault)
            self._producers[name].send(f"{kind}_{fault}", limits, index=index, account=account_of(kind))

    def _ran(self, fault: str, kind: str = "b") -> dict[str, int]:
        ran: dict[str, int] = {}
        for index in self._record.lrange(f"ran:{kind}_{fault}", 0, -1):
            ran[index] = ran.get(index, 0) + 1
        return ran

    def _wait_until_ready(self, name: str) -> None:
        running = self._running[name]
        wait_until(running.ready, description=f"the workers of {name} are ready", timeout=60)
        assert running.running, f"the workers of {name} have ended"

    def _wait_until_all_wait(self, sent: int) -> None:
        """Wait until all sent jobs of each fault have run or are on the waitlist of their shared limit."""

        def missing() -> dict[str, int]:
            left = {}
            for fault in self._faults:
                ran = len(self._ran(fault, "a")) + len(self._ran(fault))
                waitlists = self._store.scan_iter(f"tk1:{{all-{fault}:}}:*:entries1")
                waiting = sum(self._store.hlen(name) for name in waitlists)
                left[fault] = sent - ran - waiting
            return left

        # A job that was just admitted is not counted in either.
        wait_until(lambda: all(left <= 2 for left in missing().values()), description="all jobs wait")

    def _begin_pause(self) -> None:
        self._control.pause("account-pause", key="A")

    def _begin_429(self) -> None:
        self._record.set("429", 1)
        wait_until(lambda: self._record.exists("refused"), description="a job has received a 429", timeout=60)

    def _begin_set(self) -> None:
        self._control.set("second-set", "1/h", burst=1)

    def _begin_store(self) -> None:
        self._group.kill()

    def _begin_queue(self) -> None:
        self._running["dead"].close()

    def _begin_undecodable(self) -> None:
        self._running["deployed"].stop()
        self._running["deployed"].close()
        fleet = replace(self._fleets["deployed"], without=["a_undecodable"])
        self._running["deployed"] = self._stack.start(fleet, 1)
        self._wait_until_ready("deployed")


def _indices(kind: str, count: int) -> list[str]:
    return [f"{kind}{number}" for number in range(count)]


def _queue_of(fault: str, kind: str) -> str:
    if fault == "undecodable":
        return "deployed"
    return "dead" if fault == "queue" and kind == "a" else "main"
