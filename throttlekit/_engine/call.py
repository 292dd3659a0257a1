"""One call of a limiter's verb, made there and carried down to the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._engine.delivery import PLAIN_DELIVERY, Delivery
from throttlekit._engine.waker import Waiting

__all__ = ["Call"]


class Call(NamedTuple):  # made for each decision: a frozen dataclass costs three times as much
    """
    The arguments of `acquire` or `peek`.

    Attributes:
        limits: As they were given: with tiers, if they have any.
        job: The job that the call is for, if any.
        key: The key to count under, in place of the job's.
        cost: The units to charge to every limit, in place of the limits' own.
        delivery: How a denied job comes back.
        peek: Whether nothing is to be charged or stored.
    """

    limits: Sequence[Limit]
    job: Job | None = None
    key: str | int | None = None
    cost: int | None = None
    delivery: Delivery = PLAIN_DELIVERY
    peek: bool = False

    @property
    def waiting(self) -> Job | None:
        """The job, if it waits for its turn when it is denied."""
        return self.job if self.delivery.comes_back else None

    @property
    def waits(self) -> Waiting | None:
        """How the job waits on waitlists; None: it does not."""
        return None if self.peek else self.delivery.waits

    @property
    def id(self) -> str:
        """The job's id on waitlists."""
        waits = self.delivery.waits
        return (waits.id if waits is not None else "") or (self.job.id if self.job is not None else "")

    @property
    def question(self) -> tuple[object, ...] | None:
        """What stands for the call, if nothing else says what it asks: no job, no cost; as long as its limits live."""
        limits, job, key, cost, delivery, peek = self
        if job is not None or cost is not None or peek or delivery.waits or not (key is None or type(key) is str):
            return None
        return (id(limits[0]), key) if len(limits) == 1 else (*map(id, limits), key)

    def on(self, limits: Sequence[Limit]) -> Call:
        """The same call for other *limits*."""
        return self._replace(limits=limits)
