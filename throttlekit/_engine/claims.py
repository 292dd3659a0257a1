"""What a call asks of its limits, as a store is asked it; and the store's answer as a decision."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from throttlekit._core.acquire import Caller, Reason, Verdict
from throttlekit._core.algorithm import Use
from throttlekit._core.algorithms.concurrency import Concurrency, ConcurrencyAlgorithm
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Charged, Decision
from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import key_text
from throttlekit._core.storage_keys import bucket_name, holder_name, line_name
from throttlekit._engine.delivery import Delivery
from throttlekit._engine.ticket import Ticket, lane_of
from throttlekit.stores.base import Request

__all__ = ["Claim", "build_peek", "build_request", "decision_from", "peek_decision", "resolve_claims", "ticket_after"]

_DAY_US = 86_400_000_000
_MOST_KNOWN = 1024


@dataclass(frozen=True, slots=True)
class Claim:
    """One limit of a call, of the job's tier, and what is asked of it."""

    limit: Limit
    key: str
    cost: int
    claim: StoreClaim

    @property
    def in_process(self) -> bool:
        return self.limit.scope == "process"

    def charged(self, at_us: int) -> Charged:
        algorithm = self.claim.algorithm
        if isinstance(algorithm, ConcurrencyAlgorithm):
            return Charged(
                self.limit, self.claim.bucket, self.cost, at_us, holder=algorithm.holder if self.cost else ""
            )
        return Charged(self.limit, self.claim.bucket, self.cost, at_us, callable(self.limit.cost))


def resolve_claims(
    limits: Sequence[Limit],
    job: Job | None,
    key: str | int | None,
    cost: int | None,
    lateness: float,
    known: dict[Any, Claim] | None = None,
) -> list[Claim]:
    """
    What a call asks of each of *limits*, for *job*. Seconds.

    Args:
        known: What is remembered from call to call: the same object is given for the same question.

    Raises:
        ConfigurationError: A key, a tier or a cost cannot be worked out, or can never work.
    """
    now_us = time.time_ns() // 1000
    asked: list[Claim] = []
    for declared in limits:
        limit = declared if declared.tiers is None else declared.for_job(job)
        text = limit.key_of(job) if key is None or limit.key is None else key_text(key)
        part = None if limit.scope == "global" else limit.part_of(job)
        units = limit.cost_of(job) if cost is None else limit.given_cost(cost)
        if known is None or limit.by_value or isinstance(limit, Concurrency):
            asked.append(_asked(limit, text, part, units, lateness, now_us, job))
            continue
        question = (id(limit), text, part, units, lateness, now_us // _DAY_US)  # a limit that is known lives on
        found = known.get(question)
        if found is None:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            found = known[question] = _asked(limit, text, part, units, lateness, now_us, job)
        asked.append(found)
    return asked


def _asked(
    limit: Limit, text: str, part: str | None, units: int, lateness: float, now_us: int, job: Job | None
) -> Claim:
    holder = ""
    if isinstance(limit, Concurrency):
        holder = holder_name(job.id if job else "", os.urandom(6).hex(), now_us)
    algorithm = limit.bind(units, now_us, holder)
    bucket = bucket_name(limit.name, text, limit.fingerprint, part)
    spacing_us = algorithm.spacing_us(round(lateness * 1_000_000))
    claim = StoreClaim(bucket, line_name(bucket), algorithm, spacing_us, limit.max_queue_us(algorithm))
    told = text if part is None else f"{part}:{text}" if text else part
    return Claim(limit, told, units, claim)


def build_request(asked: Sequence[Claim], job: Job | None, ticket: Ticket, delivery: Delivery) -> Request:
    """The request that `acquire` makes of *asked*, for a job that has *waited* so far."""
    claims = [each.claim for each in asked]
    if job is None:
        return Request(claims, Caller.GUEST)
    place = ticket.place([each.limit for each in asked])
    return Request(claims, Caller.JOB, place, delivery.max_wait_us(ticket))


def build_peek(asked: Sequence[Claim], job: Job | None) -> Request:
    """The request that `peek` makes of *asked*."""
    place = None if job is None else Ticket.read(job.ticket).place([each.limit for each in asked])
    return Request([each.claim for each in asked], Caller.PEEK, place)


def peek_decision(verdict: Verdict, asked: Sequence[Claim]) -> Decision:
    """What `peek` answers."""
    return replace(decision_from(verdict, asked), charged=())


def ticket_after(verdict: Verdict, asked: Sequence[Claim], ticket: Ticket) -> Ticket:
    """What a job that has *waited* carries after the denial *verdict*."""
    bound = asked[verdict.claim]
    counts = verdict.reason is not Reason.EARLY or ticket.deferrals == 0
    lane = lane_of(bound.claim.bucket) if isinstance(bound.limit, Concurrency) else ""
    return ticket.denied(bound.limit, verdict.due_us, verdict.now_us, lane=lane, counts=counts)


def decision_from(verdict: Verdict, asked: Sequence[Claim]) -> Decision:
    """*verdict* in the words of the limits that were asked."""
    binding, now_us = verdict.claim, verdict.now_us
    asked_us = verdict.asked_us or (now_us,) * len(asked)
    allowed = verdict.allowed
    if allowed and len(asked) > 1:
        binding = min(range(len(asked)), key=lambda i: _left(asked[i].limit, verdict.uses[i], asked_us[i]))
    bound, use, at_us = asked[binding], verdict.uses[binding] or Use(0, 0), asked_us[binding]
    return Decision(
        allowed=allowed,
        limit=bound.limit,
        key=bound.key,
        cost=bound.cost,
        remaining=bound.limit.remaining(use, at_us),
        retry_after=(verdict.retry_us - now_us) / 1_000_000,
        delay=0.0 if verdict.reason is Reason.FULL else (verdict.due_us - now_us) / 1_000_000,
        reset_after=max(0, use.full_us - at_us) / 1_000_000,
        reason=verdict.reason.value,
        charged=tuple([each.charged(at_us) for each, at_us in zip(asked, asked_us, strict=True)]) if allowed else (),
    )


def _left(limit: Limit, use: Use | None, now_us: int) -> float:
    """The share of the limit's capacity that is left."""
    return 1.0 if use is None else limit.remaining(use, now_us) / limit.capacity
