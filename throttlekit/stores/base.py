"""The contract between the limiter and the store that keeps its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from throttlekit._core.algorithm import Algorithm
from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Asker
from throttlekit._core.latency import Drop
from throttlekit._core.line import GRACE_US, Place
from throttlekit._core.slowdown import Fall, Heard
from throttlekit._core.verdict import Caller, Verdict

__all__ = [
    "Correction",
    "Lease",
    "Request",
    "Slowing",
    "Store",
    "SupportsBatch",
    "SupportsCommands",
    "SupportsForget",
    "SupportsParts",
    "Wait",
    "acquire_or_error",
]


class Request(NamedTuple):
    """
    Everything that one decision depends on: the arguments of `throttlekit._core.acquire.acquire`. No two claims share a
    name.

    Attributes:
        asker: Who asks, if the job waits on waitlists: then these are the arguments of `throttlekit._core.decide.ask`.
        attempt: Which attempt of the job it is: the store gives a repeated question the answer that it gave before.
    """

    claims: Sequence[StoreClaim]
    caller: Caller
    places: Sequence[Place | None] = ()
    max_wait_us: int | None = None
    grace_us: int = GRACE_US
    asker: Asker | None = None
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class Correction:
    """
    A change of what one limit was charged at *granted_us*: *by* more, in the algorithm's own measure; less if negative.
    """

    bucket: str
    algorithm: Algorithm
    granted_us: int
    by: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot of a concurrency limit, held since *granted_us* by the holder that the algorithm names."""

    bucket: str
    algorithm: Algorithm
    granted_us: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A job's place in the line of one claim."""

    claim: StoreClaim
    place: Place

    @property
    def bucket(self) -> str:
        return self.claim.bucket


@dataclass(frozen=True, slots=True)
class Slowing:
    """Why the limit of *claim* is to be slower for a while, or to have fewer slots in use."""

    claim: StoreClaim
    why: Fall | Heard | Drop

    @property
    def bucket(self) -> str:
        return self.claim.bucket


class Store(Protocol):
    """
    Keeps the state of each limit and its waiting line, and decides over them atomically.

    The store owns the clock: the caller's time never enters a decision. A missing name means an unused limit
    or an empty line. Every value expires by itself, once nothing in it counts any more and the last place of
    the line was due. Safe to share between threads, and across a fork.
    """

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        """
        Decide *request* as `throttlekit._core.acquire.acquire` does, and store the new state.

        Args:
            now_us: For tests: the time to decide at.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the request was charged.
        """
        ...

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        """
        Correct what was charged, as `Algorithm.settled` does.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the charge was corrected.
        """
        ...

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        """
        Release slots, as `throttlekit._core.algorithms.concurrency` does. A holder without a slot changes nothing.

        Raises:
            StoreUnavailable: There was no usable answer. A slot that was not released is free when its lease ends.
        """
        ...

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        """
        Extend each slot by one lease. Returns, for each lease in order, whether its holder now has a slot.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the leases were renewed.
        """
        ...

    def leave(self, waits: Sequence[Wait], now_us: int | None = None) -> None:
        """
        Take jobs out of the lines in which they stand, as `throttlekit._core.acquire.leave` does. A place that its line
        does not have changes nothing.

        Raises:
            StoreUnavailable: There was no usable answer. The job is set aside in its turn.
        """
        ...

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        """
        Deny every request for *for_us*, as `throttlekit._core.acquire.pause` does. None ends the pause.

        Args:
            emptied: The service downstream answered 429: the limits count as used up to the end of *for_us*.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the limit is paused.
        """
        ...

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        """
        Slow limits down for a while, as `throttlekit._core.acquire.slow` does.

        Raises:
            StoreUnavailable: There was no usable answer. It is unknown whether the limits are slower.
        """
        ...

    def reset(self, names: Sequence[str]) -> None:
        """
        Delete *names*: the limits are unused, the lines are empty.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...

    def clear_lines(self, names: Sequence[str]) -> None:
        """
        Empty the waiting lines called *names*. What is counted stays, and so do pauses.

        Raises:
            StoreUnavailable: There was no usable answer.
        """
        ...

    def close(self) -> None:
        """Close all connections. The store may be used again afterwards."""
        ...


def acquire_or_error(store: Store, request: Request) -> Verdict | Exception:
    """Decide *request*. Returns an error, and does not raise it."""
    try:
        return store.acquire(request)
    except Exception as error:
        return error


@runtime_checkable
class SupportsBatch(Protocol):
    """A store that decides several requests in one round trip. Optional."""

    def acquire_all(self, requests: Sequence[Request]) -> Sequence[Verdict | Exception]:
        """
        Decide each of *requests* by itself, one after the other, as `Store.acquire` does. An error of one request
        stands in the place of its verdict.

        Raises:
            StoreUnavailable: There was no usable answer to any. It is unknown which were charged.
        """
        ...


@runtime_checkable
class SupportsParts(Protocol):
    """A store of several parts that fail one by one, like the nodes of a cluster. Optional."""

    def part_of(self, name: str) -> str:
        """The part that keeps *name*, as `StoreUnavailable.part` names it; "" if not known. Makes no call."""
        ...


@runtime_checkable
class SupportsCommands(Protocol):
    """A store that the whole fleet shares, for live control and for activity reports. Optional."""

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        Run Redis *commands* in order, not atomically, in one round trip (on a cluster: one round trip each).

        Args:
            commands: The second word of each is a key; of EVAL, the fourth. All keys share one hash slot.

        Returns:
            The replies, as redis-py reads them, with text as bytes.

        Raises:
            StoreUnavailable: There was no usable answer to one of them. It is unknown which of the others ran.
        """
        ...


@runtime_checkable
class SupportsForget(Protocol):
    """A store that deletes names by a pattern. For operators: it may take seconds. Optional."""

    def delete_matching(self, pattern: str, *, lines_only: bool = False) -> int:
        """
        Delete every name that matches *pattern*, as SCAN reads it. Scans all names, a thousand at a time.

        Args:
            lines_only: Of these, empty the waiting lines, as `Store.clear_lines` does, and leave all else.

        Returns:
            The number of names deleted, or of lines emptied.

        Raises:
            StoreUnavailable: There was no usable answer. Some names may be deleted, or lines emptied.
        """
        ...
