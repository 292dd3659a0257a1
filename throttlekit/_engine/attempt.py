"""One question to the stores on behalf of a call, and the two kinds of layers: above and below the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from throttlekit._core.decision import Decision
from throttlekit._core.verdict import Verdict
from throttlekit._engine.call import Call
from throttlekit._engine.claims import Claim
from throttlekit._engine.ticket import Ticket
from throttlekit.stores.base import Correction, Request

__all__ = ["Attempt", "Decider", "Layer", "Rest"]


class Attempt(NamedTuple):
    """
    One question for a call. After a wait in place the same call makes another attempt.

    Attributes:
        claims: The call's claims, in the order of its limits.
        ticket: What the job carries when the question is put.
        request: The question, as a store reads it. Its claims are those of `claims`, one by one.
        began: When it was put, by `time.perf_counter`; 0 if no plugin listens.
    """

    call: Call
    claims: Sequence[Claim]
    ticket: Ticket
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

    def decide(self, attempt: Attempt) -> Verdict:
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

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        claims = [self._attempt.claims[number] for number in self._numbers]
        return self._layer.decide(self._attempt._replace(claims=claims, request=request))

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        raise AssertionError("no part follows the last one, so none can deny after it")
