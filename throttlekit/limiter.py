"""The verbs: acquire, peek, reset."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pluggy

from throttlekit import hookspecs
from throttlekit._core.acquire import Ask, Caller, Verdict
from throttlekit._core.decision import Decision
from throttlekit._core.gcra import held_us
from throttlekit._core.job import Job
from throttlekit._core.keys import bucket_name, line_name
from throttlekit._core.limits import Limit, TokenBucket, key_text
from throttlekit._core.line import spacing_us
from throttlekit._plugins import DeferralLog, Stores
from throttlekit._waited import Waited
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.hookspecs import Deferred
from throttlekit.inline import InlineWaits
from throttlekit.stores._base import Claim, Request, Store

__all__ = ["Delivery", "Limiter"]

_log = logging.getLogger("throttlekit")
_STORE_FAILED_DELAY = 1.0
_STORE_FAILED_TELL_EVERY = 30.0
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """
    What the limiter must know of a framework's delayed delivery. Seconds.

    Attributes:
        longest: The longest delay that the framework carries safely. A job whose slot is further
            off comes back then, and is deferred again with the same slot.
        lateness: How late the framework delivers, in all but rare cases.
        early: How much before its slot to ask for a job whose limit has no room for lateness; it
            waits out the rest in place.
        max_wait: How long a job may wait in all, from its first denial.
        max_deferrals: How often a job may be denied.
        inline: Where short waits are slept in place; None: nowhere.
    """

    longest: float = 600.0
    lateness: float = 0.05
    early: float = 0.0
    max_wait: float = _FOREVER
    max_deferrals: float = _FOREVER
    inline: InlineWaits | None = None


_PLAIN_DELIVERY = Delivery()


class Limiter:
    """
    Asks one store about any number of limits. Make one per process, at import; it connects on first use.

    Safe to share between threads, and to make before a fork.

    Args:
        store: A URL (memory://, redis://, rediss://, unix://), or a store of your own.
            Default: memory://, whose limits hold in this process only.
        plugins: Objects with hooks of `throttlekit.hookspecs`, besides the installed ones.

    Raises:
        ConfigurationError: No installed plugin knows the URL, or a plugin has a hook that does not exist.
        ImportError: The store needs a package that is not there; the message names the extra.
    """

    def __init__(self, store: str | Store = "memory://", *, plugins: Sequence[object] = ()) -> None:
        self._hooks = _plugin_manager(plugins)
        self._store: Store = self._make_store(store) if isinstance(store, str) else store
        self._limits: dict[str, Limit] = {}
        self._store_failure_told_at = -_FOREVER

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
        caller: nothing is kept, and `decision.delay` is a good instant to try again.

        Args:
            key: The key to count under, for limits that have one, in place of the job's.
            cost: The units to charge to every limit, in place of the limits' own. 0 only looks.
            delivery: What the job's framework can do; for adapters.

        Raises:
            ConfigurationError: No limit was given, one was given twice or with two definitions, or a
                key or cost could not be worked out. A permanent fault: asking again will not help.
            CostExceedsLimit: The cost could never pass.

        A store that does not answer is no error: the job is denied, keeps its place, and is asked to
        come back in about a second.
        """
        caller = Caller.JOB if job is not None else Caller.GUEST
        claims = self._claims(limits, job, key, cost, delivery)
        waited = Waited.read(job.waited if job is not None else None)
        while True:
            request = Request([c for _, _, _, c in claims], caller, waited.place([limit for limit, *_ in claims]))
            try:
                verdict = self._store.acquire(request)
            except StoreUnavailable as error:
                self._tell_store_failed(error)
                return self._denied_by_store(claims[0], job, waited)
            decision = _decision(verdict, claims)
            if decision.allowed or job is None:
                return decision
            denied = waited.denied(decision.limit, verdict.slot_us, verdict.now_us)
            if delivery.inline is None or not delivery.inline.wait(decision.delay):
                return self._deferred(decision, verdict, job, denied, delivery)
            waited = replace(denied, deferrals=waited.deferrals)

    def peek(
        self, *limits: Limit, job: Job | None = None, key: str | int | None = None, cost: int | None = None
    ) -> Decision:
        """
        Tell what `acquire` would answer now, and change nothing. Takes and raises the same.

        Raises:
            StoreUnavailable: The store did not answer.
        """
        claims = self._claims(limits, job, key, cost, _PLAIN_DELIVERY)
        return _decision(self._store.acquire(Request([c for _, _, _, c in claims], Caller.PEEK)), claims)

    def reset(self, *limits: Limit, job: Job | None = None, key: str | int | None = None) -> None:
        """
        Forget what was counted under *limits*: full buckets, empty lines. Jobs that wait come back when
        they were told to.

        Raises:
            ConfigurationError: As for `acquire`.
            StoreUnavailable: The store did not answer.
        """
        for limit in limits:
            self.declare(limit)
            text = _key(limit, job, key)
            self._store.reset([bucket_name(limit.name, text), line_name(limit.name, text, limit.fingerprint)])

    def declare(self, *limits: Limit) -> None:
        """
        Make *limits* known. Adapters call this where limits are declared, so that mistakes show at once.

        Raises:
            ConfigurationError: One is not a limit, or its name is already used with another definition.
        """
        for limit in limits:
            if not isinstance(limit, TokenBucket):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f'{limit!r} is not a limit: write TokenBucket("name", "100/minute")')
            known = self._limits.setdefault(limit.name, limit)
            if known is not limit and known.fingerprint != limit.fingerprint:
                raise ConfigurationError(
                    f"the name {limit.name!r} is used for two limits: {known!r} and {limit!r}. "
                    "The same name is the same budget: give one of them another name, or use one object for both."
                )

    def close(self) -> None:
        """Let go of the store's connections."""
        self._store.close()

    def _make_store(self, url: str) -> Store:
        store: Store | None = self._hooks.hook.throttlekit_make_store(url=url)
        if store is None:
            scheme = url.partition("://")[0] if "://" in url else url.partition(":")[0]
            raise ConfigurationError(
                f"no store is known for URLs that begin with {scheme!r}: "
                "write memory://, redis://, rediss:// or unix://"
            )
        return store

    def _claims(
        self, limits: Sequence[Limit], job: Job | None, key: str | int | None, cost: int | None, delivery: Delivery
    ) -> list[tuple[Limit, str, int, Claim]]:
        if not limits:
            raise ConfigurationError("no limit was given: acquire(limit, …) takes at least one")
        claims: list[tuple[Limit, str, int, Claim]] = []
        names: set[str] = set()
        for limit in limits:
            known = self._limits.get(getattr(limit, "name", ""), "unknown")
            if known is not limit and not getattr(limit, "by_value", False):
                self.declare(limit)
            if limit.name in names:
                raise ConfigurationError(f"limit {limit.name!r} was given twice: name it once, with a cost")
            names.add(limit.name)
            text = _key(limit, job, key)
            units = limit.cost_of(job) if cost is None else limit.check_cost(cost)
            charge = limit.bucket.charge(units)
            ask = Ask(charge, spacing_us(charge, round(delivery.lateness * 1_000_000)))
            claims.append(
                (
                    limit,
                    text,
                    units,
                    Claim(bucket_name(limit.name, text), line_name(limit.name, text, limit.fingerprint), ask),
                )
            )
        return claims

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

    def _denied_by_store(self, claim: tuple[Limit, str, int, Claim], job: Job | None, waited: Waited) -> Decision:
        limit, key, cost, _ = claim
        delay = _STORE_FAILED_DELAY * random.uniform(0.75, 1.25)
        decision = Decision(
            allowed=False, limit=limit, key=key, cost=cost, remaining=0, retry_after=delay, delay=delay,
            reset_after=0.0, reason="store unavailable",
            waited=waited.write() if job is not None else None,
        )  # fmt: skip
        if job is not None:
            self._tell_deferred(Deferred(job, decision, waited.deferrals, 0.0))
        return decision

    def _tell_store_failed(self, error: StoreUnavailable) -> None:
        now = time.monotonic()
        if now - self._store_failure_told_at >= _STORE_FAILED_TELL_EVERY:
            self._store_failure_told_at = now
            _log.warning("%s. Jobs are deferred, uncharged, for about a second at a time until it does.", error)

    def _tell_deferred(self, event: Deferred) -> None:
        try:
            self._hooks.hook.throttlekit_deferred(event=event)
        except Exception:
            _log.exception("A plugin failed in throttlekit_deferred; the job is deferred all the same.")


def _key(limit: Limit, job: Job | None, key: str | int | None) -> str:
    if key is None or limit.key is None:
        return limit.key_of(job)
    return key_text(key)


def _decision(verdict: Verdict, claims: Sequence[tuple[Limit, str, int, Claim]]) -> Decision:
    binding, now_us = verdict.claim, verdict.now_us
    if verdict.allowed and len(claims) > 1:
        binding = min(range(len(claims)), key=lambda i: _left(claims[i][0], verdict.tats_us[i], now_us))
    limit, key, cost, _ = claims[binding]
    tat_us = verdict.tats_us[binding]
    return Decision(
        allowed=verdict.allowed,
        limit=limit,
        key=key,
        cost=cost,
        remaining=limit.bucket.remaining(tat_us, now_us),
        retry_after=(verdict.retry_us - now_us) / 1_000_000,
        delay=(verdict.slot_us - now_us) / 1_000_000,
        reset_after=held_us(tat_us, now_us) / 1_000_000,
        reason=verdict.reason.value,
    )


def _left(limit: Limit, tat_us: int | None, now_us: int) -> float:
    """The share of the limit's burst that is left."""
    return limit.bucket.remaining(tat_us, now_us) / limit.burst


def _plugin_manager(plugins: Sequence[object]) -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(Stores())
    manager.register(DeferralLog())
    manager.load_setuptools_entrypoints(hookspecs.PROJECT)
    try:
        for plugin in plugins:
            manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise ConfigurationError(f"a plugin has a hook that does not exist, or other arguments: {error}") from None
    return manager
