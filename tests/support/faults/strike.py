"""
One fault amid a flood on real workers, and what came of it.

    outcome = strike(Case(framework="dramatiq", fault="store killed, empty"))
    assert outcome.broken() == []

The partner that the jobs call is the recording Redis: it writes every call down by a clock of its own,
and the partner of the examples, which shares no code with throttlekit, says afterwards which of them it would
have answered with 429. A case is repeatable: its seed says how many jobs have begun when the fault comes.
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
from support.flood.run import Flood, Flooding, FloodLimit, Told
from support.huey.flood import HueyFlood
from support.partner.strict import Contract
from support.rq.flood import OURS, RqFlood, RqFlooding
from support.servers.flood import Kind
from support.taskiq.flood import TaskiqFlood
from support.waiting import wait_until

__all__ = ["Case", "Framework", "Outcome", "judge", "over", "strike"]

Framework = Literal["dramatiq", "rq", "celery", "taskiq", "huey"]

_CELERY_CONF: dict[str, Any] = {
    # The setting of those who want no task lost when a worker is killed; else Celery's own promise is less.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "broker_connection_retry_on_startup": True,
    "broker_transport_options": {
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,  # a worker that was killed while it restored keeps the others from it
    },
}
_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """
    A flood and its fault.

    Attributes:
        fault: One of `FAULTS`, by name.
        alone: The framework without throttlekit.
        slack: How many seconds' worth of calls more at once the partner admits than the limit's burst:
            what lies between a grant and its call.
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
    slack: float = 0.25
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
        How many messages Celery's own client may lose here: it takes one off Redis's list, and only then notes that
        it has it. What is taken in the instant in which Redis, or that worker, dies is gone, with throttlekit or
        without.
        """
        if self.framework != "celery" or self.broker != "redis":
            return 0
        return self.jobs if self.what.of_broker else _WORKERS if self.fault == "workers SIGKILL" else 0

    @property
    def slots(self) -> int:
        """Bodies that can be under way at once."""
        return {"dramatiq": 8, "rq": 2, "celery": 4, "taskiq": 20, "huey": 8}[self.framework]

    @property
    def of_dramatiq(self) -> bool:
        """
        Whether Dramatiq may keep messages from itself here: what its Redis handed over in the instant in which it
        died stands under the name of a worker that never got the answer, and stays there until that worker ends,
        with throttlekit or without.
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
        # A task is held for a third of it: less than a store is hung for, so that tasks go back and come again
        # meanwhile. All of it is long enough for a busy machine to look after what it holds.
        visible = {"visibility_timeout": 6}
        conf = {**_CELERY_CONF, "broker_transport_options": {**_CELERY_CONF["broker_transport_options"], **visible}}
        return CeleryFlood(pool=self.pool, conf=conf, **common)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """
    What came of a case.

    Attributes:
        done: Jobs that some body has finished.
        left: Jobs that are still in the broker, in sight: those that RQ says have failed with their worker, say.
        lost: Neither.
        duplicates: Bodies begun beyond one a job.
        refused: Calls that the partner would have answered with 429.
        grants: By the store; over: those of them that its clock and the limit leave no room for.
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
        What is in the workers' hands at the fault: for each body that they run at once, that one and one whose
        acknowledgement is under way. Dramatiq's also have fetched two more for each, and go on with those.
        """
        fetched = 2 if self.case.framework == "dramatiq" and self.case.what.of_broker else 0
        return self.case.what.doubles(self.case.framework) * (2 + fetched) * self.case.slots

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        left = self.duplicates_allowed if self.case.framework == "rq" else 0
        checks = {
            f"lost {self.lost}: {self.case.of_kombu or 0}": self.lost <= self.case.of_kombu,
            f"done {self.done} of {self.case.jobs}, {self.left} left": self.done + left + self.case.of_kombu
            >= self.case.jobs,
            f"over-admissions {self.over}: at most {self.over_allowed}": self.over <= self.over_allowed,
            f"duplicates {self.duplicates}: at most {self.duplicates_allowed}": self.duplicates
            <= self.duplicates_allowed,
            "the store's password is in no log": PASSWORD not in self.log,
        }
        return [f"{self.case}: {promise}" for promise, kept in checks.items() if not kept]


def strike(case: Case) -> Outcome:
    """Let the flood begin, strike it, and see it through. Nothing of it is left when this returns."""
    rnd = random.Random(f"{case.seed} {case.framework} {case.broker} {case.fault}")
    flood = case.flood()
    with ExitStack() as stack:
        there = stack.enter_context(scene(case.what, case.broker, case.alone))
        flooding = stack.enter_context(flood.flooding(flood, there.servers))
        flooding._environment["dramatiq_restart_delay"] = "300"
        there.flooding = flooding
        for number in range(case.jobs):
            flooding.send("job", str(number))
        flooding.start()
        enough = rnd.randint(case.jobs // 6, case.jobs // 3)
        wait_until(lambda: len(flooding.starts()) >= enough, description=f"{enough} bodies have begun")
        struck_us = _now_us()
        case.what.strike(there, rnd)
        over_us = _now_us()
        _see_through(case, flooding)
        told = flooding.stop()
        lag = there.lag
    return judge(case, told, struck_us, over_us, lag)


def judge(case: Case, told: Told, struck_us: int, over_us: int, lag: float = 0.0) -> Outcome:
    """What *told* comes to. *lag*: by how many seconds a replica that took over was behind."""
    starts = sorted(start.at_us for start in told.starts)
    done, begun = len(set(told.ends)), {start.job for start in told.starts}
    after = next((at_us for at_us in starts if at_us >= over_us), over_us)
    return Outcome(
        case=case,
        done=done,
        left=told.left,
        lost=max(0, case.jobs - done - told.left),
        duplicates=len(starts) - len(begun),
        refused=over(starts, case.rate, case.burst + round(case.slack * case.rate)),
        grants=len(told.grants),
        over=over([grant.at_us for grant in told.grants], case.rate, case.burst),
        over_allowed=case.what.over(case.rate, case.burst, lag),
        recovered=(after - over_us) / 1e6,
        took=(starts[-1] - starts[0]) / 1e6 if starts else 0.0,
        log=told.log,
    )


def over(times_us: Iterable[int], rate: int, burst: int) -> int:
    """How many of those that came at *times_us* the partner of the examples would have refused, at *rate* a second."""
    contract = Contract(rate, burst)
    return sum(contract.admit(at_us * 1000) > 0 for at_us in sorted(times_us))


def _see_through(case: Case, flooding: Flooding) -> None:
    """Until every job is done. Workers that have ended are started again, as a supervisor does."""
    seen, since = -1, time.monotonic()

    def over_now() -> bool:
        nonlocal seen, since
        if not flooding.running:
            if isinstance(flooding, CeleryFlooding):
                flooding.fleet.ends_within(3)  # what ends one worker ends the other: in peace, if it can
            flooding.kill()
            flooding.start()
        done = flooding.record.scard("ended")
        if done != seen:
            seen, since = done, time.monotonic()
        if case.of_dramatiq and time.monotonic() - since > 12.0:  # twice what a worker waits before it asks again
            flooding.stop()
            flooding.kill()
            flooding.start()
            since = time.monotonic()
        # What RQ's workers had in their hands as they died nobody runs again: the queue is empty, and that is all.
        idle = isinstance(flooding, RqFlooding) and time.monotonic() - since > 3.0 and flooding.idle()
        # Nobody has it, and what a dead worker had would have been given to another by now.
        gone = case.of_kombu and time.monotonic() - since > 8.0 and flooding._sender.left() == 0
        return done == case.jobs or idle or gone

    wait_until(over_now, description=f"all {case.jobs} jobs are done: {case}", timeout=case.patience, every=0.05)


def _now_us() -> int:
    return time.time_ns() // 1000
