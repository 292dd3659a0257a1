"""
One fault during a flood on real workers, and its outcome.

    outcome = strike(Case(framework="dramatiq", fault="store killed, empty"))
    assert outcome.broken() == []

The jobs call the recording Redis as their partner, which records every call by its own clock. Afterwards the partner
of the examples, which shares no code with throttlekit, determines which calls it would have answered with 429. A case
is repeatable: its seed determines how many jobs have begun when the fault occurs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.faults.kinds import FAULTS, PASSWORD, Fault, scene
from support.flood.run import Flood, Flooding, FloodLimit, FloodRecord
from support.huey.flood import HueyFlood
from support.partner.strict import Contract
from support.rq.flood import OURS, RqFlood, RqFlooding
from support.servers.flood import Kind
from support.taskiq.flood import TaskiqFlood
from support.waiting import wait_until

__all__ = ["Case", "Framework", "Outcome", "judge", "over", "strike", "strike_and_check"]

Framework = Literal["dramatiq", "rq", "celery", "taskiq", "huey"]

_CELERY_CONF: dict[str, Any] = {
    # With these settings Celery loses no task when a worker is killed; its default guarantee is weaker.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "broker_connection_retry_on_startup": True,
    "broker_transport_options": {
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,  # a worker that is killed while it restores messages blocks the others
    },
}
_WORKERS = 2
_SLACK_S = 0.25
"""
The time between a grant and its call, in seconds: the partner accepts the calls of this time in addition to the limit's
burst.
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """
    A flood and its fault.

    Attributes:
        fault: One of `FAULTS`, by name.
        alone: Run the framework without throttlekit.
    """

    framework: Framework
    fault: str
    broker: Kind = "redis"
    pool: str = "prefork"
    jobs: int = 120
    rate: int = 60
    burst: int = 10
    body: float = 0.02
    alone: bool = False
    seed: int = 1
    patience: float = 300.0

    def __str__(self) -> str:
        pool = f", {self.pool}" if self.framework == "celery" else ""
        return f"{self.framework} ({self.broker}{pool}): {self.fault}"

    @property
    def what(self) -> Fault:
        return FAULTS[self.fault]

    @property
    def of_kombu(self) -> int:
        """
        How many messages Celery's client may lose, with or without throttlekit: it removes a message from Redis's list
        before it records that it has it, so a message that it takes just when Redis or the worker dies is lost.
        """
        if self.framework != "celery" or self.broker != "redis":
            return 0
        return self.jobs if self.what.of_broker else _WORKERS if self.fault == "workers SIGKILL" else 0

    @property
    def slots(self) -> int:
        """How many bodies can run at once."""
        return {"dramatiq": 8, "rq": 2, "celery": 4, "taskiq": 20, "huey": 8}[self.framework]

    @property
    def of_dramatiq(self) -> bool:
        """
        Whether Dramatiq may withhold messages, with or without throttlekit: if its Redis assigned messages to a worker
        just when it died, that worker has no reply, and the messages stay assigned to it until it ends.
        """
        return self.framework == "dramatiq" and self.broker == "redis" and self.what.of_broker

    def flood(self) -> Flood:
        common: dict[str, Any] = {
            "limits": (FloodLimit("partner", f"{self.rate}/s", self.burst),),
            "jobs": self.jobs,
            "body": self.body,
            "mode": "none" if self.alone else "throttlekit",
            "faulty": True,
        }
        if self.framework == "dramatiq":
            return Flood(**common)
        if self.framework == "rq":
            return RqFlood(kinds=(OURS, OURS) if not self.alone else ("rq.Worker", "rq.Worker"), **common)
        if self.framework == "taskiq":
            return TaskiqFlood(**common)
        if self.framework == "huey":
            return HueyFlood(**common)
        # A task is held for a third of this time. That is less than a store hangs, so that tasks are requeued and
        # redelivered meanwhile. The whole time is long enough for a busy machine to manage its held tasks.
        visible = {"visibility_timeout": 6}
        conf = {**_CELERY_CONF, "broker_transport_options": {**_CELERY_CONF["broker_transport_options"], **visible}}
        return CeleryFlood(pool=self.pool, conf=conf, **common)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """
    The outcome of a case.

    Attributes:
        done: Jobs whose body has ended.
        left: Jobs that are still in the broker, including those that RQ marked as failed with their worker.
        lost: Jobs that are neither done nor left.
        duplicates: Bodies that began, minus one for each job.
        refused: Calls that the partner would have answered with 429.
        grants: Grants of the store; over: those of them that exceed the limit by its clock.
        recovered: Seconds from the fault's end until the next body began.
    """

    case: Case
    done: int
    left: int
    lost: int
    duplicates: int
    refused: int
    grants: int
    over: int
    over_allowed: int
    recovered: float
    took: float
    log: str = field(repr=False)

    @property
    def duplicates_allowed(self) -> int:
        """
        How many jobs the workers hold at the fault: for each concurrent body, that job and one whose acknowledgement is
        not finished. Dramatiq's workers have also fetched two more for each, and run them.
        """
        fetched = 2 if self.case.framework == "dramatiq" and self.case.what.of_broker else 0
        return (self.case.framework in self.case.what.doubling) * (2 + fetched) * self.case.slots

    def broken(self) -> list[str]:
        """Return the promises that were not kept."""
        left = self.duplicates_allowed if self.case.framework == "rq" else 0
        checks = {
            f"lost {self.lost}: {self.case.of_kombu}": self.lost <= self.case.of_kombu,
            f"done {self.done} of {self.case.jobs}, {self.left} left": self.done + left + self.case.of_kombu
            >= self.case.jobs,
            f"over-admissions {self.over}: at most {self.over_allowed}": self.over <= self.over_allowed,
            f"duplicates {self.duplicates}: at most {self.duplicates_allowed}": self.duplicates
            <= self.duplicates_allowed,
            "the store's password is in no log": PASSWORD not in self.log,
        }
        return [f"{self.case}: {promise}" for promise, kept in checks.items() if not kept]


def strike(case: Case) -> Outcome:
    """Start the flood, cause the fault, and wait until all jobs are done. Nothing is left when this returns."""
    rnd = random.Random(f"{case.seed} {case.framework} {case.broker} {case.fault}")
    flood = case.flood()
    with ExitStack() as stack:
        running_scene = stack.enter_context(scene(case.what, case.broker, case.alone))
        flooding = stack.enter_context(flood.flooding(flood, running_scene.servers))
        flooding._environment["dramatiq_restart_delay"] = "300"
        running_scene.flooding = flooding
        flooding.send_backlog()
        flooding.start()
        enough = rnd.randint(case.jobs // 6, case.jobs // 3)
        wait_until(lambda: len(flooding.starts()) >= enough, description=f"{enough} bodies have begun")
        struck_us = _now_us()
        case.what.strike(running_scene, rnd)
        over_us = _now_us()
        _wait_until_done(case, flooding)
        result = flooding.stop()
        lag = running_scene.lag
    return judge(case, result, struck_us, over_us, lag)


def strike_and_check(case: Case) -> Outcome:
    """Like `strike`, and check every promise on the outcome."""
    outcome = strike(case)
    print(outcome)
    assert outcome.broken() == []
    return outcome


def judge(case: Case, result: FloodRecord, struck_us: int, over_us: int, lag: float = 0.0) -> Outcome:
    """Return the outcome of *result*. *lag* is how many seconds a replica that became the master was behind."""
    starts = sorted(start.at_us for start in result.starts)
    done, begun = len(set(result.ends)), {start.job for start in result.starts}
    after = next((at_us for at_us in starts if at_us >= over_us), over_us)
    return Outcome(
        case=case,
        done=done,
        left=result.left,
        lost=max(0, case.jobs - done - result.left),
        duplicates=len(starts) - len(begun),
        refused=over(starts, case.rate, case.burst + round(_SLACK_S * case.rate)),
        grants=len(result.grants),
        over=over([grant.at_us for grant in result.grants], case.rate, case.burst),
        over_allowed=case.what.over(case.rate, case.burst, lag),
        recovered=(after - over_us) / 1e6,
        took=(starts[-1] - starts[0]) / 1e6 if starts else 0.0,
        log=result.log,
    )


def over(times_us: Iterable[int], rate: int, burst: int) -> int:
    """Return how many calls at *times_us* the partner of the examples would have refused, at *rate* per second."""
    contract = Contract(rate, burst)
    return sum(contract.admit(at_us * 1000) > 0 for at_us in sorted(times_us))


def _wait_until_done(case: Case, flooding: Flooding) -> None:
    """Wait until every job is done. Start workers that have ended again, as a supervisor does."""
    seen, since = -1, time.monotonic()

    def over_now() -> bool:
        nonlocal seen, since
        if not flooding.running:
            if isinstance(flooding, CeleryFlooding):
                flooding.fleet.ends_within(3)  # a fault that ends one worker ends the other too, cleanly if possible
            flooding.kill()
            flooding.start()
        done = flooding.record.scard("ended")
        if done != seen:
            seen, since = done, time.monotonic()
        if case.of_dramatiq and time.monotonic() - since > 12.0:  # twice a worker's wait before it polls
            flooding.stop()
            flooding.kill()
            flooding.start()
            since = time.monotonic()
        # Jobs that RQ's workers held when they died do not run again: an empty queue is the end.
        idle = isinstance(flooding, RqFlooding) and time.monotonic() - since > 3.0 and flooding.idle()
        # No worker has the message, and a dead worker's message would have been redelivered by now.
        gone = case.of_kombu and time.monotonic() - since > 8.0 and flooding._sender.left() == 0
        return done == case.jobs or idle or gone

    wait_until(over_now, description=f"all {case.jobs} jobs are done: {case}", timeout=case.patience, every=0.05)


def _now_us() -> int:
    return time.time_ns() // 1000
