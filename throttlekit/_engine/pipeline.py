"""From a call to a decision: resolve the claims, ask the layers below, and turn their answer into a decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Waited
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.verdict import Verdict
from throttlekit._engine.attempt import Attempt, Layer
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Claim, ClaimResolver, build_request, decision_from, ticket_after
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.fallback import OutageDelays, decide_without_store
from throttlekit._engine.returns import slots_of
from throttlekit._engine.store_clock import StoreClock
from throttlekit._engine.stores import Stores
from throttlekit._engine.ticket import Ticket, lane_of, limit_ref
from throttlekit._engine.waker import Waiting
from throttlekit.errors import StoreUnavailable

__all__ = ["Count", "Pipeline", "begins_in"]

Count = Callable[[Decision, Sequence[Claim], Verdict, Ticket, "Job | None"], None]
"""Counts a decision of the store: the decision, the claims, the verdict, the ticket, the job."""


class Pipeline:
    """
    Decides calls. `acquire` is the whole of it; an event loop takes the same steps one by one: `attempt`, a question
    to `layer` in a thread, then `decision` and `conclude`, or `without_store`.

    Args:
        layer: The highest of the layers that answer an attempt.
        count: Counts what the store decided, for the fleet.
    """

    def __init__(
        self, stores: Stores, layer: Layer, resolver: ClaimResolver, events: EventDispatcher, count: Count | None = None
    ) -> None:
        self.layer, self.resolver, self.events = layer, resolver, events
        self.store_clock = StoreClock()
        self._stores, self._count, self._outage_delays = stores, count, OutageDelays()

    def acquire(self, call: Call) -> Decision:
        """
        Decide *call*; short waits of a job happen here, between two attempts.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `Limiter.acquire`.
            StoreUnavailable: The store did not answer a peek.
        """
        attempt = self.attempt(call)
        if call.peek:
            return _peek_decision(self.layer.decide(attempt), attempt)
        while True:
            try:
                verdict = self.layer.decide(attempt)
            except StoreUnavailable as error:
                return self.without_store(attempt, error)
            decision = self.decision(attempt, verdict)
            if decision.allowed and (early := begins_in(verdict)):
                time.sleep(early)
            inline = not decision.allowed and call.delivery.inline is not None and _is_deferral(call, decision)
            if not inline or not call.delivery.waits_in_place(decision):
                return self.conclude(attempt, verdict, decision)
            attempt = self._next_attempt(attempt, verdict)

    def attempt(self, call: Call) -> Attempt:
        """
        The first attempt of *call*.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `Limiter.acquire`.
        """
        resolver = self.resolver
        question = call.question
        known: Attempt | None = None if question is None else resolver.questions.get(question)
        if known is not None:
            return Attempt(call, known.claims, known.ticket, known.request, self._now())
        owned, made = resolver.registry.check(call), resolver.made
        claims = resolver.resolve(call)
        ticket = Ticket.read(None if call.job is None or not call.delivery.comes_back else call.job.ticket)
        attempt = Attempt(call, claims, ticket, build_request(call, claims, ticket), self._now())
        if question is not None and owned and made == resolver.made and all(each.is_anyones for each in claims):
            resolver.remember(question, attempt)  # with its limits, which live as long
        return attempt

    def decide_all(self, attempts: Sequence[Attempt]) -> list[Verdict | Exception]:
        """Decide each of *attempts*, in one round trip where that is possible. An error takes its answer's place."""
        answers: dict[int, Verdict | Exception] = {}
        together: list[int] = []
        for number, attempt in enumerate(attempts):
            if any(claim.in_process or claim.limit.prefetch_quota is not None for claim in attempt.claims):
                try:
                    answers[number] = self.layer.decide(attempt)
                except Exception as error:
                    answers[number] = error
            else:
                together.append(number)
        dated: dict[int, Attempt] = {}
        for number in together:
            try:
                dated[number] = self._stores.calendar.dated(attempts[number], self._stores.shared)
            except Exception as error:
                answers[number] = error
        if dated:
            found = self._stores.acquire_all([each.request for each in dated.values()])
            for (number, each), answer in zip(dated.items(), found, strict=True):
                self._stores.calendar.heard(each, answer)
                answers[number] = answer
        return [answers[number] for number in range(len(attempts))]

    def peek_all(self, calls: Sequence[Call]) -> list[Decision | Exception]:
        """
        Return the decision of each of *calls*, all of which are peeks, in one round trip if the store can. If a call
        fails, its error is returned instead.
        """
        answers: dict[int, Decision | Exception] = {}
        attempts: dict[int, Attempt] = {}
        for number, call in enumerate(calls):
            try:
                attempts[number] = self.attempt(call)
            except Exception as error:
                answers[number] = error
        found = self.decide_all([*attempts.values()]) if attempts else []
        for (number, attempt), verdict in zip(attempts.items(), found, strict=True):
            answers[number] = verdict if isinstance(verdict, Exception) else _peek_decision(verdict, attempt)
        return [answers[number] for number in range(len(calls))]

    def decision(self, attempt: Attempt, verdict: Verdict) -> Decision:
        """
        The decision that *verdict* means, counted for the fleet. To be called at once: a denial says what time it is
        in the store now.
        """
        decision = decision_from(verdict, attempt.claims)
        if _is_deferral(attempt.call, decision):
            self._set_clock(attempt, verdict)
        if self._count is not None:
            self._count(decision, attempt.claims, verdict, _ticket_before(attempt, verdict), attempt.call.waiting)
        return decision

    def conclude(self, attempt: Attempt, verdict: Verdict, decision: Decision) -> Decision:
        """Give a denied job its ticket and its delay, and emit the events. Returns the decision for the caller."""
        if attempt.call.waits is not None:
            return self._conclude_waiting(attempt, attempt.call.waits, verdict, decision)
        ticket, job = attempt.ticket, attempt.call.job
        if job is not None and _is_deferral(attempt.call, decision):
            ticket = ticket_after(verdict, attempt.claims, ticket)
            decision = self.defer(attempt.call, job, decision, ticket, verdict.now_us)
        if self.events.decisions:
            self.events.decided(attempt, decision, verdict, ticket)
        return decision

    def _conclude_waiting(self, attempt: Attempt, waits: Waiting, verdict: Verdict, decision: Decision) -> Decision:
        """Hand a job that waits on a waitlist to its waker, or end its waiting; emit the events."""
        call = attempt.call
        answer: Answer | None = verdict.answer
        if answer is None:  # a store of the user's own, without waitlists
            answer = _answer_without_waitlists(verdict, waits.waker.waited(call.id))
        ticket, units = _ticket_of(answer, attempt.claims), _units_of(attempt)
        waited, ends_in_us = ticket.seconds(answer.now_us), _ends_in_us(attempt)
        is_deferral = _is_deferral(call, decision)
        if is_deferral and call.delivery.is_over(waited, ticket.deferrals):
            decision, is_deferral = _waited_too_long(decision), False
            waits.waker.leave(call.id, units)
        else:
            waits.waker.answered(call.id, waits.item, units, answer, ends_in_us)
        if is_deferral and answer.kept is None:  # its store has no waitlists, or the job has no id
            in_us = max(0, verdict.due_us - verdict.now_us)
            waits.waker.hold(call.id, waits.item, in_us, answer.waited, ends_in_us=ends_in_us)
        if is_deferral and call.job is not None:
            self.events.deferred(call.job, decision, ticket.deferrals, waited)
        if self.events.decisions:
            self.events.decided(attempt, decision, verdict, ticket)
        return decision

    def hold(
        self, call: Call, waits: Waiting, decision: Decision, ticket: Ticket, now_us: int, *,
        units: Sequence[StoreClaim], stops: str,
    ) -> Decision:  # fmt: skip
        """
        Hold a job that something else than a store keeps back, or end its waiting; emits the event.

        Args:
            units: The job's claims, of one unit each.
            stops: The bucket whose jobs are all kept back; "": only this job is.
        """
        waited = ticket.seconds(now_us)
        if call.delivery.is_over(waited, ticket.deferrals):
            waits.waker.leave(call.id, units)
            return _waited_too_long(decision)
        waited_us, in_us = round(waited * 1_000_000), round(decision.delay * 1_000_000)
        how, ends_in_us = Waited(waited_us, ticket.deferrals, None), call.delivery.ends_in_us(waited_us)
        waits.waker.hold(call.id, waits.item, in_us, how, ends_in_us=ends_in_us, claims=units, stops=stops)
        if call.job is not None:
            self.events.deferred(call.job, decision, ticket.deferrals, waited)
        return decision

    def defer(self, call: Call, job: Job, decision: Decision, ticket: Ticket, now_us: int) -> Decision:
        """The denial of *job* with a delay that its framework can carry, or the end of its waiting; emits the event."""
        waited = ticket.seconds(now_us)
        decision = call.delivery.deferred(decision, ticket, waited)
        if not decision.final:
            self.events.deferred(job, decision, ticket.deferrals, waited)
        return decision

    def without_store(self, attempt: Attempt, error: StoreUnavailable) -> Decision:
        """Decide by the limits' `on_store_failure`, or by a plugin's choice, and emit the events."""
        job, waiting, ticket = attempt.call.job, attempt.call.waiting, attempt.ticket
        waits, id, units = attempt.call.waits, attempt.call.id, list[StoreClaim]()
        if waits is not None:
            units = _units_of(attempt)
            # A slot that may have been granted is given back: to be granted it again would be to have none.
            again = "" if slots_of(attempt.request) else attempt.request.attempt
            waits.waker.unanswered(id, units, again)
            ticket = Ticket(deferrals=waits.waker.waited(id).denials)
        chosen = self.events.failure_policy(error, attempt.claims, job)
        outcome, decision = decide_without_store(error, attempt.claims, self._stores.in_process, chosen)
        if waiting is not None and not decision.allowed:
            # A job that this process's own share denies returns when the share has room.
            delay = self._outage_delays.choose_delay(decision.delay) if outcome == "closed" else decision.delay
            decision = replace(decision, delay=delay, ticket=ticket.write())
        self.events.store_failed(error, attempt.claims, outcome, decision, job)
        if waiting is not None and not decision.allowed:
            self.events.deferred(waiting, decision, ticket.deferrals, 0.0)
        if waits is not None and decision.allowed:
            waits.waker.leave_lists(id, units)
        elif waits is not None:
            # Only its positions are left: where another store answers, others pass while it waits for this one.
            in_us, waited = round(decision.delay * 1_000_000), waits.waker.waited(id)
            known = waited._replace(claim=None) if waited.denials else None
            waits.waker.hold(id, waits.item, in_us, known, ends_in_us=_ends_in_us(attempt), claims=units)
        if self.events.decisions:
            self.events.decided_without_store(attempt._replace(ticket=ticket), decision, error)
        return decision

    def _next_attempt(self, attempt: Attempt, verdict: Verdict) -> Attempt:
        """The attempt after a wait in place, which counts as no deferral."""
        ticket = ticket_after(verdict, attempt.claims, attempt.ticket)._replace(deferrals=attempt.ticket.deferrals)
        request = build_request(attempt.call, attempt.claims, ticket)
        return attempt._replace(ticket=ticket, request=request, began=self._now())

    def _set_clock(self, attempt: Attempt, verdict: Verdict) -> None:
        """Learn the store's time from the denial of a job, if the store that denied it has one clock."""
        binding = attempt.claims[verdict.claim]
        if not binding.in_process and self._stores.shared.one_clock(binding.claim.bucket):
            self.store_clock.set(verdict.now_us)

    def _now(self) -> float:
        return time.perf_counter() if self.events.decisions else 0.0


def _waited_too_long(decision: Decision) -> Decision:
    return replace(decision, reason="waited too long", delay=0.0)


def _answer_without_waitlists(verdict: Verdict, waited: Waited) -> Answer:
    """The answer of a store without waitlists: a denied job waits in its process until it is due."""
    if not verdict.allowed:
        waited = Waited(waited.for_us, waited.denials + 1, verdict.claim)
    return Answer(
        verdict.reason, verdict.claim, verdict.now_us, verdict.due_us, verdict.uses,
        waited=waited if waited.denials else None,
    )  # fmt: skip


def begins_in(verdict: Verdict) -> float:
    """Seconds until the body may begin of a job that was woken, and granted a little before its units came."""
    return 0.0 if verdict.answer is None else max(0, verdict.retry_us - verdict.now_us) / 1_000_000


def _ends_in_us(attempt: Attempt) -> int | None:
    """In how long the job of *attempt* is to wait no longer; None: never."""
    return None if attempt.request.asker is None else attempt.request.asker.max_wait_us


def _units_of(attempt: Attempt) -> list[StoreClaim]:
    """The claims of *attempt*, of one unit each, as looks at their waitlists name them."""
    return [replace(each.claim, algorithm=each.claim.algorithm.of_one(), cost=1) for each in attempt.claims]


def _ticket_of(answer: Answer, claims: Sequence[Claim]) -> Ticket:
    """How a job has waited, for those that observe it."""
    waited = answer.waited
    if waited is None:
        return Ticket()
    bound = claims[waited.claim or 0]
    line, ref = lane_of(bound.claim.bucket), limit_ref(bound.limit)
    slots, since_us = isinstance(bound.limit, Concurrency), answer.now_us - waited.for_us
    return Ticket(answer.retry_us, ref, waited.denials, since_us, line, slots)


def _ticket_before(attempt: Attempt, verdict: Verdict) -> Ticket:
    """How the job had waited before *verdict*."""
    waits, answer = attempt.call.waits, verdict.answer
    if waits is None:
        return attempt.ticket
    if answer is None:
        waited = waits.waker.waited(attempt.call.id)
        ticket = Ticket(deferrals=waited.denials, since_us=verdict.now_us - waited.for_us)
    else:
        ticket = _ticket_of(answer, attempt.claims)
        ticket = ticket._replace(deferrals=ticket.deferrals - (not verdict.allowed))
    return ticket if ticket.deferrals > 0 else Ticket()


def _peek_decision(verdict: Verdict, attempt: Attempt) -> Decision:
    return replace(decision_from(verdict, attempt.claims), charged=())


def _is_deferral(call: Call, decision: Decision) -> bool:
    return not decision.allowed and call.waiting is not None and not decision.final
