"""A store with everything that it can do besides: requests in one round trip, commands, parts that fail alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Asker, Look
from throttlekit._core.late import PLAIN_OWNER, lateness_us
from throttlekit._core.verdict import Verdict
from throttlekit._core.wait_control import Charge, Where
from throttlekit._core.waitlist import Wake
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.base import (
    Correction,
    Lease,
    Request,
    Slowing,
    Store,
    SupportsBatch,
    SupportsCommands,
    SupportsForget,
    SupportsParts,
    Wait,
    acquire_or_error,
)
from throttlekit.stores.memory import MemoryStore
from throttlekit.stores.waitlists import SupportsWaitlists, has_waitlists

__all__ = ["StoreAccess"]

_T = TypeVar("_T")
_N = TypeVar("_N", StoreClaim, Correction, Lease, Slowing, Wait)


class StoreAccess:
    """
    A `Store` around *store*. Every question goes through `_ask`, which `CircuitBreaker` guards.

    What a store cannot do is found out once, when this is made: it takes 10 to 20 µs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parted = store if isinstance(store, SupportsParts) else None
        self._batched = store if isinstance(store, SupportsBatch) else None
        self._lists = cast(SupportsWaitlists, store) if has_waitlists(store) else None

    @property
    def in_memory(self) -> bool:
        """Whether it is of this process, and of no other."""
        return isinstance(self._store, MemoryStore)

    @property
    def address(self) -> str:
        """The server, without a user or a password, as `StoreUnavailable.server` has it; "": not known."""
        return str(getattr(self._store, "address", ""))

    def as_asked(self, request: Request) -> Request:
        """
        *request* as the store is asked. One without waitlists may pass it on to a store that has them, but nobody
        would wake a job there: each comes back by its delay.
        """
        asker = request.asker
        if self._lists is not None or asker is None or not asker.job or lateness_us(asker.owner):
            return request
        return request._replace(asker=asker._replace(owner=PLAIN_OWNER, park=""))

    def as_answered(self, verdict: Verdict) -> Verdict:
        """What a store without waitlists answered: nobody is told of the wakes of a job that waits there."""
        if self._lists is not None or verdict.answer is None or verdict.answer.kept is None:
            return verdict
        return verdict._replace(answer=verdict.answer._replace(kept=None))

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        return self._store.acquire(request, now_us)

    def acquire_all(self, requests: Sequence[Request]) -> list[Verdict | Exception]:
        """`acquire` each of *requests*, in one round trip if the store can. An error takes its answer's place."""
        if self._batched is None:
            return [acquire_or_error(self, request) for request in requests]
        try:
            return list(self._batched.acquire_all(requests))
        except StoreUnavailable as error:
            return [error] * len(requests)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self._part_by_part(corrections, lambda those: self._store.settle(those, now_us))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._part_by_part(leases, lambda those: self._store.release(those, now_us))

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        return self._ask([each.bucket for each in leases], lambda: self._store.renew(leases, now_us))

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        self._part_by_part(claims, lambda those: self._store.pause(those, for_us, now_us, emptied=emptied))

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        self._part_by_part(slowings, lambda those: self._store.slow(those, now_us))

    def leave(self, waits: Sequence[Wait], now_us: int | None = None) -> None:
        self._part_by_part(waits, lambda those: self._store.leave(those, now_us))

    def look(self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = ()) -> Look:
        lists = self._lists
        return Look("") if lists is None else self._ask([claim.bucket], lambda: lists.look(claim, owner, free, ids))

    def forget(self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str, *, keep: bool = False) -> None:
        lists = self._lists
        if lists is not None:
            self._part_by_part(claims, lambda those: lists.forget(those, ids, owner, keep=keep))

    def where(self, claims: Sequence[StoreClaim], id: str) -> Where | None:
        """As `SupportsWaitlists.where`; None of a store without waitlists."""
        lists = self._lists
        return None if lists is None else self._ask([each.bucket for each in claims], lambda: lists.where(claims, id))

    def return_units(self, charges: Sequence[Charge], asker: Asker) -> None:
        """As `SupportsWaitlists.return_units`; a store without waitlists is asked for nothing."""
        lists = self._lists
        if lists is not None:
            self._ask([each.claim.bucket for each in charges], lambda: lists.return_units(charges, asker))

    def listen(
        self, owner: str, heard: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        """As `SupportsWaitlists.listen`; of a store without waitlists nothing is heard."""
        return (lambda: None) if self._lists is None else self._lists.listen(owner, heard, missed)

    def reset(self, names: Sequence[str]) -> None:
        self._ask(names, lambda: self._store.reset(names))

    def clear_lines(self, names: Sequence[str]) -> None:
        self._ask(names, lambda: self._store.clear_lines(names))

    def one_clock(self, name: str) -> bool:
        """Whether one server keeps all names, as it does *name*: each node of a cluster has a clock of its own."""
        return self._parted is None or not self._parted.part_of(name)

    @property
    def shared(self) -> bool:
        """Whether it takes `commands`."""
        return isinstance(self._store, SupportsCommands)

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        As `SupportsCommands.commands`.

        Raises:
            TypeError: The store has no such place; see `shared`.
        """
        if not isinstance(self._store, SupportsCommands):
            raise TypeError(f"a {type(self._store).__name__} has no place that the whole fleet sees")
        return self._store.commands(commands)

    def delete_matching(self, pattern: str, *, lines_only: bool = False) -> int:
        """
        As `SupportsForget.delete_matching`.

        Raises:
            TypeError: The store cannot.
        """
        if not isinstance(self._store, SupportsForget):
            raise TypeError(f"a {type(self._store).__name__} cannot find names")
        return self._store.delete_matching(pattern, lines_only=lines_only)

    def close(self) -> None:
        self._store.close()

    def _ask(self, names: Sequence[str], question: Callable[[], _T]) -> _T:
        """Put *question*, which concerns *names*."""
        return question()

    def _part_by_part(self, what: Sequence[_N], question: Callable[[Sequence[_N]], None]) -> None:
        """Put *question* to each part of the store, also after one has failed; then raise the first failure."""
        parts: dict[str, list[_N]] = {}
        for each in what:
            parts.setdefault(self._part(each.bucket), []).append(each)
        failed: StoreUnavailable | None = None
        for those in parts.values():
            try:
                self._ask([each.bucket for each in those], partial(question, those))
            except StoreUnavailable as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _part(self, name: str) -> str:
        return self._parted.part_of(name) if self._parted is not None else ""
