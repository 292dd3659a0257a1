"""The contract between the limiter and whatever keeps its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from throttlekit._core.acquire import Ask, Caller, Place, Verdict

__all__ = ["Claim", "Request", "Store"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One limit's part of a request: the names its state is stored under, and what is asked."""

    bucket: str
    line: str
    ask: Ask


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that one decision needs to know. No two claims share a name."""

    claims: Sequence[Claim]
    caller: Caller
    place: Place | None = None
    patience_us: int | None = None


class Store(Protocol):
    """
    Keeps buckets and lines, and decides over them atomically.

    The store owns the clock: the caller's time never enters a decision. A name that is missing
    means a full bucket, or an empty line. Whatever is written expires by itself, after the bucket
    is full or the last slot of the line has passed. Safe to share between threads, and across a fork.
    """

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        """
        Decide *request* as `throttlekit._core.acquire.acquire` does, and store what it changed.

        Args:
            now_us: For tests: decide as if this were the time.

        Raises:
            StoreUnavailable: There was no usable answer. It may have been charged, or not.
        """
        ...

    def reset(self, names: Sequence[str]) -> None:
        """
        Forget *names*: the bucket is full again, the line empty.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...

    def close(self) -> None:
        """Let go of connections. The store may be used again afterwards."""
        ...
