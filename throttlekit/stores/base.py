"""The contract between the limiter and whatever keeps its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from throttlekit._core.acquire import Caller, Place, Verdict
from throttlekit._core.algorithm import Algorithm
from throttlekit._core.claim import StoreClaim

__all__ = [
    "Batched",
    "Correction",
    "Lease",
    "Parted",
    "Request",
    "Searched",
    "Shared",
    "Store",
    "answer_of",
]  # fmt: skip


class Request(NamedTuple):
    """Everything that one decision needs to know. No two claims share a name."""

    claims: Sequence[StoreClaim]
    caller: Caller
    place: Place | None = None
    max_wait_us: int | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """What one limit took at *granted_us* turns out *by* dearer, in the charge's own measure; cheaper if negative."""

    bucket: str
    algorithm: Algorithm
    granted_us: int
    by: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot of a concurrency limit, held by the charge's holder since *granted_us*."""

    bucket: str
    algorithm: Algorithm
    granted_us: int


class Store(Protocol):
    """
    Keeps what is taken of each limit, and lines, and decides over them atomically.

    The store owns the clock: the caller's time never enters a decision. A name that is missing
    means that nothing is taken, or an empty line. Whatever is written expires by itself, after nothing
    counts any more or the last slot of the line has passed. Safe to share between threads, and across a fork.
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

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        """
        Correct what was charged, as `Charge.settled` says.

        Raises:
            StoreUnavailable: There was no usable answer. It may have been corrected, or not.
        """
        ...

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        """
        Give slots back, as `throttlekit._core.algorithms.concurrency` says. Who holds none gives none back.

        Raises:
            StoreUnavailable: There was no usable answer. What was not given back ends with its lease.
        """
        ...

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        """
        Keep slots for one lease more. Tells of each whether its holder has one.

        Raises:
            StoreUnavailable: There was no usable answer. They may have been renewed, or not.
        """
        ...

    def pause(self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None) -> None:
        """
        Let nobody pass, as `throttlekit._core.acquire.pause` says; None ends it.

        Raises:
            StoreUnavailable: There was no usable answer. It may be paused, or not.
        """
        ...

    def reset(self, names: Sequence[str]) -> None:
        """
        Forget *names*: nothing is taken, the line is empty.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...

    def close(self) -> None:
        """Let go of connections. The store may be used again afterwards."""
        ...


def answer_of(store: Store, request: Request) -> Verdict | Exception:
    """What *store* decides, or what it raises."""
    try:
        return store.acquire(request)
    except Exception as error:
        return error


@runtime_checkable
class Batched(Protocol):
    """What a store may have besides: several requests in one round trip."""

    def acquire_all(self, requests: Sequence[Request]) -> Sequence[Verdict | Exception]:
        """
        Decide each of *requests* by itself, one after the other, as `Store.acquire` does. What that would raise of
        one stands in its place.

        Raises:
            StoreUnavailable: There was no usable answer to any. They may have been charged, or not.
        """
        ...


@runtime_checkable
class Parted(Protocol):
    """What a store may have besides: parts that fail one by one, like the nodes of a cluster."""

    def part_of(self, name: str) -> str:
        """The part that keeps *name*, as `StoreUnavailable.part` names it; "" if that is not known. Asks nobody."""
        ...


@runtime_checkable
class Shared(Protocol):
    """What a store may have besides: a place that the whole fleet sees, for what is told about limits."""

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        Run *commands* of Redis in their order, but not as one, in one round trip (a cluster: one each).

        Args:
            commands: The second word of each is a key, or the fourth of EVAL. All keys share one hash slot.

        Returns:
            The replies, as redis-py reads them, with text as bytes.

        Raises:
            StoreUnavailable: There was no usable answer to one of them. The others may have been run, or not.
        """
        ...


@runtime_checkable
class Searched(Protocol):
    """What a store may have besides: names are found by what they look like. For operators: it may take seconds."""

    def forget(self, pattern: str) -> int:
        """
        Forget every name that matches *pattern*, as SCAN reads it. Looks at every name, a thousand at a time.

        Returns:
            How many there were.

        Raises:
            StoreUnavailable: There was no usable answer. Some may be forgotten.
        """
        ...
