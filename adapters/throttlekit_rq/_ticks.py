"""
A queue that one of RQ's schedulers has. It brings jobs back once a second, so those that come next wait in the queue.

A worker keeps the queue in order before it waits in place, and times the jobs that are still scheduled.
"""

from __future__ import annotations

import time
from typing import Any

from throttlekit import Decision, Limit, TokenBucket
from throttlekit.adapter import Deferred, Run, Ticket, lane_in
from throttlekit_rq._admission import BY_RQ_SCHEDULER, Patience
from throttlekit_rq._waiting import line_up
from throttlekit_rq._wire import Record

__all__ = ["TickPatience", "bring_next"]

_WORTH_ORDER = 0.01
_ON_TIME = 0.15
_NEXT_LOOK = 1.0
_OFTEN = 0.1


class TickPatience(Patience):
    """
    `Patience` of a job of a stock worker. Before it waits, jobs that no limit has denied pass it in the queue, and it
    lets those pass that stand before it in its line: RQ's scheduler puts what it brings before all others.
    """

    def __init__(self, job: Any, record: Record) -> None:
        super().__init__(job)
        self._job, self._record, self._stands = job, record, lane_in(record.ticket)
        self._passed_over = False

    def wait_out(self, decision: Decision) -> bool:
        if decision.delay > min(self.left, self.longest):
            return False
        began = time.monotonic()
        if decision.delay > _WORTH_ORDER and self._others_go_first(_every(decision.limit, decision.cost)):
            return False
        return self.wait(max(0.0, decision.delay - (time.monotonic() - began)))

    def wait_until_due(self) -> None:
        """Wait for the instant of a job that comes a little early: to ask before it would be one question more."""
        early = Ticket.read(self._record.ticket).due_us / 1_000_000 - time.time()
        if _WORTH_ORDER < early < min(_ON_TIME, self.left) and not self._others_go_first(0.0):
            self.wait(early)

    def stays(self, outcome: Deferred) -> bool:
        """
        Whether a denied job is to wait in the queue: one that let others pass, and a new one that is due before the
        scheduler looks again, if its limit passes jobs so often that none of them occupies a worker for long.
        """
        decision = outcome.decision
        if decision is None or outcome.delay >= _NEXT_LOOK or not lane_in(outcome.ticket).start:
            return False
        return self._passed_over or (not self._stands.name and 0 < _every(decision.limit, decision.cost) <= _OFTEN)

    def _others_go_first(self, every: float) -> bool:
        if not self._stands.start:
            return False
        self._passed_over = line_up(self._job, self._stands, every, early=BY_RQ_SCHEDULER.delivery.early) > 0
        return self._passed_over


def bring_next(job: Any, record: Record, run: Run) -> None:
    """Have the next jobs of the line of *job* come sooner, if its grant has left units that they need not wait for."""
    stands, decision = lane_in(record.ticket), run.decision
    if not stands.start or decision is None:
        return
    every = _every(decision.limit, decision.cost)
    units = decision.remaining // decision.cost
    if every and units:
        delivery = BY_RQ_SCHEDULER.delivery
        lasts = decision.limit.capacity / decision.cost * every
        line_up(job, stands, every, units=units, early=delivery.early if lasts < delivery.lateness else 0.0)


def _every(limit: Limit, cost: int) -> float:
    """How often *limit* lets a job of *cost* pass, in seconds; 0: not at a steady pace."""
    return limit.period_us / 1_000_000 / limit.amount * cost if isinstance(limit, TokenBucket) else 0.0
