"""Decide a call: resolve its claims, send them to the layers below, and convert the answer into a decision."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from throttlekit._core.answer import NOT_WAITED, Answer, Caller, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.wait_control import Where
from throttlekit._engine.call import Call, Waiting, end_waiting
from throttlekit._engine.claims import Attempt, Claim, ClaimResolver, build_request, decide_parts, decision_from
from throttlekit._engine.events import EventDispatcher
from throttlekit._engine.fallback import OutageDelays, decide_without_store
from throttlekit._engine.prefetch import Prefetcher
from throttlekit._engine.stores import Stores
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.errors import StoreUnavailable
from throttlekit.hookspecs import Deferred
from throttlekit.stores.parts import Part
from throttlekit.stores.returns import slots_of

__all__ = ["Count", "History", "Pipeline", "begins_in", "peek_decision", "units_of"]

_MOST_REMEMBERED = 10_000
Count = Callable[[Decision, Sequence[Claim], Answer, Waited, "Job | None"], None]
"""A function that counts a decision of the store. Arguments: the decision, its claims and answer, the wait, the job."""


class Pipeline:
    """
    Decides calls. `acquire` runs all steps. An event loop runs the same steps one by one: `spend`, `attempt`, `decide`
    in a thread, then `conclude`, and `leave` if the wait has ended, or `without_store`.

    Attributes:
        count: Counts the store's decisions for the fleet. None without live control.
        prefetcher: Keeps the prefetched units of this process.
        history: How jobs have waited that their framework redelivers after a delay.
    """

    def __init__(self, stores: Stores, resolver: ClaimResolver, events: EventDispatcher) -> None:
        self.resolver, self.events = resolver, events
        self.prefetcher, self.history = Prefetcher(stores), History()
        self.count: Count | None = None
        self._stores, self._outage_delays = stores, OutageDelays()

    def acquire(self, call: Call) -> Decision:
        """
        Decide *call*.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `Limiter.acquire`.
            StoreUnavailable: The store did not answer a peek.
        """
        if (spent := self.spend(call)) is not None:
            return spent
        attempt = self.attempt(call)
        if call.peek:
            return peek_decision(self.decide(attempt), attempt)
        try:
            answer = self.decide(attempt)
        except StoreUnavailable as error:
            return self.without_store(attempt, error)
        decision = self.conclude(attempt, answer)
        if decision.reason == "waited too long":
            self.leave(call, units_of(attempt))
        if decision.allowed and (early := begins_in(answer)):
            try:
                time.sleep(early)
            except BaseException:  # an interrupt, such as a job's time limit
                self._stores.abandon(attempt)
                raise
        return decision

    def spend(self, call: Call) -> Decision | None:
        """Decide a call from prefetched units, before its claims are resolved, or return None. Emit the event."""
        if len(call.limits) != 1 or getattr(call.limits[0], "prefetch_quota", None) is None:
            return None
        if call.job is not None and self.events.configures_claims:
            return None
        decision = self.prefetcher.spend(call)
        if decision is not None:
            self.events.emit_decided_locally(decision, [decision.limit], call.job)
        return decision

    def attempt(self, call: Call) -> Attempt:
        """
        Return the first attempt of *call*.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `Limiter.acquire`.
        """
        resolver, began = self.resolver, time.perf_counter() if self.events.decisions else 0.0
        question = call.question if call.job is None else None
        known: Attempt | None = None if question is None else resolver.questions.get(question)
        if known is not None:
            return Attempt(call, known.claims, known.request, began)
        owned = resolver.registry.check(call)
        claims = resolver.resolve(call)
        waited = NOT_WAITED
        if call.job is not None and call.delivery.waits is None:
            waited = self.history.before(call.job.id, again=call.delivery.again)
        attempt = Attempt(call, claims, build_request(call, claims, waited), began)
        if question is not None and owned and all(each.is_anyones for each in claims):
            resolver.remember(question, attempt)  # it references its limits, so their ids are not reused
        return attempt

    def decide(self, attempt: Attempt) -> Answer:
        """
        Decide *attempt*: first its limits of scope "process", so that a process over its own share sends no request.

        Raises:
            StoreUnavailable: The store gave no usable answer.
        """
        claims, stores, prefetcher = attempt.claims, self._stores, self.prefetcher
        if all(claim.plain for claim in claims):
            return stores.decide(attempt.request)
        own = [number for number, each in enumerate(claims) if each.in_process]
        if not own:
            return prefetcher.decide(attempt)
        rest = [number for number, each in enumerate(claims) if not each.in_process]
        return decide_parts(attempt, [Part(stores.in_process, own)], rest, prefetcher.decide)

    def decide_all(self, attempts: Sequence[Attempt]) -> list[Answer | Exception]:
        """Decide each of *attempts*, in one round trip if that is possible. An error replaces its answer."""
        answers: dict[int, Answer | Exception] = {}
        together: dict[int, Attempt] = {}
        for number, attempt in enumerate(attempts):
            try:
                if any(claim.in_process or claim.limit.prefetch_quota is not None for claim in attempt.claims):
                    answers[number] = self.decide(attempt)
                else:
                    together[number] = self._stores.calendar.correct_offsets(attempt, self._stores.shared)
            except Exception as error:
                answers[number] = error
        if together:
            found = self._stores.decide_all([each.request for each in together.values()])
            for (number, each), answer in zip(together.items(), found, strict=True):
                self._stores.calendar.note_answer(each, answer)
                answers[number] = answer
        return [answers[number] for number in range(len(attempts))]

    def conclude(self, attempt: Attempt, answer: Answer) -> Decision:
        """
        Convert *answer* into the decision for the caller. Count it for the fleet, let a denied job wait, and emit the
        events. If the job has waited too long, the caller calls `leave`.
        """
        job, delivery, waits = attempt.call.waiting, attempt.call.delivery, attempt.call.delivery.waits
        waited = NOT_WAITED if job is None else _waited_of(attempt.request.requester.job, waits, answer)
        decision = decision_from(answer, attempt.claims, waited)
        if self.count is not None:
            self.count(decision, attempt.claims, answer, waited, job)
        is_deferral = job is not None and answer.reason not in (Reason.ALLOWED, Reason.FULL)
        if is_deferral and delivery.is_over(waited):
            decision, is_deferral, answer = end_waiting(decision), False, answer._replace(kept=None)
        if waits is not None:  # also if the job has ended: the answer may wake others of this process
            self._pass_to_waker(attempt, waits, answer, waited, is_deferral=is_deferral)
        elif is_deferral:
            decision = delivery.adjust_delay(decision, waited)
        elif job is not None and decision.allowed:
            self.history.note(job.id, waited)
        if is_deferral and job is not None:
            self.events.deferred.emit(Deferred(job, decision))
        if self.events.decisions:
            self.events.emit_decided(attempt, decision, answer)
        return decision

    def _pass_to_waker(
        self, attempt: Attempt, waits: Waiting, answer: Answer, waited: Waited, *, is_deferral: bool
    ) -> None:
        units, requester = units_of(attempt), attempt.request.requester
        id, ends_in_us = requester.job, requester.max_wait_us
        waits.waker.apply_answer(id, waits.item, units, answer, ends_in_us)
        if is_deferral and answer.kept is None:  # the job has no id, so no waitlist has it
            in_us = max(0, answer.retry_us - answer.now_us)
            waits.waker.hold(id, waits.item, in_us, waited, ends_in_us=ends_in_us)

    def leave(self, call: Call, claims: Sequence[StoreClaim]) -> None:
        """Remove a job that no longer waits from the waitlists of *claims*, of one unit each."""
        if call.delivery.waits is not None:
            call.delivery.waits.waker.leave(call.id, claims)
        elif call.id:
            with suppress(StoreUnavailable):  # without an answer, the job is removed when it would be woken
                self._stores.forget(claims, [call.id], "")

    def where(self, call: Call, claims: Sequence[Claim]) -> Where | None:
        """
        Return where a job waits that its framework redelivers after a delay. Return None if it is on no list, or no
        store answers. A job without an entry gets a position on the lists of *claims*, unless the call peeks.
        """
        if not claims or not call.id:
            return None
        with suppress(StoreUnavailable):
            found = self._stores.where([each.claim for each in claims], call.id)
            if found is None and not call.peek:
                waited = Waited(denials=1)
                self._stores.reserve(claims, Requester(Caller.JOB, call.id, call.delivery.owner, waited=waited))
            return found
        return None

    def defer(
        self, call: Call, decision: Decision, waited: Waited, *, claims: Sequence[StoreClaim], stops: str
    ) -> Decision:
        """
        Let a job wait that something other than a store denies, or end its waiting. Emit the event.

        Args:
            claims: The job's claims, of one unit each.
            stops: The bucket whose jobs are all stopped; "" if only this job is stopped.
        """
        delivery, waits = call.delivery, call.delivery.waits
        if delivery.is_over(waited):
            self.leave(call, claims)
            return end_waiting(decision)
        if waits is None:
            if call.id:
                self.prefetcher.note(call.id, denied=True)
            decision = delivery.adjust_delay(decision, waited)
        else:
            in_us, ends_in_us = round(decision.delay * 1_000_000), delivery.ends_in_us(waited.for_us)
            waits.waker.hold(call.id, waits.item, in_us, waited, ends_in_us=ends_in_us, claims=claims, stops=stops)
        if call.job is not None:
            self.events.deferred.emit(Deferred(call.job, decision))
        return decision

    def without_store(self, attempt: Attempt, error: StoreUnavailable) -> Decision:
        """Decide by the limits' `on_store_failure`, or by a plugin's choice, and emit the events."""
        job, waiting, waited = attempt.call.job, attempt.call.waiting, NOT_WAITED
        waits, id, units = attempt.call.delivery.waits, attempt.call.id, list[StoreClaim]()
        if waits is not None:
            units = units_of(attempt)
            # Slots that may have been granted are released, so the next request must not repeat this attempt.
            again = "" if slots_of(attempt.request) else attempt.request.attempt
            waits.waker.record_no_answer(id, units, again)
            waited = waits.waker.waited_of(id)._replace(for_us=0)
        chosen = self.events.failure_policy(error, attempt.claims, job)
        outcome, decision = decide_without_store(error, attempt.claims, self._stores.in_process, chosen)
        if waited.denials:
            decision = replace(decision, deferrals=waited.denials)
        if waiting is not None and not decision.allowed:
            # A job that this process's own share denies returns when the share has room.
            delay = self._outage_delays.choose_delay(decision.delay) if outcome == "closed" else decision.delay
            decision = replace(decision, delay=delay)
        self.events.emit_store_failed(error, attempt.claims, outcome, decision, job)
        if waiting is not None and not decision.allowed:
            self.events.deferred.emit(Deferred(waiting, decision))
        if waits is not None and decision.allowed:
            waits.waker.leave_lists(id, units)
        elif waits is not None:
            # The job keeps only its positions, so other stores may admit other jobs while it waits for this store.
            in_us, before = round(decision.delay * 1_000_000), waits.waker.waited_of(id)
            known = before._replace(claim=None) if before.denials else None
            ends_in_us = attempt.request.requester.max_wait_us or None  # its longest wait is over: it waits like others
            waits.waker.hold(id, waits.item, in_us, known, ends_in_us=ends_in_us, claims=units)
        if self.events.decisions:
            self.events.emit_decided_without_store(attempt, decision, error)
        return decision


def _waited_of(id: str, waits: Waiting | None, answer: Answer) -> Waited:
    """Return how long a job has waited, including this denial."""
    if answer.waited is not None or answer.allowed or answer.reason is Reason.FULL:
        return answer.waited or NOT_WAITED
    known = NOT_WAITED if waits is None else waits.waker.waited_of(id)
    return Waited(known.for_us, known.denials + 1, answer.claim)


def begins_in(answer: Answer) -> float:
    """Return the seconds until the body may begin, for a woken job that was granted a little before its time."""
    return max(0, answer.retry_us - answer.now_us) / 1_000_000


def units_of(attempt: Attempt) -> list[StoreClaim]:
    """Return the claims of *attempt* with one unit each, for looks at their waitlists."""
    return [replace(each.claim, algorithm=each.claim.algorithm.of_one(), cost=1) for each in attempt.claims]


def peek_decision(answer: Answer, attempt: Attempt) -> Decision:
    """Return the decision of a peek, which has charged nothing."""
    return replace(decision_from(answer, attempt.claims), charged=())


class History:
    """
    Remembers the last 10 000 jobs that their framework redelivered after a delay and that were then granted.

    Args:
        clock_us: For tests: returns this process's own time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._lock = threading.Lock()
        renew_lock_after_fork(self, "_lock")
        self._known: dict[str, tuple[int, Waited, bool]] = {}
        """When each job was granted, how it had waited, and whether it waits again."""

    def note(self, id: str, waited: Waited, *, again: bool = False) -> None:
        """Record that a job was granted, or, if *again*, that it waits again without an entry in a store."""
        if not id or not (waited.denials or id in self._known):
            return
        with self._lock:
            self._known.pop(id, None)
            if waited.denials:
                self._known[id] = self._clock_us(), waited, again
            if len(self._known) > _MOST_REMEMBERED:
                del self._known[next(iter(self._known))]

    def before(self, id: str, *, again: bool) -> Waited:
        """Return how long a job had waited before its current request. If *again*, it ran, and received a 429."""
        known = self._known.get(id)
        return NOT_WAITED if known is None or not (again or known[2]) else self.of(id)

    def of(self, id: str) -> Waited:
        """Return how long a job has waited, including its run, or zeros if no wait is known."""
        with self._lock:
            granted, waited, _ = self._known.get(id, (0, NOT_WAITED, False))
        if not waited.denials:
            return waited
        return waited._replace(for_us=waited.for_us + self._clock_us() - granted)
