"""
A queue that one of RQ's schedulers has. It brings jobs back once a second, so those that come next wait in the queue.

A worker keeps the queue in order before it waits in place, and times the jobs that are still scheduled.
"""

from __future__ import annotations

import time
from datetime import timezone
from typing import Any

from throttlekit import Decision, Limit, TokenBucket
from throttlekit.adapter import Deferred, Run, Ticket, lane_in
from throttlekit_rq._admission import BY_RQ_SCHEDULER, Patience
from throttlekit_rq._settings import settings
from throttlekit_rq._waiting import line_up
from throttlekit_rq._wire import Record

__all__ = ["TickPatience", "bring_next"]

_WORTH_ORDER = 0.01
_ON_TIME = 0.15
_NEXT_LOOK = 1.0
_OFTEN = 0.1
_MOST_NEW = 16


class TickPatience(Patience):
    """
    `Patience` of a job of a stock worker. Before it waits, jobs that no limit has denied pass it in the queue, and it
    lets those pass that stand before it in its line: RQ's scheduler puts what it brings before all others.
    """

    def __init__(self, job: Any, record: Record) -> None:
        super().__init__(job)
        self._job, self._record, self._stands = job, record, lane_in(record.ticket)
        self._asks_in = _seconds_since_start(job)
        self._passed_over = False

    def wait_out(self, decision: Decision) -> bool:
        if decision.delay > min(self.left, self.longest):
            return False
        began = time.monotonic()
        if decision.delay > _WORTH_ORDER and self._others_go_first(decision.delay, _pace(self._record, decision)):
            return False
        return self.wait(max(0.0, decision.delay - (time.monotonic() - began)))

    def wait_until_due(self) -> None:
        """Wait for the instant of a job that comes a little early: to ask before it would be one question more."""
        early = Ticket.read(self._record.ticket).due_us / 1_000_000 - time.time()
        longest = min(_ON_TIME, self.left, settings().max_inline_wait)
        if _WORTH_ORDER < early < longest and not self._others_go_first(early, 0.0):
            self.longest = longest
            self.wait(early)

    def stays_behind(self, outcome: Deferred) -> int | None:
        """
        Behind how many new jobs a denied job is to wait in the queue; None: among the scheduled jobs.

        One stays that let others of its line pass: behind none, since the first of these lets new ones pass. So does a
        new one that is due before the scheduler looks again, if its limit passes jobs so often that none of them
        occupies a worker for long.
        """
        decision, longest = outcome.decision, min(_NEXT_LOOK, self.left, settings().max_inline_wait)
        if decision is None or outcome.delay >= longest or not lane_in(outcome.ticket).start:
            return None
        if self._passed_over:
            return 0
        often = 0 < _every(decision.limit, decision.cost) <= _OFTEN
        return self._asked_within(outcome.delay) if often and not self._stands.name else None

    def _others_go_first(self, delay: float, every: float) -> bool:
        if not self._stands.start:
            return False
        early, new = BY_RQ_SCHEDULER.delivery.early, self._asked_within(delay)
        self._passed_over = line_up(self._job, self._stands, every, early=early, new=new) > 0
        return self._passed_over

    def _asked_within(self, delay: float) -> int:
        """For about how many jobs another worker asks in so many seconds, if it takes as long as this one."""
        return min(_MOST_NEW, 1 + int(delay / self._asks_in))


def bring_next(job: Any, record: Record, run: Run) -> None:
    """Have the next jobs of the line of *job* come sooner, if its grant has left units that they need not wait for."""
    stands, decision = lane_in(record.ticket), run.decision
    if not stands.start or decision is None:
        return
    every = _pace(record, decision)
    units = decision.remaining // decision.cost if every else 0
    if units:
        delivery = BY_RQ_SCHEDULER.delivery
        lasts = decision.limit.capacity / decision.cost * every
        early = delivery.early if lasts < delivery.lateness else 0.0
        line_up(job, stands, every, units=units, early=early, new=1)


def _pace(record: Record, decision: Decision) -> float:
    """`_every` of the limit in whose line the job stood; 0 if another one decided: it says nothing of that line."""
    of_line = Ticket.read(record.ticket).binding([decision.limit])
    return _every(decision.limit, decision.cost) if of_line else 0.0


def _every(limit: Limit, cost: int) -> float:
    """How often *limit* lets a job of *cost* pass, in seconds; 0: not at a steady pace."""
    return limit.period_us / 1_000_000 / limit.amount * cost if isinstance(limit, TokenBucket) else 0.0


def _seconds_since_start(job: Any) -> float:
    """How long the worker of *job* has taken until the job could ask: most of it to fork."""
    started = job.started_at
    passed = time.time() - started.replace(tzinfo=timezone.utc).timestamp() if started else 0.0
    return max(0.002, passed)
