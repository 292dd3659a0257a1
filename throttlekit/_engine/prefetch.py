"""Token leases in a process: what is spent without asking the store, and how the store is asked for more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.prefetch_options import PrefetchQuota
from throttlekit._core.local_quota import LocalQuota
from throttlekit._engine.breaker import CircuitBreaker
from throttlekit._engine.claims import Claim, decision_from
from throttlekit._util.fork_safety import renew_lock_after_fork
from throttlekit.stores.base import Correction, Request
from throttlekit.stores.composite import Part, acquire_in_parts
from throttlekit.stores.memory import MemoryStore

if TYPE_CHECKING:
    from throttlekit.fleet.activity import Counts

__all__ = ["Prefetcher"]

_Name: TypeAlias = "tuple[str, PrefetchQuota]"
_NOTHING = Verdict(Reason.ALLOWED, 0, 0, 0, 0, ())

_MOST = 1024
"""Prefetcher at once. The one that asked the store longest ago goes."""


def _clock_us() -> Callable[[], int]:
    """One that goes on while the machine sleeps, where there is one: units in hand must not outlive their lease."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        clock, name = time.clock_gettime_ns, time.CLOCK_BOOTTIME
        return lambda: clock(name) // 1000
    return lambda: time.monotonic_ns() // 1000


class _Purse:
    """A wallet, and what those who spend from it are answered: what the store said when it was last filled."""

    __slots__ = ("ahead", "alias", "answer", "cost", "limit", "name", "passed", "quota", "units", "verdict")

    def __init__(self, name: _Name, limit: Limit) -> None:
        self.name, self.limit, self.quota = name, limit, LocalQuota(name[1])
        self.verdict = _NOTHING
        self.answer: Decision | None = None
        self.alias: object = None
        self.cost = self.passed = self.units = 0
        self.ahead: tuple[int, StoreClaim] | None = None


class _Held:
    """All wallets of a process. A child that it forks begins with none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.purses: dict[_Name, _Purse] = {}
        self.quick: dict[object, _Purse] = {}


class Prefetcher:
    """
    Spends units that were taken ahead, for the limits that have `prefetch`, and takes more ahead when it asks.

    A decision made so is the one that the store gave when the units were taken: `remaining` and `reset_after` are of
    that instant, up to `prefetch_for` ago, and so is `Charged.at_us`.

    Args:
        clock_us: For tests: tells the time in microseconds.
    """

    def __init__(self, *, clock_us: Callable[[], int] | None = None) -> None:
        self._clock_us = clock_us or _clock_us()
        self._held = _Held()
        renew_lock_after_fork(self, "_held", _Held)

    def spend(self, limits: Sequence[object], job: object, key: object, cost: object) -> Decision | None:
        """
        The decision on a call that is answered from hand at once: of one limit whose cost is a number, that has one
        rate, and whose scope is "global"; for a job that has not waited. None: it has to be asked.

        Raises:
            ConfigurationError: The key cannot be worked out.
        """
        if len(limits) != 1 or cost is not None:
            return None
        limit = limits[0]
        if type(limit) is not TokenBucket or limit.prefetch_quota is None:
            return None
        if job is not None and (type(job) is not Job or job.ticket):
            return None
        alias: object = limit.name
        if key is not None:
            alias = (alias, key) if type(key) is str else None
        elif limit.key is not None:
            alias = (alias, limit.key_of(job))
        held = self._held
        with held.lock:
            purse = held.quick.get(alias)
            if purse is not None and purse.limit is limit and purse.quota.spend(purse.cost, self._clock_us()):
                purse.passed += 1
                purse.units += purse.cost
                return purse.answer
        return None

    def decide(
        self, request: Request, asked: Sequence[Claim], store: CircuitBreaker, in_process: MemoryStore
    ) -> Verdict:
        """
        Decide a call: what can be spent from hand is, first; then the limits of scope "process" are asked; then the
        store, for the rest. What was spent goes back to hand if a later part denies.

        Raises:
            StoreUnavailable: The store gave no usable answer.
        """
        here = [number for number, each in enumerate(asked) if each.in_process]
        if not here and all(each.limit.prefetch_quota is None for each in asked):
            return store.acquire(request)
        parts: list[Part] = []
        rest: list[int] = []
        now_us, held = self._clock_us(), self._held
        with held.lock:
            for number, each in enumerate(asked):
                name = _name(each)
                purse = held.purses.get(name) if name is not None else None
                if purse is not None and _ready(purse.quota, each.cost, now_us, request.caller):
                    parts.append(Part(_Spent(held, purse, each.cost), [number]))
                elif not each.in_process:
                    rest.append(number)
        if not parts and not here:
            return self.ask(asked, request, store)
        parts += [Part(in_process, here)] if here else []
        parts += [Part(_Asking(self, [asked[number] for number in rest], store), rest)] if rest else []
        return acquire_in_parts(parts, request)

    def tell(self, counts: Counts) -> None:
        """Count what `spend` let pass since the last time; what was in a wallet that has gone is not."""
        held = self._held
        with held.lock:
            passed = [(p.limit, p.name[0], p.passed, p.units) for p in held.purses.values() if p.passed]
            for purse in held.purses.values():
                purse.passed = purse.units = 0
        for each in passed:
            counts.passed(*each)

    @contextmanager
    def without(self, buckets: Iterable[str]) -> Generator[None, None, None]:
        """Spend nothing more of *buckets* from now on, nor, afterwards, of what was on its way meanwhile."""
        names = set(buckets)
        self._forget(lambda name: name[0] in names)
        try:
            yield
        finally:
            self._forget(lambda name: name[0] in names)

    def close(self) -> None:
        """Spend nothing more. What is left is lost: see `throttlekit._core.local_quota`."""
        self._forget(lambda name: True)

    def _forget(self, meant: Callable[[_Name], bool]) -> None:
        held = self._held
        with held.lock:
            for purse in [each for each in held.purses.values() if meant(each.name)]:
                _drop(held, purse)

    def ask(
        self, asked: Sequence[Claim], request: Request, store: CircuitBreaker, now_us: int | None = None
    ) -> Verdict:
        """Ask *store* for *request*, and for units ahead where that pays; if they are denied, for *request* alone."""
        if request.caller is Caller.PEEK:
            return store.acquire(request, now_us)
        held, asked_us = self._held, self._clock_us()
        purses: dict[int, _Purse] = {}
        taking: dict[int, int] = {}
        with held.lock:
            for number, each in enumerate(asked):
                if (name := _name(each)) is None:
                    continue
                purse = purses[number] = _purse(held, name, each.limit)
                # Who holds a place has right of way for his own cost alone.
                if request.place is None and (units := purse.quota.worth_taking(each.cost, asked_us)):
                    taking[number] = units
                    purse.quota.begin(asked_us)
        if taking:
            try:
                verdict = store.acquire(_enlarged(request, purses, taking), now_us)
                self._answered(held, asked, purses, taking, verdict, asked_us)
            finally:
                for number in taking:
                    purses[number].quota.ended()
            if verdict.allowed:
                return verdict
            asked_us = self._clock_us()
        verdict = store.acquire(request, now_us)
        self._answered(held, asked, purses, {}, verdict, asked_us)
        return verdict

    def _answered(
        self,
        held: _Held,
        asked: Sequence[Claim],
        purses: dict[int, _Purse],
        taking: dict[int, int],
        verdict: Verdict,
        asked_us: int,
    ) -> None:
        now_us = self._clock_us()
        with held.lock:
            for number, purse in purses.items():
                if held.purses.get(purse.name) is not purse:
                    continue  # it was emptied meanwhile: what was on its way is lost
                each, quota = asked[number], purse.quota
                use, at_us = verdict.uses[number], verdict.asked_us[number] if verdict.asked_us else verdict.now_us
                remaining = each.limit.remaining(use, at_us) if use is not None else 0
                if number in taking and verdict.allowed:
                    quota.took(taking[number], each.cost, asked_us, now_us, remaining)
                    purse.verdict = Verdict(Reason.ALLOWED, 0, at_us, at_us, at_us, (use,))
                    _answer_at_once(held, purse, each)
                elif number in taking:
                    quota.refused(asked_us)
                elif not taking and (verdict.allowed or verdict.claim == number):
                    quota.asked_plainly(each.cost, verdict.allowed, asked_us, remaining)


class _Spent:
    """Decides one claim of a call, from a wallet: a part of the call like a store."""

    def __init__(self, held: _Held, purse: _Purse, cost: int) -> None:
        self._held, self._purse, self._cost = held, purse, cost
        self._verdict, self._until_us = purse.verdict, purse.quota.until_us

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        return self._verdict

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        """Another part denied."""
        with self._held.lock:
            self._purse.quota.put_back(self._cost, self._until_us)


class _Asking:
    """Asks the store for the rest of a call: the last part of it."""

    def __init__(self, prefetcher: Prefetcher, asked: Sequence[Claim], store: CircuitBreaker) -> None:
        self._wallets, self._asked, self._store = prefetcher, asked, store

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        return self._wallets.ask(self._asked, request, self._store, now_us)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        raise AssertionError("it is the last part: none comes after it that could deny")


def _ready(quota: LocalQuota, cost: int, now_us: int, caller: Caller) -> bool:
    return quota.has(cost, now_us) if caller is Caller.PEEK else quota.spend(cost, now_us)


def _name(asked: Claim) -> _Name | None:
    """Of the wallet that it is spent from; None if from none."""
    lease = asked.limit.prefetch_quota
    return None if lease is None or asked.cost == 0 else (asked.claim.bucket, lease)


def _purse(held: _Held, name: _Name, limit: Limit) -> _Purse:
    """Its purse, as the one that is asked for last."""
    purse = held.purses.pop(name) if name in held.purses else _Purse(name, limit)
    held.purses[name] = purse
    if len(held.purses) > _MOST:
        _drop(held, next(iter(held.purses.values())))
    return purse


def _drop(held: _Held, purse: _Purse) -> None:
    purse.quota.empty()
    held.purses.pop(purse.name, None)
    held.quick.pop(purse.alias, None)


def _answer_at_once(held: _Held, purse: _Purse, asked: Claim) -> None:
    """Let `Prefetcher.spend` answer for what has just been filled, where the call alone says whose it is."""
    limit: Limit = asked.limit
    held.quick.pop(purse.alias, None)  # the answer that it had is of another taking
    if limit.scope != "global" or limit.of_tier is not None or limit.by_value or asked.cost != limit.cost:
        return
    purse.cost, purse.limit, purse.alias = (
        asked.cost,
        limit,
        limit.name if limit.key is None else (limit.name, asked.key),
    )
    purse.answer = decision_from(purse.verdict, [asked])
    held.quick[purse.alias] = purse


def _enlarged(request: Request, purses: dict[int, _Purse], taking: dict[int, int]) -> Request:
    """The same for so many units ahead, as one who passes only if nobody waits, and books nothing."""
    claims = list(request.claims)
    for number, units in taking.items():
        purse, claim = purses[number], claims[number]
        if purse.ahead is None or purse.ahead[0] != units:
            limit: Any = purse.limit
            algorithm = limit.bind_ahead(units)
            purse.ahead = (units, StoreClaim(claim.bucket, claim.line, algorithm, algorithm.size))
        claims[number] = purse.ahead[1]
    return Request(claims, Caller.GUEST, None, 0)
