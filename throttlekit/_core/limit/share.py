"""How the jobs of several tenants divide one limit between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from throttlekit._core.claim import CLASS, CLASSES, UNIT
from throttlekit._core.job import Job
from throttlekit._core.limit.template import Key, check_source, from_job, key_text, plain, safe_repr
from throttlekit._core.limit.value import Value
from throttlekit.errors import ConfigurationError

__all__ = ["NO_STAKE", "GivenShare", "Share", "Stake", "Weight", "checked_weight", "is_weight"]

Weight: TypeAlias = "float | Mapping[str, float] | Callable[[Job], float]"

_LEAST, _MOST = 0.001, 1_000_000.0


class Stake(NamedTuple):
    """
    One job's part in a shared limit.

    Attributes:
        tenant: Whose jobs it is counted with.
        weight: Of the tenant, against the others.
        lead: Its class of priority: see `StoreClaim.lead`.
    """

    tenant: str = ""
    weight: float = 1.0
    lead: int = 0

    def step(self, units: int) -> int:
        """How far *units* move the tenant's next job back in the order, rounded up."""
        return max(1, -int(-units * UNIT // self.weight)) if units else 0


NO_STAKE = Stake()


class Share(Value):
    """
    How a limit is divided between tenants whose jobs wait for it. What one tenant leaves is the others'.

    Guarantee: while two tenants both wait, what they have got since differs by at most one job of each:
    `|n / weight - m / other weight| <= cost / weight + cost / other weight`. A tenant alone has all of the limit.
    It is a matter of order only: the limit's own bound holds whatever the shares are.

    Args:
        of: Whose job it is: a template over the job's arguments, "{queue}" for the job's queue, or a callable that
            takes the job.
        weight: How much a tenant gets, against the others: a number from 0.001 to a million for all, a callable that
            takes the job, or a mapping from what *by* names. What the mapping does not have gets 1. Great weights are
            rounded down: for jobs of cost 1, those about 10 000 by up to 1 %, and 600 000 to 500 000.
        by: A template or a callable, as *of*: what the mapping's keys name. Default: the tenant itself.
        strict: The weights are priorities: no job of a lower one passes while one of a higher one waits. Needs a
            mapping, of at most 16 different weights with the 1 of what it does not have. The lower ones may wait for
            ever.

    A new weight counts for the jobs that come to wait from then on.

    Raises:
        ConfigurationError: A value that can never work, as soon as the share is made.
    """

    __slots__ = ("by", "of", "strict", "weight", "weights")

    of: Key
    weight: Weight
    by: Key
    strict: bool
    weights: Mapping[str, float] | None

    def __init__(self, of: Key, *, weight: Weight = 1, by: Key = None, strict: bool = False) -> None:
        if of is None:
            raise ConfigurationError('a share needs to know whose job it is: a template like "{tenant}" or a callable')
        check_source("share", of)
        check_source("share's by=", by)
        given: Any = weight
        weights: dict[str, float] | None = None
        if isinstance(given, Mapping):
            pairs: Any = given.items()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            weights = {str(plain(name)): checked_weight(each) for name, each in pairs}
            if not weights:
                raise ConfigurationError('the weights of a share must not be empty: {"free": 1, "pro": 5}')
            given = weights
        elif by is not None:
            raise ConfigurationError('by= needs a mapping of weights, like weight={"free": 1, "pro": 5}')
        elif not callable(given):
            given = checked_weight(given)
        if strict and (weights is None or len(self._classes(weights)) > CLASSES):
            raise ConfigurationError(
                f'a strict share needs a mapping of weights, like {{"high": 2, "low": 1}}, of which at most {CLASSES} '
                "differ, with the 1 of what the mapping does not have"
            )
        self._set(of=of, weight=given, by=by, strict=strict, weights=weights)

    def stake_of(self, job: Job | None) -> Stake:
        """
        The part of *job*; without a job, that of a tenant without a name.

        Raises:
            ConfigurationError: The template names an argument that the job does not have, or a callable failed, or
                returned what is not a weight.
        """
        if job is None:
            return NO_STAKE
        tenant = self._text(self.of, job)
        if self.weights is not None:
            weight = self.weights.get(tenant if self.by is None else self._text(self.by, job), 1.0)
            if self.strict:
                number = self._classes(self.weights).index(weight)
                return Stake(str(number), _MOST, number * CLASS)  # no cost moves a job into another class
            return Stake(tenant, weight)
        given: Any = self.weight
        weight = checked_weight(from_job("weight", given, job)) if callable(given) else given
        return Stake(tenant, weight)

    @staticmethod
    def _classes(weights: Mapping[str, float]) -> list[float]:
        """The priorities, the lowest first. What the mapping does not have is of weight 1."""
        return sorted({1.0, *weights.values()})

    def _text(self, source: Key, job: Job) -> str:
        if source == "{queue}" and "queue" not in job.arguments:
            return key_text(job.queue)
        return key_text(from_job("share", source, job))

    def _identity(self) -> tuple[object, ...]:
        weight: object = self.weight if self.weights is None else tuple(sorted(self.weights.items()))
        return self.of, weight, self.by, self.strict

    def __repr__(self) -> str:
        weight: object = self.weight if self.weights is None else dict(self.weights)
        options: list[tuple[str, object, object]] = [
            ("weight", weight, 1), ("by", self.by, None), ("strict", self.strict, False)
        ]  # fmt: skip
        return f"Share({', '.join([repr(self.of), *(f'{n}={v!r}' for n, v, default in options if v != default)])})"


class GivenShare(Share):
    """The share of a limit that came in a message: the job's own part, already worked out."""

    __slots__ = ("stake",)

    stake: Stake

    def __init__(self, stake: Stake) -> None:
        self._set(of=None, weight=1.0, by=None, strict=False, weights=None, stake=stake)

    def stake_of(self, job: Job | None) -> Stake:
        return self.stake

    def _identity(self) -> tuple[object, ...]:
        return (self.stake,)

    @classmethod
    def read(cls, data: Any) -> GivenShare | None:
        """
        Read what `dump` wrote; None: the limit is not shared.

        Raises:
            ValueError: It is something else.
        """
        if data is None:
            return None
        tenant, weight, lead = data
        if not isinstance(tenant, str) or type(lead) is not int or lead not in range(0, CLASSES * CLASS, CLASS):
            raise ValueError("share")
        return cls(Stake(tenant, checked_weight(weight), lead))


def is_weight(weight: object) -> TypeGuard[float]:
    """Whether *weight* is a number that a tenant may have."""
    return not isinstance(weight, bool) and isinstance(weight, (int, float)) and _LEAST <= weight <= _MOST


def checked_weight(weight: object) -> float:
    """
    *weight* as a number.

    Raises:
        ConfigurationError: It is not a number that a tenant may have.
    """
    if not is_weight(weight):
        raise ConfigurationError(f"a weight must be a number from {_LEAST} to {_MOST:.0f}, not {safe_repr(weight)}")
    return float(weight)
