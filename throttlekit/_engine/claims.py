"""Convert a call into claims and an attempt, for the layers that decide, and the store's answer into a decision."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from throttlekit._core.algorithm import Algorithm, Use
from throttlekit._core.algorithms.concurrency import Concurrency
from throttlekit._core.answer import NOT_WAITED, WITHOUT_JOB, Answer, Caller, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Charged, Decision, decision_of
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.share import NO_TENANT_SHARE, TenantShare
from throttlekit._core.limit.template import key_text
from throttlekit._core.storage_keys import bucket_name, holder_name, quote
from throttlekit._core.wait_control import Charge
from throttlekit._engine.call import NO_JOB, Call
from throttlekit._engine.registry import LimitRegistry
from throttlekit.stores.base import Request
from throttlekit.stores.parts import Part, decide_in_parts

__all__ = [
    "Attempt",
    "Claim",
    "ClaimResolver",
    "Plugins",
    "build_request",
    "decide_parts",
    "decision_from",
    "under",
]

_DAY_NS = 86_400_000_000_000
_MOST_REMEMBERED = 1024


class Claim(NamedTuple):  # made for each job of a new key: a frozen dataclass costs twice as much
    """
    The units that one job requests from one limit, under one key.

    Attributes:
        limit: The limit of the job's tier.
        claim: The same claim in the form that stores take.
        plain: Whether the shared store decides the claim without any other layer.
    """

    limit: Limit
    key: str
    cost: int
    claim: StoreClaim
    plain: bool = False

    @property
    def in_process(self) -> bool:
        return self.limit.scope == "process"

    @property
    def is_anyones(self) -> bool:
        """Whether equal calls may share this claim. False for a slot, because a slot has a holder."""
        return self.plain and not self.claim.algorithm.holder

    def build_charged(self, at_us: int) -> Charged:
        limit, _, cost, claim, _ = self
        holder = claim.algorithm.holder if cost else ""
        return Charged(limit, claim.bucket, cost, at_us, callable(limit.cost), holder)


def under(charged: Charged) -> Claim:
    """Return a claim of no units on the limit and key that *charged* was counted under."""
    algorithm = charged.limit.bind(0, time.time_ns() // 1000)
    return Claim(charged.limit, "", 0, StoreClaim(charged.bucket, algorithm, 0))


class Attempt(NamedTuple):
    """
    One request to the store on behalf of a call. After a wait in place the same call makes another attempt.

    Attributes:
        claims: The call's claims, in the order of its limits.
        request: The request in the form that stores take. It has the same claims, in the same order.
        began: The time when the request was sent, by `time.perf_counter`; 0 if no plugin listens.
    """

    call: Call
    claims: Sequence[Claim]
    request: Request
    began: float = 0.0


def decide_parts(
    attempt: Attempt, parts: Sequence[Part], rest: Sequence[int], decide: Callable[[Attempt], Answer]
) -> Answer:
    """Decide *parts* of *attempt* first, and then, if they all grant, the claims with the numbers *rest*."""
    last = [Part(_Rest(attempt, rest, decide), rest)] if rest else []
    request = attempt.request
    return decide_in_parts([*parts, *last], request.claims, request.requester, attempt=request.attempt, in_order=True)


class _Rest:
    """The claims of an attempt that the layer below decides, with the methods of a store. It is always decided last."""

    def __init__(self, attempt: Attempt, numbers: Sequence[int], decide: Callable[[Attempt], Answer]) -> None:
        self._attempt, self._numbers, self._decide = attempt, numbers, decide

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        mine = [self._attempt.claims[number] for number in self._numbers]
        request = Request(claims, requester, attempt)
        return self._decide(self._attempt._replace(claims=mine, request=request))

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None:
        """Do nothing. The last part is charged only after all others have granted, so it has nothing to return."""


class Plugins(Protocol):
    """The values that plugins may set for a job under a limit. A plugin that sets nothing returns None."""

    def key(self, job: Job, limit: Limit) -> str | None: ...

    def cost(self, job: Job, limit: Limit) -> int | None: ...


class ClaimResolver:
    """
    Resolves the claims of a call: the limit of the job's tier, the key and the cost.

    Args:
        plugins: The plugins, whose keys and costs override those of the limits. None if no plugin has such a hook.

    Attributes:
        registry: The limits that are known by name.
        questions: The values that the pipeline remembers by `Call.question`, while the limits are known.
        weight_of: Returns the weight that live control has set for a tenant of a limit. None without live control.
    """

    def __init__(self, registry: LimitRegistry, plugins: Plugins | None = None) -> None:
        self.registry = registry
        self._plugins = plugins
        self.weight_of: Callable[[str, str], float | None] | None = None
        self._known: dict[Any, Claim] = {}
        self._bound: dict[Any, tuple[Limit, Algorithm]] = {}
        self.questions: dict[Any, Any] = {}
        registry.let_go = self._forget_claims

    def remember(self, question: object, what: object) -> None:
        """Keep *what* in `questions`."""
        if len(self.questions) >= _MOST_REMEMBERED:
            self.questions.clear()
        self.questions[question] = what

    def _forget_claims(self) -> None:
        self._known.clear()
        self._bound.clear()
        self.questions.clear()

    def key(self, call: Call, limit: Limit) -> str:
        """
        Return the key under which *limit* counts *call*.

        Raises:
            ConfigurationError: The key cannot be resolved.
        """
        if call.key is not None and limit.key is not None:
            return key_text(call.key)
        job = None if call.job is NO_JOB else call.job
        if self._plugins is not None and job is not None and limit.key is not None:
            given = self._plugins.key(job, limit)
            if given is not None:
                return given
        return limit.key_of(job)

    def _cost(self, call: Call, limit: Limit) -> int:
        if call.cost is not None:
            return limit.given_cost(call.cost)
        if self._plugins is not None and call.job is not None:
            given = self._plugins.cost(call.job, limit)
            if given is not None:
                return given
        return limit.cost_of(call.job)

    def _tenant_share(self, limit: Limit, job: Job | None) -> TenantShare:
        share = limit.tenant_share_of(job)
        if self.weight_of is None or limit.share is None or limit.share.strict or job is None:
            return share
        weight = self.weight_of(limit.name, share.tenant)
        return share if weight is None else share._replace(weight=weight)

    def _holder(self, call: Call, limit: Limit, units: int, now_us: int) -> str:
        job = call.job
        if limit.held_by is None:
            return holder_name(job.id if job else "", os.urandom(6).hex(), now_us)
        if units == 0 or (call.peek and job is None):  # it has no workflow
            return ""
        return limit.holder_of(job)

    def resolve(self, call: Call, *, remember: bool = True) -> list[Claim]:
        """
        Return the claims of *call*, in the order of its limits.

        Args:
            remember: Whether to return the same object for equal claims, so that the store can reuse its encoded form.

        Raises:
            ConfigurationError: A key, a tier or a cost cannot be resolved, or is invalid.
        """
        if call.job is NO_JOB:
            call = call._replace(job=None)
        job, plain = call.job, self._plugins is None
        claims: list[Claim] = []
        for declared in call.limits:
            limit = declared.for_job(job) if declared.varies else declared
            text = "" if limit.key is None else self.key(call, limit)
            part = None if limit.scope == "global" else limit.part_of(job)
            units = limit.cost_of(job) if plain and call.cost is None else self._cost(call, limit)
            share = NO_TENANT_SHARE if limit.share is None else self._tenant_share(limit, job)
            if not remember or limit.by_value or isinstance(limit, Concurrency):
                now_us = time.time_ns() // 1000
                holder = self._holder(call, limit, units, now_us) if isinstance(limit, Concurrency) else ""
                claims.append(_make_claim(limit, limit.bind(units, now_us, holder), units, text, part, share))
                continue
            day = time.time_ns() // _DAY_NS if limit.in_zone else 0
            # The values of both caches reference the limit, so its id stays unique.
            cache_key = (id(limit), text, part, units, share, day)
            found = self._known.get(cache_key)
            if found is None:
                if len(self._bound) >= _MOST_REMEMBERED:
                    self._forget_claims()
                if len(self._known) >= _MOST_REMEMBERED:
                    with suppress(RuntimeError):  # another thread has changed them
                        self._known.pop(next(iter(self._known), None), None)  # the oldest claim
                found = self._known[cache_key] = _make_claim(
                    limit, self._bind(limit, units, day), units, text, part, share
                )
            claims.append(found)
        return claims

    def _bind(self, limit: Limit, units: int, day: int) -> Algorithm:
        """Return the algorithm for a request of *units* on *day*, which is the same for all keys."""
        known = self._bound.get((id(limit), units, day))
        if known is None:
            known = self._bound[id(limit), units, day] = limit, limit.bind(units, time.time_ns() // 1000)
        return known[1]


def _make_claim(
    limit: Limit, algorithm: Algorithm, units: int, text: str, part: str | None, share: TenantShare
) -> Claim:
    bucket = bucket_name(limit.name, text, limit.fingerprint, part)
    tenant, step, lead = "", 0, 0
    if limit.share is not None:
        tenant, step, lead = quote(share.tenant) if share.tenant else "", share.step(units), share.lead
    claim = StoreClaim(bucket, algorithm, units, limit.queue, tenant, step, lead)
    shown = text if part is None else f"{part}:{text}" if text else part
    plain = limit.scope != "process" and limit.prefetch_quota is None and not limit.in_zone
    return Claim(limit, shown, units, claim, plain)


def build_request(call: Call, claims: Sequence[Claim], waited: Waited = NOT_WAITED) -> Request:
    """
    Build the request of *call* for *claims*.

    Args:
        waited: The job's wait before it ran, if it waits again.
    """
    store_claims, delivery, waits = [each.claim for each in claims], call.delivery, call.delivery.waits
    if call.peek:
        owner = "" if call.job is None else delivery.owner
        return Request(store_claims, Requester(Caller.PEEK, call.id, owner))
    caller = Caller.AGAIN if delivery.again else Caller.JOB
    if waits is not None:
        buckets = [each.bucket for each in store_claims]
        requester, attempt = waits.waker.begin_request(call.id, buckets, caller, delivery.ends_in_us)
        if waits.denied and not requester.waited.denials:
            requester = requester._replace(waited=Waited(denials=1))
        return Request(store_claims, requester, attempt)
    if (job := call.waiting) is None:
        return Request(store_claims, WITHOUT_JOB)
    ends_in_us = delivery.ends_in_us(waited.for_us)
    return Request(store_claims, Requester(caller, job.id, delivery.owner, 0, ends_in_us, waited))


def decision_from(answer: Answer, claims: Sequence[Claim], waited: Waited = NOT_WAITED) -> Decision:
    """Build the decision on *claims* from the store's *answer*, for a job that has *waited*."""
    reason, binding, now_us = answer.reason, answer.claim, answer.now_us
    asked_us = answer.asked_us or (now_us,) * len(claims)
    allowed = reason is Reason.ALLOWED
    charged: tuple[Charged, ...] = ()
    if allowed and len(claims) == 1:
        charged = (claims[0].build_charged(asked_us[0]),)
    elif allowed:
        charged = tuple(map(Claim.build_charged, claims, asked_us))
        least = 2.0
        for number, (claim, use, at_us) in enumerate(zip(claims, answer.uses, asked_us, strict=True)):
            left = 1.0 if use is None else claim.limit.rule.remaining(use, at_us) / claim.limit.capacity
            if left < least:
                binding, least = number, left
    bound, use, at_us = claims[binding], answer.uses[binding] or Use(0, 0), asked_us[binding]
    return decision_of(
        allowed,
        bound.limit,
        bound.key,
        bound.cost,
        bound.limit.rule.remaining(use, at_us),
        (answer.retry_us - now_us) / 1_000_000,
        0.0 if reason is Reason.FULL else (answer.retry_us - now_us) / 1_000_000,
        max(0, use.full_us - at_us) / 1_000_000,
        "allowed" if allowed else reason.value,
        charged,
        None if answer.kept is None else answer.kept.position,
        waited.for_us / 1_000_000,
        waited.denials,
        "" if waited.claim is None or not waited.denials else claims[waited.claim].limit.name,
    )
