"""One request over several stores: charged part by part, and given back when a later part denies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from throttlekit._core.algorithm import Use
from throttlekit._core.verdict import Caller, Reason, Verdict
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import Correction, Request

__all__ = ["Decider", "Part", "acquire_in_parts"]


class Decider(Protocol):
    """The methods of a store that a part needs."""

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict: ...

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None: ...


class Part(NamedTuple):
    """A store, and the numbers of the claims of a request that it decides at once."""

    store: Decider
    claims: Sequence[int]


def acquire_in_parts(parts: Sequence[Part], request: Request, now_us: int | None = None) -> Verdict:
    """
    Decide *request* part by part, in the order of *parts*: all or nothing, but not at one instant.

    Each part is charged before the next is tried. If a part denies, or gives no answer, the charges of the earlier
    parts are given back. So no limit's bound is ever broken; but for a moment units are charged that go unused, and
    if this process dies in between, or a store does not answer, they stay charged. On a denial `retry_us` is that of
    the part that denied, and the uses of all other claims are None.

    Raises:
        StoreUnavailable: A part gave no usable answer; or a part denied, and a slot that was to be given back for it
            may still be held.
    """
    uses: list[Use | None] = [None] * len(request.claims)
    places = list(request.places) or [None] * len(request.claims)
    asked_us = [0] * len(request.claims)
    granted: list[tuple[Part, Verdict]] = []
    answer: Verdict | None = None
    for part in parts:
        try:
            verdict = part.store.acquire(_request_of(part, request), now_us)
        except BaseException:  # also an interrupt, such as a job's time limit
            _give_back(granted, request, now_us)
            raise
        at_us = verdict.asked_us or (verdict.now_us,) * len(verdict.uses)
        for number, use, instant_us in zip(part.claims, verdict.uses, at_us, strict=True):
            uses[number], asked_us[number] = use, instant_us
        for number, place in zip(part.claims, verdict.places, strict=False):
            places[number] = place
        verdict = verdict._replace(claim=part.claims[verdict.claim], places=tuple(places) if verdict.places else ())
        if request.caller is not Caller.PEEK:
            answer = verdict
            if verdict.allowed:
                granted.append((part, verdict))
        elif answer is None or verdict.reason is Reason.FULL or _delay_us(verdict) > _delay_us(answer):
            answer = verdict
        if answer.reason is Reason.FULL or not (answer.allowed or request.caller is Caller.PEEK):
            break
    if answer is None:
        raise ValueError("a request needs at least one part")
    if answer.allowed:
        return answer._replace(claim=0, uses=tuple(uses), asked_us=tuple(asked_us))
    kept = _give_back(granted, request, now_us)
    if kept is not None:
        raise kept
    for part, _ in granted:
        for number in part.claims:
            uses[number] = None
    return answer._replace(uses=tuple(uses), asked_us=tuple(asked_us))


def _delay_us(verdict: Verdict) -> int:
    return verdict.due_us - verdict.now_us


def _request_of(part: Part, request: Request) -> Request:
    places = [request.places[number] for number in part.claims] if request.places else ()
    return request._replace(claims=[request.claims[number] for number in part.claims], places=places)


def _give_back(
    granted: Sequence[tuple[Part, Verdict]], request: Request, now_us: int | None
) -> StoreUnavailable | None:
    """
    Give back what was charged. Units that could not be given back stay charged: stricter, never looser.

    Returns:
        The first error of a part that may have kept a slot. The limiter gives back slots of a request that failed.
    """
    kept: StoreUnavailable | None = None
    for part, verdict in granted:
        claims = [request.claims[number] for number in part.claims]
        corrections = [
            Correction(claim.bucket, claim.algorithm, verdict.now_us, -claim.algorithm.size)
            for claim in claims
            if claim.algorithm.size
        ]
        if corrections:
            try:
                part.store.settle(corrections, now_us)
            except StoreUnavailable as error:
                if any(each.algorithm.holder for each in corrections):
                    kept = kept or error
    return kept
