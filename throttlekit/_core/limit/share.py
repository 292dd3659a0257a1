"""The shares of tenants whose jobs use one limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from throttlekit._core.claim import CLASS, CLASSES, UNIT
from throttlekit._core.job import Job
from throttlekit._core.limit.template import Key, check_source, from_job, key_text, plain, safe_repr
from throttlekit._core.limit.value import Value
from throttlekit._core.number import is_number
from throttlekit._core.spelling import checks_spelling
from throttlekit.errors import ConfigurationError

__all__ = ["NO_TENANT_SHARE", "GivenShare", "Share", "TenantShare", "Weight", "check_weight", "is_weight"]

Weight: TypeAlias = "float | Mapping[str, float] | Callable[[Job], float]"

_LEAST, _MOST = 0.001, 1_000_000.0


class TenantShare(NamedTuple):
    """
    The tenant of one job in a limit with `share=`.

    Attributes:
        tenant: The tenant that is charged for the job.
        weight: The weight of that tenant.
        lead: The priority class of the job: see `StoreClaim.lead`.
    """

    tenant: str = ""
    weight: float = 1.0
    lead: int = 0

    def step(self, units: int) -> int:
        """Return the amount that *units* add to the start tag of the tenant's next job, rounded up: see waitlist.py."""
        return max(1, -int(-units * UNIT // self.weight)) if units else 0


NO_TENANT_SHARE = TenantShare()


class Share(Value):
    """
    The division of a limit among tenants while their jobs wait for it. The other tenants get the units that one tenant
    does not use, so a tenant that waits alone gets the whole limit.

    Guarantee: while two tenants both wait, the units n and m that they have got, divided by their weights, differ by
    at most one job of each: `|n / weight - m / other weight| <= cost / weight + cost / other weight`.
    A share changes only the order of jobs, so the limit's own bound holds with any shares.

    Example: the tenants "free" and "pro" have the weights 1 and 5, and both have jobs that wait for a limit of
    60/minute. "free" gets 10 units a minute, and "pro" gets 50.

    Args:
        of: The tenant of a job: a template over the job's arguments, "{queue}" for the job's queue, or a callable that
            takes the job.
        weight: The part that a tenant gets in relation to the others: a number from 0.001 to a million for all tenants,
            a callable that takes the job, or a mapping whose keys are values of *by*. A key that is not in the mapping
            gets 1. Large weights are rounded down: for jobs of cost 1, a weight of about 10 000 by up to 1 %, and
            600 000 to 500 000.
        by: A template or a callable, like *of*, that returns a key of the mapping. Default: the tenant itself.
        strict: Whether the weights are priorities: no job of a lower priority is admitted while a job of a higher one
            waits. *weight* must be a mapping of at most 16 different weights, including the 1 of keys that are not in
            it. Jobs of lower priorities may wait without end.

    A changed weight applies to jobs that begin to wait after the change.

    Raises:
        ConfigurationError: A value is invalid. The constructor raises it.
    """

    __slots__ = ("by", "of", "strict", "weight", "weights")

    of: Key
    weight: Weight
    by: Key
    strict: bool
    weights: Mapping[str, float] | None

    @checks_spelling
    def __init__(self, of: Key, *, weight: Weight = 1, by: Key = None, strict: bool = False) -> None:
        if of is None:
            raise ConfigurationError('a share needs to know whose job it is: a template like "{tenant}" or a callable')
        check_source("share", of)
        check_source("share's by=", by)
        given: Any = weight
        weights: dict[str, float] | None = None
        if isinstance(given, Mapping):
            pairs: Any = given.items()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            weights = {str(plain(name)): check_weight(each) for name, each in pairs}
            if not weights:
                raise ConfigurationError('the weights of a share must not be empty: {"free": 1, "pro": 5}')
            given = weights
        elif by is not None:
            raise ConfigurationError('by= needs a mapping of weights, like weight={"free": 1, "pro": 5}')
        elif not callable(given):
            given = check_weight(given)
        if strict and (weights is None or len(self._classes(weights)) > CLASSES):
            raise ConfigurationError(
                f'a strict share needs a mapping of weights, like {{"high": 2, "low": 1}}, of which at most {CLASSES} '
                "differ, with the 1 of what the mapping does not have"
            )
        self._set(of=of, weight=given, by=by, strict=strict, weights=weights)

    def tenant_share_of(self, job: Job | None) -> TenantShare:
        """
        Return the tenant, weight and priority class of *job*. Without a job, the tenant has no name and the weight 1.

        Raises:
            ConfigurationError: The template names an argument that the job does not have, or a callable failed or
                returned a value that is not a weight.
        """
        if job is None:
            return self._of_class(1.0) if self.strict else NO_TENANT_SHARE
        tenant = self._text(self.of, job)
        if self.weights is not None:
            weight = self.weights.get(tenant if self.by is None else self._text(self.by, job), 1.0)
            return self._of_class(weight) if self.strict else TenantShare(tenant, weight)
        given: Any = self.weight
        weight = check_weight(from_job("weight", given, job)) if callable(given) else given
        return TenantShare(tenant, weight)

    def _of_class(self, weight: float) -> TenantShare:
        number = self._classes(self.weights or {}).index(weight)
        return TenantShare(str(number), _MOST, number * CLASS)  # so no cost moves a job into another class

    @staticmethod
    def _classes(weights: Mapping[str, float]) -> list[float]:
        """Return the priorities, the lowest first. A key that is not in the mapping has the weight 1."""
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
        return self._show(self.of, weight=None if weight == 1 else weight, by=self.by, strict=self.strict or None)


class GivenShare(Share):
    """The share of a limit that was read from a message: it has the tenant, weight and class of one job."""

    __slots__ = ("share",)

    share: TenantShare

    def __init__(self, share: TenantShare) -> None:
        self._set(of=None, weight=1.0, by=None, strict=False, weights=None, share=share)

    def tenant_share_of(self, job: Job | None) -> TenantShare:
        return self.share

    def _identity(self) -> tuple[object, ...]:
        return (self.share,)

    @classmethod
    def read(cls, data: Any) -> GivenShare:
        """
        Read the value that `dump` wrote.

        Raises:
            ValueError: `dump` did not write *data*.
        """
        tenant, weight, lead = data
        if not isinstance(tenant, str) or type(lead) is not int or lead not in range(0, CLASSES * CLASS, CLASS):
            raise ValueError("share")
        return cls(TenantShare(tenant, check_weight(weight), lead))


def is_weight(weight: object) -> TypeGuard[float]:
    """Whether *weight* is a number that a tenant may have."""
    return is_number(weight, _LEAST, _MOST)


def check_weight(weight: object) -> float:
    """
    Return *weight* as a number.

    Raises:
        ConfigurationError: *weight* is not a number that a tenant may have.
    """
    if not is_weight(weight):
        raise ConfigurationError(f"a weight must be a number from {_LEAST} to {_MOST:.0f}, not {safe_repr(weight)}")
    return float(weight)
