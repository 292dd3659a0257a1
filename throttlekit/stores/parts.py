"""Decide one request in several stores: each part charges in turn. If one denies, the others return their units."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from throttlekit._core.algorithm import Use
from throttlekit._core.answer import Answer, Caller, Position, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import TURN_US, early_us_of, scarcity
from throttlekit._core.late import EARLY_US
from throttlekit._core.wait_control import Charge
from throttlekit.errors import StoreUnavailable

__all__ = ["Part", "decide_in_parts"]


class _Decider(Protocol):
    """The methods of a store that a part needs."""

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer: ...

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None: ...


class Part(NamedTuple):
    """
    A store, and the numbers of the claims that it decides in one script.

    Attributes:
        failed: Whether the part did not respond to its last request.
    """

    store: _Decider
    claims: Sequence[int]
    failed: bool = False


class _Answered(NamedTuple):
    part: Part
    answer: Answer


def decide_in_parts(
    parts: Sequence[Part],
    claims: Sequence[StoreClaim],
    requester: Requester,
    now_us: int | None = None,
    *,
    attempt: str = "",
    in_order: bool = False,
) -> Answer:
    """
    Decide over several stores: all or nothing, but not atomically.

    The request is sent first to parts that failed the last time, so that the other parts do not change if one of these
    still does not respond. The part with the scarcest limit is next, because it denies most often, and no other part
    has been charged then. If a part denies or does not respond, each part before it returns its units in one script,
    and keeps the job's position and turn. If this process dies before that, the units remain charged, and the job loses
    its position in those parts.

    The job waits on the list of the part that denied it, and also gets a position in each later part. Otherwise all
    newer jobs would be ahead of it there: in a simulation, a key gets .41 of its limit.

    A job may be granted a little before its units are free. Its body then begins when they are. If several parts with
    rates count the job, some count it from the time of the decision, so the grant is at most 5 ms early.

    Each part gets the time that the job has waited in earlier parts, so that a full queue does not reject it.

    Args:
        in_order: Whether to send the requests in the order of the parts, instead of the order above.

    Raises:
        StoreUnavailable: A part gave no usable answer; or a part denied, but a slot could not be returned, and may
            still be held.
    """
    answered: list[_Answered] = []
    requester = requester._replace(early_us=_early_us(parts, claims, requester))
    ordered = list(parts)
    if not in_order:
        ordered.sort(key=lambda part: (not part.failed, *min(scarcity(claims[i]) for i in part.claims)))
    try:
        for part in ordered:
            answer = part.store.decide([claims[number] for number in part.claims], requester, now_us, attempt=attempt)
            answered.append(_Answered(part, answer))
            requester = _with_waited(requester, answer)
            if answer.reason is not Reason.ALLOWED and requester.caller is not Caller.PEEK:
                break
    except BaseException:  # also an interrupt, such as a job's time limit
        _return_all(answered, claims, requester, None, now_us)
        raise
    denials = [each for each in answered if each.answer.reason is not Reason.ALLOWED]
    if not denials:
        return _merge(answered, answered[-1], len(claims), returned=())
    if requester.caller is Caller.PEEK:
        return _merge(answered, max(denials, key=_weight), len(claims), returned=())
    (denied,), charged = denials, answered[:-1]
    failure = _return_all(charged, claims, requester, denied, now_us)
    if requester.job and denied.answer.reason is not Reason.FULL:
        for part in ordered[len(answered) :]:
            with suppress(StoreUnavailable):  # otherwise its next request gets a position there
                part.store.return_units([Charge(claims[number]) for number in part.claims], requester, now_us)
    if failure is not None:
        raise failure
    return _merge(answered, denied, len(claims), returned=charged)


def _early_us(parts: Sequence[Part], claims: Sequence[StoreClaim], requester: Requester) -> int:
    """Return how early a job may be granted: an early grant only holds a slot longer, but it could exceed a rate."""
    early_us = early_us_of(claims, requester)
    of_rates = [part for part in parts if any(_is_rate(claims[number]) for number in part.claims)]
    return min(early_us, EARLY_US) if len(of_rates) > 1 else early_us


def _is_rate(claim: StoreClaim) -> bool:
    return claim.algorithm.size > 0 and not claim.algorithm.estimates


def _with_waited(requester: Requester, answer: Answer) -> Requester:
    """
    Return *requester* with the longest waiting time that it or *answer* has. A repeated grant may be older.
    """
    if answer.waited is None:
        return requester
    known, found = requester.waited, answer.waited
    return requester._replace(waited=Waited(max(known.for_us, found.for_us), max(known.denials, found.denials)))


def _weight(each: _Answered) -> tuple[bool, int]:
    return each.answer.reason is Reason.FULL, each.answer.retry_us - each.answer.now_us


def _merge(answered: Sequence[_Answered], binding: _Answered, number: int, returned: Sequence[_Answered]) -> Answer:
    """Merge the answers of all parts into that of *binding*, with the claim numbers of the whole request."""
    uses: list[Use | None] = [None] * number
    asked_us = [0] * number
    positions: list[Position | None] = [None] * number
    for part, answer in answered:
        for i, use, at_us, position in zip(part.claims, answer.uses, *_by_claim(part, answer), strict=True):
            uses[i], asked_us[i], positions[i] = use, at_us, position
    for part, _ in returned:
        for i in part.claims:
            uses[i] = None
    part, answer = binding
    delay_us = answer.retry_us - answer.now_us
    if answer.reason is Reason.ALLOWED:
        delay_us = max(each.answer.retry_us - each.answer.now_us for each in answered)
    kept = answer.kept
    return Answer(
        answer.reason,
        0 if answer.reason is Reason.ALLOWED else part.claims[answer.claim],
        answer.now_us,
        answer.now_us + delay_us,
        tuple(uses),
        None if kept is None else kept._replace(claim=part.claims[kept.claim]),
        tuple((of.claims[i], wake) for of, each in answered for i, wake in each.wakes),
        tuple((of.claims[i], in_us) for of, each in answered for i, in_us in each.looks),
        tuple(positions) if answer.reason is Reason.ALLOWED and any(positions) else (),
        tuple(asked_us),
        _merge_waited(binding, answered),
    )


def _by_claim(part: Part, answer: Answer) -> tuple[Sequence[int], Sequence[Position | None]]:
    """Return the decision time and the job's position for each claim. A part may itself consist of parts."""
    number = len(part.claims)
    return answer.asked_us or (answer.now_us,) * number, answer.positions or (None,) * number


def _merge_waited(binding: _Answered, answered: Sequence[_Answered]) -> Waited | None:
    """Return how a job has waited, from the answers of all parts. After a grant, each part knows only its own list."""
    known = [each.waited for _, each in answered if each.waited is not None]
    if not known:
        return None
    claims = (
        part.claims[answer.waited.claim]
        for part, answer in (binding, *answered)
        if answer.waited is not None and answer.waited.claim is not None
    )
    return Waited(max(each.for_us for each in known), max(each.denials for each in known), next(claims, None))


def _return_all(
    charged: Sequence[_Answered],
    claims: Sequence[StoreClaim],
    requester: Requester,
    denied: _Answered | None,
    now_us: int | None,
) -> StoreUnavailable | None:
    """
    Return the charged units. Units that could not be returned stay charged, which is stricter.

    Args:
        denied: The part that denied, or None if a part did not respond.

    Returns:
        The first error of a part that may still hold a slot. The limiter releases the slots of a failed request.
    """
    failure: StoreUnavailable | None = None
    if denied is not None and denied.answer.reason is Reason.FULL:
        requester = requester._replace(job="")  # it is refused, so it gets no position
    if requester.caller is Caller.PEEK:
        return None
    for part, answer in charged:
        charges = [
            Charge(claims[i], at_us, use.full_us, position and position.place, _turn_us(claims, i, position, denied))
            for i, use, at_us, position in zip(part.claims, answer.uses, *_by_claim(part, answer), strict=True)
            if use is not None and claims[i].algorithm.size
        ]
        if not charges:
            continue
        try:
            part.store.return_units(charges, requester, now_us)
        except StoreUnavailable as error:
            if any(each.claim.algorithm.holder for each in charges):
                failure = failure or error
    return failure


def _turn_us(
    claims: Sequence[StoreClaim], number: int, position: Position | None, denied: _Answered | None
) -> int | None:
    """Return how long a turn counts. A limit keeps units for it only if it is scarcer than the limit that denied."""
    if position is None or not position.turn:
        return None
    if denied is None or denied.answer.reason is Reason.PAUSED:
        return 0
    bound = claims[denied.part.claims[denied.answer.claim]]
    return TURN_US if scarcity(claims[number]) < scarcity(bound) else 0
