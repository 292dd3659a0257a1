"""One slot for a whole workflow, on real workers: a chain, a pipeline, and a job with dependents."""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import accumulate
from typing import Any, NamedTuple

import dramatiq
import pytest
import redis
import rq
from celery import Celery

from support.celery.quiet import QUIET
from support.dramatiq.workers import make_broker
from support.faults.processes import Command
from support.rq.flood import OURS, STOCK
from support.rq.workers import rq_worker
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit import Concurrency, Limiter
from throttlekit_rq import ThrottledQueue

pytestmark = [pytest.mark.workers, *QUIET]

STEPS = 3  # as in support.jobs.workflows
SLOTS = 2
_JOBS = "support.jobs.workflows"
_SPAWN = "throttlekit_rq.ThrottledSpawnWorker"
_SPAWNS = [int(part) for part in rq.VERSION.split(".")[:2]] >= [2, 6]
SITES = [
    "dramatiq",
    "celery",
    STOCK,
    OURS,
    pytest.param(_SPAWN, marks=pytest.mark.skipif(not _SPAWNS, reason="RQ's SpawnWorker does not work here")),
]


class Event(NamedTuple):
    """A step that begins or ends, or the end of a workflow. *more* is the step's process, or how the step ended."""

    at_us: int
    what: str
    workflow: str
    number: int
    more: str


class Site:
    """Workers of one framework, and the queue to send workflows to them."""

    def __init__(self, kind: str, base: str, lease: float) -> None:
        self.kind, self.lease = kind, lease
        self.limit = Concurrency("gpu", SLOTS, lease=lease, held_by="{workflow}")
        self._broker_url = f"{base}/3"
        self._record: Any = redis.Redis.from_url(f"{base}/2", decode_responses=True)
        self._record.flushall()
        self.limiter = Limiter(patient(f"{base}/1"))
        jobs_settings = {
            "store": patient(f"{base}/1"),
            "record": f"{base}/2",
            "broker": self._broker_url,
            "lease": lease,
        }
        self._environment = {"TK_WORKFLOWS": json.dumps({**jobs_settings, "seconds": 0.1}), "C_FORCE_ROOT": "1"}
        self._commands: list[Command] = []
        connection: Any = redis.Redis.from_url(self._broker_url)
        self._queue = ThrottledQueue("default", connection=connection, limiter=self.limiter)
        self._clients: list[Any] = [self._record, self.limiter, connection]

    def start(self, count: int) -> None:
        """Start *count* commands, and wait until they are ready."""
        begun = [Command(self._command(number), self._environment) for number in range(count)]
        self._commands += begun
        ready = {"dramatiq": "ready for action", "celery": " ready."}.get(self.kind, "Listening on")
        wait_until(
            lambda: all(ready in each.log() or not each.running for each in begun), description="the workers are ready"
        )
        assert all(each.running for each in begun), self.log()

    def _command(self, number: int) -> list[str]:
        if self.kind == "dramatiq":
            return [sys.executable, "-m", "dramatiq", _JOBS, "-p", "1", "-t", "4"]
        if self.kind == "celery":
            quiet = ["--without-gossip", "--without-mingle", "--loglevel", "info", "--hostname", f"w{number}@here"]
            return [sys.executable, "-m", "celery", "-A", _JOBS, "worker", "--concurrency", "4", *quiet]
        return rq_worker(self._broker_url, "default", kind=self.kind, options=["-c", _JOBS])

    def send(self, workflow: str) -> None:
        if self.kind == "dramatiq":
            broker = make_broker(self._broker_url, middleware=[])
            broker.declare_queue("default")
            message: Any = dramatiq.Message("default", "launch_actor", (workflow,), {}, {})
            broker.enqueue(message)
            broker.close()
        elif self.kind == "celery":
            with Celery("tests", broker=self._broker_url, set_as_current=False) as app:
                app.send_task("launch", (workflow,), ignore_result=True)
        else:
            before = None
            for n in range(STEPS):
                kwargs = {"workflow": workflow, "number": n + 1}
                before = self._queue.enqueue(
                    f"{_JOBS}.rq_step", kwargs=kwargs, throttle=[self.limit], depends_on=before
                )

    def events(self) -> list[Event]:
        ready: Any = getattr(self._queue, "ready_job_registry", None)
        if ready is not None:  # RQ 3 can leave dependents there for minutes if two workers end at the same time
            ready.cleanup()
        found: list[Event] = []
        for line in self._record.lrange("events", 0, -1):
            at_us, what, workflow, number, more = line.split()
            found.append(Event(int(at_us), what, workflow, int(number), more))
        return found

    def until_done(self, count: int) -> list[Event]:
        def done() -> list[Event] | None:
            events = self.events()
            return events if sum(each.what == "done" for each in events) >= count else None

        return wait_until(done, description=f"{count} workflows are done") or []

    def until_free(self, within: float) -> None:
        """Wait until all slots are free. *within* can be much shorter than the lease."""
        wait_until(
            lambda: self.limiter.peek(self.limit, cost=0).remaining == SLOTS,
            description="all slots are free",
            timeout=within,
        )

    def log(self) -> str:
        return "".join(each.log() for each in self._commands)

    def close(self) -> None:
        for each in self._commands:
            each.close()
        for client in self._clients:
            client.close()


def most_at_once(events: list[Event], lease: float) -> int:
    """
    Return the maximum number of workflows that held a slot at the same time. A workflow holds its slot from the begin
    of its first step until it is done. A workflow that was interrupted holds it until a lease after its last completed
    step.
    """
    changes: list[tuple[int, int]] = []
    for workflow in {each.workflow for each in events}:
        own = [each for each in events if each.workflow == workflow]
        done = [each.at_us for each in own if each.what == "done"]
        ended = [each.at_us for each in own if each.what == "end"]
        until_us = done[-1] if done else ended[-1] + round(lease * 1_000_000)
        changes += [(own[0].at_us, 1), (until_us, -1)]
    return max(accumulate(by for _, by in sorted(changes)))


@pytest.mark.parametrize("kind", SITES)
def test_as_many_workflows_run_at_once_as_there_are_slots(own_redis_base: str, kind: str) -> None:
    """
    Of eight workflows of three steps with two slots, at most two hold a slot at once, from their first step until they
    are done. Each step runs once, in order. The last step returns the slot, even if it fails.
    """
    site = Site(kind, own_redis_base, lease=300)
    try:
        site.start(2 if kind in ("dramatiq", "celery") else 4)
        names = [f"w{n}" for n in range(6)] + ["fails0", "fails1"]
        for name in (*names[6:], *names[:6]):
            site.send(name)
        events = site.until_done(len(names))
        site.until_free(within=60)
    finally:
        site.close()
    assert most_at_once(events, site.lease) == SLOTS
    steps = {name: [each.number for each in events if (each.what, each.workflow) == ("begin", name)] for name in names}
    assert steps == {name: [1, 2, 3] for name in names}
    assert {each.more for each in events if each.what != "begin"} == {"held"}


@pytest.mark.parametrize("kind", ["dramatiq", "celery", OURS])
def test_the_slot_of_a_killed_workflow_is_free_after_its_lease(own_redis_base: str, kind: str) -> None:
    """
    The second step is killed with SIGKILL. The slot stays taken for one lease. Then the other workflows are done, and
    the maximum is never exceeded.
    """
    site = Site(kind, own_redis_base, lease=4)
    try:
        site.start(2 if kind in ("dramatiq", "celery") else 4)
        for name in ("stuck0", "stuck1"):
            site.send(name)

        def stuck() -> list[Event]:
            return [each for each in site.events() if (each.what, each.number) == ("begin", 2)]

        wait_until(lambda: len(stuck()) == SLOTS, description="both workflows are in their second steps")
        for process in {int(each.more) for each in stuck()}:
            os.kill(process, signal.SIGKILL)
        for n in range(4):  # only now: Dramatiq gives the messages of a killed worker to another one after 60 s
            site.send(f"w{n}")
        if kind == "dramatiq":  # its command ends with its process
            site.start(1)
        events = site.until_done(4)
        site.until_free(within=60)
    finally:
        site.close()
    assert most_at_once(events, site.lease) <= SLOTS
