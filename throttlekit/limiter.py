"""The verbs: acquire, peek, reset."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from throttlekit._core.acquire import Ask, Caller, Reason, Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.gcra import held_us
from throttlekit._core.job import Job
from throttlekit._core.key import key_text
from throttlekit._core.keys import bucket_name, line_name
from throttlekit._core.limits import Limit, TokenBucket
from throttlekit._core.line import spacing_us
from throttlekit._delivery import Delivery
from throttlekit._seldom import Seldom
from throttlekit._waited import Waited
from throttlekit._wiring import plugin_manager, store_from
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.hookspecs import Deferred
from throttlekit.stores._base import Claim, Request, Store

__all__ = ["Limiter"]

_log = logging.getLogger("throttlekit")
_STORE_FAILED_DELAY = 1.0
_PLAIN_DELIVERY = Delivery()


@dataclass(frozen=True, slots=True)
class _Asked:
    """One limit of a call, and what is asked of it."""

    limit: Limit
    key: str
    cost: int
    claim: Claim


class Limiter:
    """
    Asks one store about any number of limits. Make one per process, at import; it connects on first use.

    Safe to share between threads, and to make before a fork.

    Args:
        store: A URL (memory://, redis://, rediss://, unix://, valkey://), or a store of your own.
            Default: memory://, whose limits hold in this process only.
        plugins: Objects with hooks of `throttlekit.hookspecs`, besides the installed ones.

    Raises:
        ConfigurationError: No installed plugin knows the URL, the store is none, or a plugin is none or
            has a hook that does not exist.
        ImportError: The store needs a package that is not there; the message names the extra.
    """

    def __init__(self, store: str | Store = "memory://", *, plugins: Sequence[object] = ()) -> None:
        self._hooks = plugin_manager(plugins)
        self._store = store_from(store, self._hooks)
        self._limits: dict[str, Limit] = {}
        self._store_failure = Seldom()
        self._plugin_failure = Seldom()

    def acquire(
        self,
        *limits: Limit,
        job: Job | None = None,
        key: str | int | None = None,
        cost: int | None = None,
        delivery: Delivery = _PLAIN_DELIVERY,
    ) -> Decision:
        """
        Ask whether a job may run now under all of *limits*, and charge all of them or none: one round trip.

        With a *job*, a denial gives it a place in the binding limit's waiting line: come back after
        `decision.delay` with `decision.waited` as `job.waited`. Without one, nobody waits for the
        caller: nothing is kept, and `decision.delay` spreads such callers out. They pass when no job
        waits, so under a lasting backlog of jobs hardly at all.

        Args:
            key: The key to count under, for limits that have one, in place of the job's.
            cost: The units to charge to every limit, in place of the limits' own. 0 only looks.
            delivery: What the job's framework can do; for adapters.

        Raises:
            ConfigurationError: No limit was given, one was given twice or with two definitions, a key
                or cost could not be worked out, or a key was given and no limit has one. A permanent
                fault: asking again will not help.
            CostExceedsLimit: The cost could never pass.

        A store that does not answer is no error: the job is denied, keeps its place, and is asked to
        come back in about a second.
        """
        asked = self._asked(limits, job, key, cost, delivery.lateness)
        claims = [each.claim for each in asked]
        waited = Waited.read(job.waited if job is not None else None)
        while True:
            if job is None:
                request = Request(claims, Caller.GUEST)
            else:
                request = Request(claims, Caller.JOB, waited.place(limits), delivery.patience_us(waited))
            try:
                verdict = self._store.acquire(request)
            except StoreUnavailable as error:
                self._tell_store_failed(error)
                return self._denied_by_store(asked[0], job, waited)
            decision = _decision(verdict, asked)
            if decision.allowed or job is None:
                return decision
            counts = verdict.reason is not Reason.EARLY or waited.deferrals == 0
            denied = waited.denied(decision.limit, verdict.slot_us, verdict.now_us, counts=counts)
            if delivery.inline is None or not delivery.inline.wait(decision.delay):
                return self._deferred(decision, verdict, job, denied, delivery)
            waited = replace(denied, deferrals=waited.deferrals)

    def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """
        Tell what `acquire` would answer now, and change nothing. Takes and raises the same; a job that
        carries a place is answered as its holder.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        asked = self._asked(limits, job, key, cost, _PLAIN_DELIVERY.lateness)
        place = Waited.read(job.waited).place(limits) if job is not None else None
        return _decision(self._store.acquire(Request([each.claim for each in asked], Caller.PEEK, place)), asked)

    def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Forget what was counted under *limits*: full buckets, empty lines. Jobs that wait come back when
        they were told to.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        self._check(limits, job, key)
        for names in [_names(limit, _key(limit, job, key)) for limit in limits]:
            self._store.reset(names)

    def declare(self, *limits: Limit) -> None:
        """
        Make *limits* known. Adapters call this where limits are declared, so that mistakes show at once.

        Raises:
            ConfigurationError: One is not a limit, or its name is already used with another definition.
        """
        for limit in limits:
            if not isinstance(limit, TokenBucket):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise _no_limit(limit)
            known = self._limits.setdefault(limit.name, limit)
            if known is not limit and known.fingerprint != limit.fingerprint:
                raise ConfigurationError(
                    f"the name {limit.name!r} is used for two limits: {known!r} and {limit!r}. "
                    "The same name is the same budget: give one of them another name, or use one object for both."
                )

    def close(self) -> None:
        """Let go of the store's connections."""
        self._store.close()

    def _check(self, limits: Sequence[Limit], job: Job | None, key: str | int | None) -> None:
        """Refuse a call that can never work, whatever the job."""
        if not limits:
            raise ConfigurationError("no limit was given: acquire, peek and reset take at least one")
        if job is not None and not isinstance(job, Job):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"job must be a throttlekit.Job, not {type(job).__name__}: write job=Job(…)")
        names: set[str] = set()
        for limit in limits:
            if not isinstance(limit, TokenBucket) or not limit.by_value:  # pyright: ignore[reportUnnecessaryIsInstance]
                self.declare(limit)
            if limit.name in names:
                raise ConfigurationError(f"limit {limit.name!r} was given twice: name it once, with a cost")
            names.add(limit.name)
        if key is not None and all(limit.key is None for limit in limits):
            raise ConfigurationError(f"limit {limits[0].name!r} has no key: drop key=, or give the limit one")

    def _asked(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, lateness: float
    ) -> list[_Asked]:
        self._check(limits, job, key)
        lateness_us = round(lateness * 1_000_000)
        asked: list[_Asked] = []
        for limit in limits:
            text = _key(limit, job, key)
            units = limit.cost_of(job) if cost is None else limit.check_cost(cost)
            charge = limit.bucket.charge(units)
            claim = Claim(*_names(limit, text), Ask(charge, spacing_us(charge, lateness_us)))
            asked.append(_Asked(limit, text, units, claim))
        return asked

    def _deferred(self, decision: Decision, verdict: Verdict, job: Job, waited: Waited, delivery: Delivery) -> Decision:
        passed = waited.seconds(verdict.now_us)
        if passed >= delivery.max_wait or waited.deferrals > delivery.max_deferrals:
            return replace(decision, reason="waited too long", delay=0.0, waited=None)
        room_us = decision.limit.bucket.charge(decision.cost).headroom_us
        tight = room_us < delivery.lateness * 1_000_000 and decision.delay > 2 * delivery.early
        early = delivery.early if tight else 0.0
        delay = min(decision.delay - early, delivery.longest, delivery.max_wait - passed)
        decision = replace(decision, delay=delay, waited=waited.write())
        self._tell_deferred(Deferred(job, decision, waited.deferrals, passed))
        return decision

    def _denied_by_store(self, asked: _Asked, job: Job | None, waited: Waited) -> Decision:
        delay = _STORE_FAILED_DELAY * random.uniform(0.75, 1.25)
        decision = Decision(
            allowed=False, limit=asked.limit, key=asked.key, cost=asked.cost, remaining=0,
            retry_after=delay, delay=delay, reset_after=0.0, reason="store unavailable",
            waited=waited.write() if job is not None else None,
        )  # fmt: skip
        if job is not None:
            self._tell_deferred(Deferred(job, decision, waited.deferrals, 0.0))
        return decision

    def _tell_store_failed(self, error: StoreUnavailable) -> None:
        if self._store_failure.due():
            _log.warning("%s. Jobs are deferred, uncharged, for about a second at a time until it does.", error)

    def _tell_deferred(self, event: Deferred) -> None:
        """Call each plugin on its own: one that fails keeps nothing from the others."""
        for hook in reversed(self._hooks.hook.throttlekit_deferred.get_hookimpls()):
            try:
                hook.function(event) if hook.argnames else hook.function()
            except Exception:
                if self._plugin_failure.due():
                    _log.exception("A plugin failed in throttlekit_deferred; the job is deferred all the same.")


def _no_limit(what: object) -> ConfigurationError:
    if isinstance(what, (list, tuple, set, frozenset)):
        return ConfigurationError("a limit was expected, not several in one: pass them one by one: acquire(a, b)")
    told = f"the class {what.__name__}" if isinstance(what, type) else repr(what)
    return ConfigurationError(f'{told} is not a limit: write TokenBucket("name", "100/minute")')


def _key(limit: Limit, job: Job | None, key: str | int | None) -> str:
    if key is None or limit.key is None:
        return limit.key_of(job)
    return key_text(key)


def _names(limit: Limit, key: str) -> tuple[str, str]:
    return bucket_name(limit.name, key, limit.fingerprint), line_name(limit.name, key, limit.fingerprint)


def _decision(verdict: Verdict, asked: Sequence[_Asked]) -> Decision:
    binding, now_us = verdict.claim, verdict.now_us
    if verdict.allowed and len(asked) > 1:
        binding = min(range(len(asked)), key=lambda i: _left(asked[i].limit, verdict.tats_us[i], now_us))
    bound, tat_us = asked[binding], verdict.tats_us[binding]
    return Decision(
        allowed=verdict.allowed,
        limit=bound.limit,
        key=bound.key,
        cost=bound.cost,
        remaining=bound.limit.bucket.remaining(tat_us, now_us),
        retry_after=(verdict.retry_us - now_us) / 1_000_000,
        delay=(verdict.slot_us - now_us) / 1_000_000,
        reset_after=held_us(tat_us, now_us) / 1_000_000,
        reason=verdict.reason.value,
    )


def _left(limit: Limit, tat_us: int | None, now_us: int) -> float:
    """The share of the limit's burst that is left."""
    return limit.bucket.remaining(tat_us, now_us) / limit.burst
