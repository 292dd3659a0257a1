"""One question to the stores on behalf of a call, and the two kinds of layers: above and below the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from throttlekit._core.answer import Answer, Asker
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decision import Decision
from throttlekit._core.wait_control import Charge
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Claim
from throttlekit.stores.base import Request

__all__ = ["Attempt", "Decider", "Layer", "Rest"]


class Attempt(NamedTuple):
    """
    One question for a call. After a wait in place the same call makes another attempt.

    Attributes:
        claims: The call's claims, in the order of its limits.
        request: The question, as a store reads it. Its claims are those of `claims`, one by one.
        began: When it was put, by `time.perf_counter`; 0 if no plugin listens.
    """

    call: Call
    claims: Sequence[Claim]
    request: Request
    began: float = 0.0


class Decider(Protocol):
    """A layer from the verb down to the pipeline: it decides a call, or passes it down."""

    def acquire(self, call: Call) -> Decision:
        """
        Decide *call*, or peek.

        Raises:
            ConfigurationError, CostExceedsLimit: As for `Limiter.acquire`.
            StoreUnavailable: The store did not answer a peek.
        """
        ...


class Layer(Protocol):
    """A layer from the pipeline down to the store: it answers an attempt, or passes it down."""

    def decide(self, attempt: Attempt) -> Answer:
        """
        Decide *attempt*.

        Raises:
            StoreUnavailable: The store gave no usable answer.
        """
        ...


class Rest:
    """Those claims of an attempt that the layer below decides: the last part of it, as a store."""

    def __init__(self, attempt: Attempt, numbers: Sequence[int], layer: Layer) -> None:
        self._attempt, self._numbers, self._layer = attempt, numbers, layer

    def ask(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        mine = [self._attempt.claims[number] for number in self._numbers]
        request = Request(claims, asker, attempt)
        return self._layer.decide(self._attempt._replace(claims=mine, request=request))

    def return_units(self, charges: Sequence[Charge], asker: Asker, now_us: int | None = None) -> None:
        """It is the last part: it is charged only if the others are. A job that they deny asks it for no position."""
