"""The two stores of a limiter: the store that the fleet shares, and the memory of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from throttlekit._core.answer import Answer, Caller, Look, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Charged, Decision, charges_to_settle
from throttlekit._core.limit.base import Limit
from throttlekit._core.time_zone import DAY_US
from throttlekit._core.wait_control import Charge, Where
from throttlekit._core.waitlist import Wake
from throttlekit._engine.claims import Attempt, Claim
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.base import Correction, Request, Slowing, Store
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.returns import Returns, slots_of

__all__ = ["StoreCalendar", "Stores", "needs_calendar"]

_T = TypeVar("_T")


class StoreCalendar:
    """
    Selects a time zone's offsets by the time of the store, even if the clock of this process is wrong.

    A request has the offsets of 200 days before and after that time, so one answer of the store is exact enough for the
    lifetime of the process. Before the first request that needs the time, the process peeks once.
    """

    def __init__(self) -> None:
        self._ahead_us: int | None = None

    def set(self, store_us: int) -> None:
        """Record that the time of the store's clock was *store_us* a moment ago."""
        self._ahead_us = store_us - time.monotonic_ns() // 1000

    def note_answer(self, attempt: Attempt, answer: Answer | Exception) -> None:
        """Record the time of the store's *answer* to *attempt*, if the attempt needs it."""
        if isinstance(answer, Answer) and needs_calendar(attempt):
            self.set(answer.now_us)

    def now_us(self, store: Store, claims: Sequence[StoreClaim]) -> int:
        """
        Return the approximate time of the clock of *store*. If the time is not known, read it by a peek of *claims*.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        if self._ahead_us is None:
            self.set(store.decide(claims, Requester(Caller.PEEK)).now_us)
            return self.now_us(store, claims)
        return time.monotonic_ns() // 1000 + self._ahead_us

    def correct_offsets(self, attempt: Attempt, store: Store) -> Attempt:
        """
        Return *attempt* with the offsets of the store's time, if this process's clock is wrong by a day or more.

        Raises:
            StoreUnavailable: The time is not known yet, and the store did not answer.
        """
        if not needs_calendar(attempt):
            return attempt
        now_us = self.now_us(store, attempt.request.claims)
        if abs(now_us - time.time_ns() // 1000) < DAY_US:
            return attempt
        claims = [
            replace(store_claim, algorithm=claim.limit.bind(claim.cost, now_us)) if claim.limit.in_zone else store_claim
            for claim, store_claim in zip(attempt.claims, attempt.request.claims, strict=True)
        ]
        return attempt._replace(request=attempt.request._replace(claims=claims))


def needs_calendar(attempt: Attempt) -> bool:
    """Whether one of the limits follows a time zone."""
    for claim in attempt.claims:  # noqa: SIM110 - at each decision, and a generator costs more than the loop
        if claim.limit.in_zone:
            return True
    return False


@dataclass(slots=True, eq=False)
class Stores:
    """
    The stores of one limiter.

    Attributes:
        shared: The limiter's store, behind its circuit breaker.
        in_process: Counts limits of scope "process".
        returns: Releases slots that the shared store may have granted without an answer.
        calendar: Estimates the time of the shared store.
    """

    shared: StoreAccess
    in_process: MemoryStore
    returns: Returns = field(init=False)
    calendar: StoreCalendar = field(default_factory=StoreCalendar)

    def __post_init__(self) -> None:
        self.returns = Returns(lambda slots: self.shared.settle(slots))

    def decide(self, request: Request) -> Answer:
        """
        Decide *request* in the shared store. If the caller gets no answer, the slots of *request* are released, because
        the store may have granted them.
        """
        try:
            return self.shared.decide(request.claims, request.requester, attempt=request.attempt)
        except BaseException as error:  # also an interrupt, such as a job's time limit
            self._record_no_answer(request, error)
            raise

    def decide_in_calendar(self, attempt: Attempt) -> Answer:
        """Like `decide`, for an attempt whose limits may follow a time zone."""
        answer = self.decide(self.calendar.correct_offsets(attempt, self.shared).request)
        self.calendar.note_answer(attempt, answer)
        return answer

    def decide_all(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """Decide each of *requests*, in one round trip if the store supports it. An error replaces its answer."""
        try:
            answers = self.shared.decide_all(requests)
        except BaseException as error:
            for request in requests:
                self._record_no_answer(request, error)
            raise
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Exception):
                self._record_no_answer(request, answer)
        return answers

    def _record_no_answer(self, request: Request, error: BaseException) -> None:
        called, after = (error.called, error.retry_after) if isinstance(error, StoreUnavailable) else (True, 0.0)
        if called and (slots := slots_of(request)):
            self.returns.owe(slots, after)

    def abandon(self, attempt: Attempt) -> None:
        """Release the slots of *attempt*, whose caller was interrupted before the body began."""
        in_process = {claim.claim.bucket for claim in attempt.claims if claim.in_process}
        slots = slots_of(attempt.request)
        self.in_process.settle([each for each in slots if each.bucket in in_process])
        self.returns.owe([each for each in slots if each.bucket not in in_process])

    def of(self, limit: Limit) -> Store:
        """Return the store that counts *limit*."""
        return self.in_process if limit.scope == "process" else self.shared

    def split(
        self, items: Sequence[_T], is_in_process: Callable[[_T], bool]
    ) -> Iterator[tuple[MemoryStore | StoreAccess, list[_T]]]:
        """Yield each store with its part of *items*, the store that always answers first. Yield no empty part."""
        own = [each for each in items if is_in_process(each)]
        others = [each for each in items if not is_in_process(each)]
        if own:
            yield self.in_process, own
        if others:
            yield self.shared, others

    def slow(self, slowings: Sequence[tuple[Limit, Slowing]]) -> None:
        """Slow limits down for a while, first those of scope "process"; see `Store.slow`."""
        for store, part in self.split(slowings, lambda each: each[0].scope == "process"):
            store.slow([slowing for _, slowing in part])

    # Waitlists

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look:
        """Look at the waitlist of *claim*; see `Store`."""
        store = self.in_process if self.in_process.has_list(claim.bucket) else self.shared
        return store.look(claim, owner, free, ids)

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str, *, keep: bool = False) -> None:
        """Remove jobs from the waitlists of *claims*. If *keep*, the jobs keep their positions."""
        for store, part in self.split(claims, lambda claim: self.in_process.has_list(claim.bucket)):
            store.forget(part, ids, owner, keep=keep)

    def where(self, claims: Sequence[StoreClaim], id: str) -> Where | None:
        """Find where a job waits; see `Store`."""
        for store, part in self.split(claims, lambda claim: self.in_process.has_list(claim.bucket)):
            if (found := store.where(part, id)) is not None:
                return found._replace(claim=claims.index(part[found.claim]))
        return None

    def reserve(self, claims: Sequence[Claim], requester: Requester) -> None:
        """Give a job a position on those lists of *claims* that the fleet shares or, if there are none, on all."""
        shared = [Charge(each.claim) for each in claims if not each.in_process]
        if shared:
            self.shared.return_units(shared, requester)
        else:
            self.in_process.return_units([Charge(each.claim) for each in claims], requester)

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """Receive the wakes of *owner* from both stores. Return a function that ends this."""
        ends = [store.listen(owner, on_wakes, missed) for store in (self.in_process, self.shared)]

        def end() -> None:
            for each in ends:
                each()

        return end

    def settle(self, decision: Decision, actual: int, limit: Limit | None) -> Decision:
        """Correct the charges of *decision*; see `Limiter.settle`. One round trip at most."""
        meant = charges_to_settle(decision, limit)
        charged = tuple(
            each._replace(cost=each.limit.check_units(actual)) if each in meant else each for each in decision.charged
        )
        for own, store in ((False, self.shared), (True, self.in_process)):
            corrections: list[Correction] = []
            for before, after in zip(decision.charged, charged, strict=True):
                if before.bucket and (before.limit.scope == "process") is own and before.cost != after.cost:
                    # The difference, rounded up. This is also right for a cost that was charged together with others.
                    algorithm = before.limit.bind(after.cost - before.cost, self._around_us(before))
                    corrections.append(Correction(before.bucket, algorithm, before.at_us, algorithm.size))
            if corrections:
                store.settle(corrections)
        cost = next((each.cost for each in charged if each.limit is decision.limit), decision.cost)
        return replace(decision, charged=charged, cost=cost)

    def _around_us(self, charged: Charged) -> int:
        """Return the approximate time for the limit of *charged*, by the clock of its store if that matters."""
        now_us, limit = time.time_ns() // 1000, charged.limit
        if not limit.in_zone or limit.scope == "process":
            return now_us
        return self.calendar.now_us(self.shared, [StoreClaim(charged.bucket, limit.bind(0, now_us))])
