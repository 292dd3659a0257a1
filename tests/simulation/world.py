"""
A fleet on virtual time: the server of the store, the broker, and processes that run the shipped limiter and waker.

Only the parts that throttlekit does not contain are simulated: a network with delays, a server that runs one request
after the other on the shipped `MemoryStore`, a broker that delivers each message until it is acknowledged, and worker
threads that handle a message as every adapter does: `Throttling.admit`, then the body, or the wait.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pluggy
from scheduler import EPOCH_US, MS, SECOND, Host, Scheduler, Task
from server import Client, Server

import throttlekit._wiring as wiring
from throttlekit import Job, Limiter, RateLimited, hookspecs
from throttlekit._engine.call import Delivery, Waiting
from throttlekit._engine.relay import read_note
from throttlekit.adapter.admission import Throttling
from throttlekit.adapter.body import begin, end
from throttlekit.adapter.options import JobOptions, WaitRules
from throttlekit.adapter.outcome import Deferred, Run

__all__ = ["Event", "Message", "Plan", "Process", "SimJob", "Workflow", "World"]


class Event(NamedTuple):
    """One line of the history."""

    at_us: int
    clock_us: int
    """The time on the clock of the store."""
    what: str
    process: str = ""
    job: str = ""
    detail: Mapping[str, Any] = {}
    store: int = 0
    """The number of the store that the event is about."""

    def __str__(self) -> str:
        shown = " ".join(f"{name}={_shown(value)}" for name, value in self.detail.items())
        clock = (self.clock_us - EPOCH_US) / SECOND
        place = f"{clock:11.6f} {self.store or ' '} {self.process:5} {self.job:9}"
        return f"{self.at_us / SECOND:11.6f} {place} {self.what} {shown}".rstrip()


def _shown(value: Any) -> str:
    """Return *value* as the history shows it; charges with the bucket, the units and the time."""
    if isinstance(value, tuple):
        return ",".join(f"{each.bucket}:{each.cost}@{(each.at_us - EPOCH_US) / SECOND:.6f}" for each in value)
    return ",".join(value) if isinstance(value, list) else str(value)


@dataclass(eq=False)
class Workflow:
    """Jobs that hold a slot of *limit* together. The last job that ends releases it."""

    limit: Any
    left: int


@dataclass(eq=False)
class SimJob:
    id: str
    sent_us: int
    body_us: int
    kwargs: dict[str, Any] = field(default_factory=dict)
    max_wait: float | None = None
    receives_429: float = 0.0
    """If not 0, the first body receives a 429 with this number of seconds."""
    lost: bool = False
    """The broker never delivers it."""
    limits: tuple[Any, ...] = ()
    """The limits of the job. Empty: those of the plan."""
    style: str = ""
    """How the job waits, if not as the plan says: "holds" or "delays"."""
    lost_if_denied: bool = False
    """The broker does not redeliver it after its delay."""
    workflow: Workflow | None = None
    decisions: int = 0
    deliveries: int = 0


@dataclass(eq=False)
class Message:
    """A copy of a job's message, as the broker delivers it."""

    job: SimJob
    denied: bool = False


@dataclass
class Plan:
    """The input of one run. *style* is how denied jobs wait: see `Process`."""

    seed: int
    style: str
    limits: tuple[Any, ...]
    jobs: list[SimJob]
    processes: int
    threads: int
    stores: int = 1
    """2: the second limit is counted in a second store."""
    leg: tuple[int, int] = (MS // 5, MS)
    """The shortest and the longest time that a request or an answer takes."""
    lateness: float = 0.05
    redelivered_in: int = SECOND
    """How long after the death of a process the broker redelivers its messages."""
    faults: list[Any] = field(default_factory=list)


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.scheduler = plan, Scheduler(plan.seed)
        self.random, self.at = self.scheduler.random, self.scheduler.at
        self.history: list[Event] = []
        self.servers = [Server(self, number) for number in range(plan.stores)]
        self.broker = Broker(self)
        self.waiting = {job.id for job in plan.jobs}
        self.received_429: set[str] = set()
        self.bodies = 0
        self.processes: list[Process] = []
        for number in range(plan.processes):
            self.start(number)
        for job in plan.jobs:
            self.at(job.sent_us, self.broker.send, job)
        for fault in plan.faults:
            self.at(fault.at_us, fault.begin, self)

    @property
    def now(self) -> int:
        return self.scheduler.now

    def note(self, what: str, process: str = "", job: str = "", server: Server | None = None, **detail: Any) -> None:
        server = server or self.servers[0]
        self.history.append(Event(self.now, server.clock_us(), what, process, job, detail, server.number))

    def start(self, number: int) -> None:
        generation = sum(each.number == number for each in self.processes)
        self.processes.append(Process(self, number, f"p{number}.{generation}"))
        self.broker.hand_out()

    @property
    def relay_to(self) -> Process:
        """The process whose waker all jobs wait with, if they relay."""
        return next(each for each in reversed(self.processes) if each.number == 0)

    @property
    def living(self) -> list[Process]:
        return [each for each in self.processes if not each.dead]

    def run(self, until_us: int) -> None:
        """Run until every job has ended, and for another 0.5 s."""
        self.scheduler.run(until_us, lambda: not self.waiting)
        self.scheduler.run(min(until_us, self.now + 500 * MS), lambda: False)
        self.scheduler.close()


# The broker


class Broker:
    """
    Delivers each message to a process with an idle thread, and again if it dies before it acknowledges the message.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.queue: deque[Message] = deque()
        self.unacked: dict[Message, Process] = {}
        self.late = self.twice = self.never = 0.0

    def send(self, job: SimJob) -> None:
        random = self.world.random
        if random.random() < self.never:
            job.lost = True
            self.world.waiting.discard(job.id)
            self.world.note("lost by the broker", job=job.id)
            return
        for _ in range(2 if random.random() < self.twice else 1):
            self.world.note("sent", job=job.id)
            self.put(Message(job), random.randrange(3 * SECOND) if random.random() < self.late else 0)

    def put(self, message: Message, in_us: int = 0, *, first: bool = False) -> None:
        def arrive() -> None:
            (self.queue.appendleft if first else self.queue.append)(message)
            self.hand_out()

        self.world.at(self.world.now + in_us, arrive)

    def hand_out(self) -> None:
        world = self.world
        while self.queue:
            able = [each for each in world.living if each.free() > 0 and world.now >= each.hangs_until]
            if not able:
                return
            process, message = world.random.choice(able), self.queue.popleft()
            self.unacked[message] = process
            process.receive(message)

    def ack(self, message: Message) -> None:
        self.unacked.pop(message, None)

    def redeliver(self, process: Process) -> None:
        """Deliver the messages of a dead process again."""
        for message in [each for each, owner in self.unacked.items() if owner is process]:
            self.ack(message)
            self.world.note("redelivered", process.name, message.job.id)
            self.put(Message(message.job, message.denied), self.world.plan.redelivered_in)


# The processes


class Process(Host):
    """
    A worker process. Its style determines where a denied job waits:

    * holds: in the process, unacknowledged, with a `Waker`, as with Dramatiq, Celery and taskiq.
    * roams: the same, but any process takes the job when it is woken, as with huey.
    * relays: with the `Waker` of another process, to which a `Relay` sends notes, as with `throttlekit wake --rq`.
    * delays: in the broker, until its delay is over, as with frameworks that have only delays.
    """

    def __init__(self, world: World, number: int, name: str) -> None:
        super().__init__()
        self.world, self.number, self.name = world, number, name
        self.clients = [Client(self, server) for server in world.servers]
        first, *others = self.clients
        self.limiter = Limiter(first, stores={world.plan.limits[1].name: others[0]} if others else None)
        self.throttling = Throttling(self.limiter, self, rules=WaitRules(), log=logging.getLogger("throttlekit"))
        style = world.plan.style
        self.waker = self.limiter.make_waker(
            self._free, self._start, give_back=self._give_back, roams=style == "roams", relays=style == "relays"
        )
        self._fresh: deque[Message] = deque()
        self._woken: deque[Message] = deque()
        self._busy, self._idle = 0, list[Task]()
        self.purged: set[Message] = set()
        for _ in range(world.plan.threads):
            world.scheduler.spawn(self, self._work)

    # What `Throttling` needs from an adapter

    def options(self, message: Message) -> JobOptions:
        return JobOptions(limits=message.job.limits or self.world.plan.limits, max_wait=message.job.max_wait)

    def job(self, message: Message) -> Job:
        return Job(id=message.job.id, name="body", kwargs=message.job.kwargs)

    def delivery(self, message: Message, max_wait: float | None) -> Delivery:
        return self.throttling.rules.delivery(Delivery(lateness=self.world.plan.lateness), max_wait)

    # Threads

    def free(self) -> int:
        """Return how many more messages the process takes from the broker."""
        return self.world.plan.threads - self._busy - len(self._fresh) - len(self._woken)

    def receive(self, message: Message) -> None:
        message.job.deliveries += 1
        self._fresh.append(message)
        self._call_thread()

    def _call_thread(self) -> None:
        if self._idle:
            self.world.scheduler.wake(self._idle.pop(), self.world.random.randrange(MS))

    def _work(self) -> None:
        scheduler = self.world.scheduler
        while True:
            while not self._woken and not self._fresh:
                assert scheduler.task is not None
                self._idle.append(scheduler.task)
                scheduler.block()
            message = self._woken.popleft() if self._woken else self._fresh.popleft()
            self._busy += 1
            has_ended = self._handle(message)
            self._busy -= 1
            if has_ended:
                self.waker.done(message.job.id)
            else:
                self.waker.report_free()
            self.world.broker.hand_out()

    def _handle(self, message: Message) -> bool:
        """Admit a job, and run it. Return whether the job has ended in this process."""
        job, waits, relay = message.job, None, None
        style = job.style or self.world.plan.style
        job.decisions += 1
        if style in ("holds", "roams"):
            waits = Waiting(self.waker, message, denied=message.denied)
        elif style == "relays":
            waker = self.world.relay_to
            relay = self.limiter.make_relay(waker.waker.owner, 100, partial(self._send_note, message))
            waits = Waiting(relay, message)
        outcome: Any = self.throttling.admit(message, waits)
        if isinstance(outcome, Run):
            outcome = self._run_body(job, outcome)
        if outcome is None:
            self.world.waiting.discard(job.id)
            self.world.broker.ack(message)
        elif isinstance(outcome, Deferred):
            message.denied = True
            if relay is not None and relay.kept is not None:
                self._send_note(message, relay.kept, kept=True)
            elif waits is None or relay is not None:
                self.world.broker.ack(message)
                if job.lost_if_denied:
                    job.lost = True
                    self.world.waiting.discard(job.id)
                    return True
                late = self.world.random.randrange(1 + round(self.world.plan.lateness * SECOND))
                self.world.broker.put(message, round(outcome.delay * SECOND) + late)
            return False
        else:
            self.world.note("failed", self.name, job.id, why=repr(outcome))
            self.world.waiting.discard(job.id)
            self.world.broker.ack(message)
        return True

    def _run_body(self, job: SimJob, run: Run) -> Any:
        """Run the body. Return None, or the outcome of a job that received a 429."""
        decision = run.decision
        assert decision is not None
        early_us, charged = round(decision.retry_after * SECOND), decision.charged
        self.world.bodies += 1
        body = self.world.bodies
        self.world.note("begun", self.name, job.id, body=body, charged=charged, early_us=early_us)
        begin(self.limiter, decision, run.job)
        Scheduler.current.block(job.body_us)
        if job.receives_429 and job.id not in self.world.received_429:
            self.world.received_429.add(job.id)
            error = RateLimited(job.receives_429)
            self.world.note("received 429", self.name, job.id, body=body)
            return self.throttling.rate_limited(run, error, release=partial(end, error))
        self.world.note("ended", self.name, job.id, body=body)
        end()
        if job.workflow is not None:
            job.workflow.left -= 1
            if job.workflow.left == 0:
                self.limiter.done(job.workflow.limit, job=run.job)
        return None

    # What the waker does with jobs

    def _free(self) -> int:
        return max(0, self.free())

    def _start(self, id: str, message: Message) -> bool:
        if message in self.purged:
            return False
        if (message.job.style or self.world.plan.style) == "holds":
            self._woken.append(message)
            self._call_thread()
        else:
            self.waker.pass_on(id, at_once=True)
            self.world.broker.ack(message)
            self.world.broker.put(message, self.world.random.randrange(MS), first=True)
        return True

    def _give_back(self, message: Message) -> None:
        """Requeue an older copy of a message, because the process already holds the job."""
        self.world.broker.ack(message)
        self.world.broker.put(message, SECOND)

    def _send_note(self, message: Message, note: Any, *, kept: bool = False) -> None:
        world, waker = self.world, self.world.relay_to

        def arrive() -> None:
            if not waker.dead:
                world.scheduler.spawn(waker, partial(read_note, waker.waker, note, message))

        if kept:
            world.broker.ack(message)
            if waker.dead:
                world.broker.put(message, world.plan.redelivered_in)
                return
            world.broker.unacked[message] = waker
        world.at(world.now + world.random.randint(*world.plan.leg), arrive)

    def kill(self) -> None:
        self.dead = True
        for each in self.clients:
            each.end_listening()
        self.world.note("killed", self.name)
        self.world.broker.redeliver(self)


_HOOKS = pluggy.PluginManager(hookspecs.PROJECT)
_HOOKS.add_hookspecs(hookspecs)
wiring.plugin_manager = lambda plugins: _HOOKS  # a search for installed plugins takes 20 ms, and there are none
