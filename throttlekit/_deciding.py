"""How a call of `acquire` or `peek` becomes a decision: what lies between the verbs and the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from throttlekit._asked import Asked, asked_of, decision_from, peek_of, peeked, request_of, waited_after
from throttlekit._core.acquire import Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limits import Limit
from throttlekit._declared import Declared
from throttlekit._delivery import Delivery
from throttlekit._fleet.fleet import Fleet
from throttlekit._outage import Guarded, decided_without
from throttlekit._steered import acquire_steered, peek_steered
from throttlekit._telling import Telling
from throttlekit._tickets import Tickets
from throttlekit._waited import Waited
from throttlekit._wallets import Wallets
from throttlekit.errors import StoreUnavailable
from throttlekit.stores._base import Request
from throttlekit.stores.memory import MemoryStore

__all__ = ["PLAIN_DELIVERY", "Deciding"]

PLAIN_DELIVERY = Delivery()


class Deciding:
    """
    Decides, and tells whoever listens. `acquire` is, step by step: what the fleet was told of these limits (`fleet`);
    what is at hand (`from_hand`); the question (`asked`, `decide`); and what its answer comes to (`concluded`).

    Args:
        shared: The limiter's store.
        in_process: Counts limits of scope "process".
        fleet: What the fleet tells, and is told.
        telling: Tells plugins.
    """

    def __init__(self, shared: Guarded, in_process: MemoryStore, fleet: Fleet, telling: Telling) -> None:
        self.fleet, self.telling = fleet, telling
        self.declared = Declared()
        self.wallets = Wallets()
        self.tickets = Tickets()
        fleet.counted = self.wallets.tell
        self.shared, self.in_process = shared, in_process
        self._known: dict[Any, Asked] = {}

    def acquire(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        if self.fleet.steers():
            return self.steered(limits, job, key, cost, delivery)
        spent = self.from_hand(limits, job, key, cost)
        return self.ask(limits, job, key, cost, delivery) if spent is None else spent

    def peek(
        self,
        limits: Sequence[Limit],
        job: Job | None,
        key: str | int | None,
        cost: int | None,
        delivery: Delivery = PLAIN_DELIVERY,
    ) -> Decision:
        if self.fleet.steers():
            self.declared.check(limits, job, key)
            return peek_steered(self, limits, job, key, cost, delivery)
        return self.look(limits, job, key, cost, delivery)

    def asked(
        self,
        limits: Sequence[Limit],
        job: Job | None,
        key: str | int | None,
        cost: int | None,
        delivery: Delivery = PLAIN_DELIVERY,
    ) -> list[Asked]:
        """What a call asks of each of *limits*."""
        self.declared.check(limits, job, key)
        return asked_of(limits, job, key, cost, delivery.lateness, self._known)

    def from_hand(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None
    ) -> Decision | None:
        """The decision, if units that were taken ahead are enough for it; see `Wallets.spend`."""
        decision = self.wallets.spend(limits, job, key, cost)
        if decision is not None and self.telling.decisions:
            self.telling.decided_unasked(decision, [decision.limit], job, Waited(), 0)
        return decision

    def began(self) -> float:
        """When a question is put, for those who listen; 0 if nobody does."""
        return time.perf_counter() if self.telling.decisions else 0.0

    def decide(self, request: Request, asked: Sequence[Asked]) -> Verdict:
        """Put the question. Raises `StoreUnavailable`."""
        return self.wallets.decide(request, asked, self.shared, self.in_process)

    def decide_all(self, questions: Sequence[tuple[Request, Sequence[Asked]]]) -> list[Verdict | Exception]:
        """`decide` each, in one round trip if they can; what one raises stands in its place."""
        answers: list[Verdict | Exception | None] = [None] * len(questions)
        together: list[int] = []
        for number, (request, asked) in enumerate(questions):
            if any(each.in_process or each.limit.token_lease is not None for each in asked):
                try:
                    answers[number] = self.decide(request, asked)
                except Exception as error:
                    answers[number] = error
            else:
                together.append(number)
        found = iter(self.shared.acquire_all([questions[number][0] for number in together]) if together else ())
        return [next(found) if answer is None else answer for answer in answers]

    def concluded(
        self,
        answer: Verdict | Exception,
        asked: Sequence[Asked],
        job: Job | None,
        waited: Waited,
        delivery: Delivery,
        began: float,
    ) -> Decision | Waited:
        """What *answer* comes to, once everybody who listens was told. Or, after a wait in place: to be asked again."""
        if isinstance(answer, StoreUnavailable):
            decision = self._without_store(answer, asked, job, waited)
        elif isinstance(answer, Exception):
            raise answer
        else:
            decision = decision_from(answer, asked)
            self.fleet.decided(decision, asked[answer.claim].claim.bucket, answer, waited, job)
            if not decision.allowed and not decision.refused and job is not None:
                bound = asked[answer.claim]
                if not bound.in_process and self.shared.one_clock(bound.claim.bucket):
                    self.tickets.told(answer.now_us)
                denied = waited_after(answer, asked, waited)
                if delivery.inline is not None and delivery.inline.wait(decision.delay):
                    return replace(denied, deferrals=waited.deferrals)
                decision, waited = self.deferred(decision, answer, job, denied, delivery), denied
        if self.telling.decisions:
            self.telling.decided(decision, answer, asked, job, waited, began)
        return decision

    def steered(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        """As `acquire`, where the fleet was told something about limits."""
        self.declared.check(limits, job, key)
        return acquire_steered(self, limits, job, key, cost, delivery)

    def ask(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        """Put the question until it is answered, with waits in place between, and conclude."""
        asked = self.asked(limits, job, key, cost, delivery)
        found: Decision | Waited = Waited.read(job.waited if job is not None else None)
        while isinstance(found, Waited):
            began = self.began()
            try:
                answer: Verdict | Exception = self.decide(request_of(asked, job, found, delivery), asked)
            except StoreUnavailable as error:
                answer = error
            found = self.concluded(answer, asked, job, found, delivery, began)
        return found

    def look(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        """Put a question that changes nothing."""
        asked = self.asked(limits, job, key, cost, delivery)
        return peeked(self.decide(peek_of(asked, job), asked), asked)

    def deferred(self, decision: Decision, verdict: Verdict, job: Job, waited: Waited, delivery: Delivery) -> Decision:
        """The denial of a job as its adapter is told it; plugins are told, too."""
        decision = delivery.deferred(decision, waited, verdict.now_us)
        if not decision.refused:
            self.telling.deferred(job, decision, waited.deferrals, waited.seconds(verdict.now_us))
        return decision

    def _without_store(
        self, error: StoreUnavailable, asked: Sequence[Asked], job: Job | None, waited: Waited
    ) -> Decision:
        outcome, decision = decided_without(error, asked, self.in_process)
        if job is not None and not decision.allowed:
            decision = replace(decision, waited=waited.write())
        self.telling.store_failed(error, asked, outcome, decision, job)
        if job is not None and not decision.allowed:
            self.telling.deferred(job, decision, waited.deferrals, 0.0)
        return decision
