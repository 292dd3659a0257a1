"""
Dispatch events to plugins, and read the keys, costs, limits and policies that they configure.

A failing plugin affects neither the job nor the other plugins. Events of decisions, settlements and bodies are built
only if a plugin listens. All other events have a listener, because built-in plugins log them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args

import pluggy

from throttlekit._core.answer import Answer
from throttlekit._core.decision import Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.options import OnStoreFailure
from throttlekit._core.limit.template import key_text, safe_repr
from throttlekit._engine.claims import Attempt, Claim
from throttlekit._util.log_limiter import Every
from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.hookspecs import Decided, Settled, StoreFailed, StoreFailing

__all__ = ["EventDispatcher", "limits_in"]

_log = logging.getLogger("throttlekit")
_T = TypeVar("_T")
_new: Callable[..., Decided] = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class EventDispatcher:
    """
    The hooks of a limiter's plugins, as methods.

    Attributes:
        deferred, started, finished, rate_limited, shadow_denied, slot_lost: The plugins that listen to these events.
        decisions: Whether a plugin listens to decisions.
        configures_claims: Whether a plugin may change the keys or costs of jobs.
        configures_limits: Whether a plugin may add limits to jobs.
        bodies: Whether a plugin listens to the bodies of jobs.
    """

    def __init__(self, hooks: pluggy.PluginManager) -> None:
        hook = hooks.hook
        self.deferred = _Observers(hook.throttlekit_deferred)
        self.started, self.finished = _Observers(hook.throttlekit_started), _Observers(hook.throttlekit_finished)
        self.rate_limited = _Observers(hook.throttlekit_rate_limited)
        self.shadow_denied = _Observers(hook.throttlekit_shadow_denied)
        self.slot_lost = _Observers(hook.throttlekit_slot_lost)
        self._decided, self._settled = _Observers(hook.throttlekit_decided), _Observers(hook.throttlekit_settled)
        self._store_failed = _Observers(hook.throttlekit_store_failed)
        self._limits, self._policy = _Advisers(hook.throttlekit_limits), _Advisers(hook.throttlekit_on_store_failure)
        self._key, self._cost = _Advisers(hook.throttlekit_key), _Advisers(hook.throttlekit_cost)
        self.decisions = bool(self._decided.functions)
        self.configures_claims = bool(self._key.functions or self._cost.functions)
        self.configures_limits = bool(self._limits.functions)
        self.bodies = bool(self.started.functions or self.finished.functions)

    # What plugins configure

    def limits(self, job: Job) -> tuple[Limit, ...]:
        """Return the limits that plugins add to *job*, without duplicate names."""
        added: dict[str, Limit] = {}
        for advice in self._limits.all_of(limits_in, job=job):
            for limit in advice:
                added.setdefault(limit.name, limit)
        return tuple(added.values())

    def key(self, job: Job, limit: Limit) -> str | None:
        """Return the key that a plugin sets for *job* under *limit*, or None to use the limit's own."""
        return self._key.first_of(key_text, job=job, limit=limit)

    def cost(self, job: Job, limit: Limit) -> int | None:
        """
        Return the cost that a plugin sets for *job* under *limit*, or None to use the limit's own.

        Raises:
            ConfigurationError: The cost is above 1, and each job, or each workflow, holds one slot of *limit*.
        """
        cost = self._cost.first_of(limit.check_cost, job=job, limit=limit)
        if cost is not None and cost > 1 and not limit.period_us and (limit.adapt or limit.held_by is not None):
            option = "adapt=" if limit.adapt else "held_by="
            raise ConfigurationError(
                f"limit {limit.name!r}: a plugin sets the cost {cost}, but with {option} a job holds one slot"
            )
        return cost

    def failure_policy(
        self, error: StoreUnavailable, claims: Sequence[Claim], job: Job | None
    ) -> OnStoreFailure | None:
        """Return the policy that a plugin selects for a call without an answer, or None to use each limit's own."""
        if not self._policy.functions:
            return None
        event = StoreFailing(_error_name(error), _shared_limits(claims), job)

        def policy(advice: Any) -> OnStoreFailure:
            if advice not in get_args(OnStoreFailure):
                raise ConfigurationError(f'a policy is "closed", "open" or "local", not {safe_repr(advice)}')
            without = [limit.name for limit in event.limits if limit.local_part is None]
            if advice == "local" and without:
                raise ConfigurationError(f'limit {without[0]!r} has no share: declare it with on_store_failure="local"')
            return advice  # type: ignore[no-any-return]

        return self._policy.first_of(policy, event=event)

    # What plugins observe

    def emit_decided(self, attempt: Attempt, decision: Decision, answer: Answer) -> None:
        """Emit the *decision* on a call. If the call waited in place, only its last attempt is emitted."""
        ended, uses, claims = time.perf_counter(), answer.uses, attempt.claims
        if len(claims) == 1:
            limit = claims[0].limit
            limits: tuple[Limit, ...] = (limit,)
            called = uses[0] is not None and limit.scope != "process"
        else:
            limits = tuple([claim.limit for claim in claims])
            called = any(use is not None and limit.scope != "process" for limit, use in zip(limits, uses, strict=True))
        self._decided.emit(
            _new(
                Decided,
                (
                    attempt.call.job,
                    decision,
                    limits,
                    uses,
                    (answer.retry_us - answer.now_us) / 1_000_000,
                    ended - attempt.began if called else None,
                ),
            )
        )

    def emit_decided_without_store(self, attempt: Attempt, decision: Decision, error: StoreUnavailable) -> None:
        """Emit a *decision* that was made because the store gave no usable answer."""
        limits = tuple([claim.limit for claim in attempt.claims])
        took = time.perf_counter() - attempt.began if error.called else None
        self._decided.emit(Decided(attempt.call.job, decision, limits, (), 0.0, took))

    def emit_decided_locally(self, decision: Decision, limits: Sequence[Limit], job: Job | None) -> None:
        """Emit a *decision* on *limits* that was made without a request to a store."""
        if self.decisions:
            own = tuple([limit.for_job(job) for limit in limits])
            self._decided.emit(Decided(job, decision, own, (), round(decision.delay * 1_000_000) / 1_000_000, None))

    def emit_settled(self, before: Decision, after: Decision, actual: int) -> None:
        """Emit each limit whose charge differs between *before* and *after*."""
        if self._settled.functions:
            for old, new in zip(before.charged, after.charged, strict=True):
                if old is not new:
                    self._settled.emit(Settled(before, old.limit, old.cost, actual))

    def emit_store_failed(
        self,
        error: StoreUnavailable,
        claims: Sequence[Claim],
        outcome: OnStoreFailure,
        decision: Decision,
        job: Job | None,
    ) -> None:
        self._store_failed.emit(StoreFailed(_error_name(error), _shared_limits(claims), outcome, decision, job))


class _Observers:
    """
    The plugins that listen to one hook. They are looked up once, because a limiter's plugins never change.

    Attributes:
        functions: The plugins' functions. Each takes the event only.
    """

    __slots__ = ("_failed", "_name", "functions")

    def __init__(self, hook: pluggy.HookCaller) -> None:
        self._name, self._failed = hook.name, Every()
        self.functions = [_observer(each) for each in reversed(hook.get_hookimpls())]

    def emit(self, event: object) -> None:
        """Call each function separately, so that a failing plugin does not affect the others."""
        for function in self.functions:
            try:
                function(event)
            except Exception:
                if self._failed.due():
                    _log.exception("A plugin failed in %s; jobs and other plugins are not affected.", self._name)


class _Advisers:
    """The plugins that return values for one hook. Failures and invalid values are logged and skipped."""

    __slots__ = ("_failed", "_name", "functions")

    def __init__(self, hook: pluggy.HookCaller) -> None:
        self._name, self._failed = hook.name, Every()
        self.functions = [_adviser(each) for each in reversed(hook.get_hookimpls())]

    def all_of(self, read: Callable[[Any], _T], **arguments: object) -> Iterator[_T]:
        """Yield the value of each plugin that returns one, converted by *read*."""
        for function in self.functions:
            try:
                advice = function(arguments)
                found = None if advice is None else read(advice)
            except Exception:
                if self._failed.due():
                    _log.exception("A plugin failed in %s; what it returned is not used.", self._name)
                continue
            if found is not None:
                yield found

    def first_of(self, read: Callable[[Any], _T], **arguments: object) -> _T | None:
        """Return the first valid value, converted by *read*, or None if there is none."""
        return next(self.all_of(read, **arguments), None)


def _observer(hook: pluggy.HookImpl) -> Callable[[object], object]:
    """Return the function of *hook*. pluggy lets an implementation omit arguments that it does not need."""
    function: Callable[..., object] = hook.function
    return function if hook.argnames else lambda event: function()


def _adviser(hook: pluggy.HookImpl) -> Callable[[dict[str, object]], Any]:
    function, names = hook.function, hook.argnames
    return lambda arguments: function(*[arguments[name] for name in names])


def limits_in(advice: Any) -> tuple[Limit, ...]:
    """Return the limits that a plugin gives, or raise `ConfigurationError` if *advice* is not a list of limits."""
    if isinstance(advice, Limit):
        raise ConfigurationError(f"return a list of limits, not one: {safe_repr(advice)}")
    limits = tuple(advice)
    for limit in limits:
        if not isinstance(limit, Limit):
            raise ConfigurationError(f"{safe_repr(limit)} is not a limit")
    return limits


def _error_name(error: StoreUnavailable) -> str:
    return type(error.__cause__ or error).__name__


def _shared_limits(claims: Sequence[Claim]) -> tuple[Limit, ...]:
    return tuple([claim.limit for claim in claims if not claim.in_process])
