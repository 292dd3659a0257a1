"""How a call of `acquire` or `peek` becomes a decision: what lies between the verbs and the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from throttlekit._core.acquire import Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.breaker import CircuitBreaker
from throttlekit._engine.claims import (
    Claim,
    build_peek,
    build_request,
    decision_from,
    peek_decision,
    resolve_claims,
    ticket_after,
)
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.fallback import decide_without_store
from throttlekit._engine.prefetch import Prefetcher
from throttlekit._engine.registry import LimitRegistry
from throttlekit._engine.store_clock import StoreClock
from throttlekit._engine.ticket import Ticket
from throttlekit.errors import StoreUnavailable
from throttlekit.fleet.fleet import Fleet
from throttlekit.fleet.overridden import acquire_overridden, peek_overridden
from throttlekit.stores.base import Request
from throttlekit.stores.memory import MemoryStore

__all__ = ["PLAIN_DELIVERY", "Pipeline"]

PLAIN_DELIVERY = Delivery()


class Pipeline:
    """
    Decides, and tells whoever listens. `acquire` is, step by step: what the fleet was told of these limits (`fleet`);
    what is at hand (`from_hand`); the question (`asked`, `decide`); and what its answer comes to (`concluded`).

    Args:
        shared: The limiter's store.
        in_process: Counts limits of scope "process".
        fleet: What the fleet tells, and is told.
        telling: Tells plugins.
    """

    def __init__(self, shared: CircuitBreaker, in_process: MemoryStore, fleet: Fleet, events: EventDispatcher) -> None:
        self.fleet, self.events = fleet, events
        self.declared = LimitRegistry()
        self.prefetcher = Prefetcher()
        self.store_clock = StoreClock()
        fleet.counted = self.prefetcher.tell
        self.shared, self.in_process = shared, in_process
        self._known: dict[Any, Claim] = {}

    def acquire(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        if self.fleet.has_overrides():
            return self.overridden(limits, job, key, cost, delivery)
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
        if self.fleet.has_overrides():
            self.declared.check(limits, job, key)
            return peek_overridden(self, limits, job, key, cost, delivery)
        return self.look(limits, job, key, cost, delivery)

    def asked(
        self,
        limits: Sequence[Limit],
        job: Job | None,
        key: str | int | None,
        cost: int | None,
        delivery: Delivery = PLAIN_DELIVERY,
    ) -> list[Claim]:
        """What a call asks of each of *limits*."""
        self.declared.check(limits, job, key)
        return resolve_claims(limits, job, key, cost, delivery.lateness, self._known)

    def from_hand(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None
    ) -> Decision | None:
        """The decision, if units that were taken ahead are enough for it; see `Prefetcher.spend`."""
        decision = self.prefetcher.spend(limits, job, key, cost)
        if decision is not None and self.events.decisions:
            self.events.decided_unasked(decision, [decision.limit], job, Ticket(), 0)
        return decision

    def began(self) -> float:
        """When a question is put, for those who listen; 0 if nobody does."""
        return time.perf_counter() if self.events.decisions else 0.0

    def decide(self, request: Request, asked: Sequence[Claim]) -> Verdict:
        """Put the question. Raises `StoreUnavailable`."""
        return self.prefetcher.decide(request, asked, self.shared, self.in_process)

    def decide_all(self, questions: Sequence[tuple[Request, Sequence[Claim]]]) -> list[Verdict | Exception]:
        """`decide` each, in one round trip if they can; what one raises stands in its place."""
        answers: list[Verdict | Exception | None] = [None] * len(questions)
        together: list[int] = []
        for number, (request, asked) in enumerate(questions):
            if any(each.in_process or each.limit.prefetch_quota is not None for each in asked):
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
        asked: Sequence[Claim],
        job: Job | None,
        ticket: Ticket,
        delivery: Delivery,
        began: float,
    ) -> Decision | Ticket:
        """What *answer* comes to, once everybody who listens was told. Or, after a wait in place: to be asked again."""
        if isinstance(answer, StoreUnavailable):
            decision = self._without_store(answer, asked, job, ticket)
        elif isinstance(answer, Exception):
            raise answer
        else:
            decision = decision_from(answer, asked)
            self.fleet.decided(decision, asked[answer.claim].claim.bucket, answer, ticket, job)
            if not decision.allowed and not decision.refused and job is not None:
                bound = asked[answer.claim]
                if not bound.in_process and self.shared.one_clock(bound.claim.bucket):
                    self.store_clock.told(answer.now_us)
                denied = ticket_after(answer, asked, ticket)
                inline = delivery.inline if delivery.in_time(decision.delay) else None
                if inline is not None and inline.wait(decision.delay):
                    return replace(denied, deferrals=ticket.deferrals)
                decision, ticket = self.deferred(decision, answer, job, denied, delivery), denied
        if self.events.decisions:
            self.events.decided(decision, answer, asked, job, ticket, began)
        return decision

    def overridden(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        """As `acquire`, where the fleet was told something about limits."""
        self.declared.check(limits, job, key)
        return acquire_overridden(self, limits, job, key, cost, delivery)

    def ask(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        """Put the question until it is answered, with waits in place between, and conclude."""
        asked = self.asked(limits, job, key, cost, delivery)
        found: Decision | Ticket = Ticket.read(job.ticket if job is not None else None)
        while isinstance(found, Ticket):
            began = self.began()
            try:
                answer: Verdict | Exception = self.decide(build_request(asked, job, found, delivery), asked)
            except StoreUnavailable as error:
                answer = error
            found = self.concluded(answer, asked, job, found, delivery, began)
        return found

    def look(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> Decision:
        """Put a question that changes nothing."""
        asked = self.asked(limits, job, key, cost, delivery)
        return peek_decision(self.decide(build_peek(asked, job), asked), asked)

    def deferred(self, decision: Decision, verdict: Verdict, job: Job, ticket: Ticket, delivery: Delivery) -> Decision:
        """The denial of a job as its adapter is told it; plugins are told, too."""
        decision = delivery.deferred(decision, ticket, verdict.now_us)
        if not decision.refused:
            self.events.deferred(job, decision, ticket.deferrals, ticket.seconds(verdict.now_us))
        return decision

    def _without_store(
        self, error: StoreUnavailable, asked: Sequence[Claim], job: Job | None, ticket: Ticket
    ) -> Decision:
        outcome, decision = decide_without_store(error, asked, self.in_process)
        if job is not None and not decision.allowed:
            decision = replace(decision, ticket=ticket.write())
        self.events.store_failed(error, asked, outcome, decision, job)
        if job is not None and not decision.allowed:
            self.events.deferred(job, decision, ticket.deferrals, 0.0)
        return decision
