"""One interface to all stores, including optional methods: batches, commands, and parts that fail independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from throttlekit._core.answer import Answer, Look, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.wait_control import Charge, Waiting, Where
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
    SupportsParts,
    SupportsScan,
    decide_or_error,
)
from throttlekit.stores.memory import MemoryStore

__all__ = ["StoreAccess"]

_T = TypeVar("_T")


class StoreAccess:
    """
    A wrapper around *store*. Every call goes through `_ask`, which `CircuitBreaker` overrides.

    The constructor checks once which optional methods the store has, because the check takes 10 to 20 µs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parted = store if isinstance(store, SupportsParts) else None
        self._batched = store if isinstance(store, SupportsBatch) else None

    @property
    def in_memory(self) -> bool:
        """Whether the state is in the memory of this process."""
        return isinstance(self._store, MemoryStore)

    @property
    def address(self) -> str:
        """The server in the format of `StoreUnavailable.server`, without a user or a password; "" if unknown."""
        return str(getattr(self._store, "address", ""))

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        names = [claim.bucket for claim in claims]
        return self._ask(names, lambda store: store.decide(claims, requester, now_us, attempt=attempt))

    def decide_all(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """Decide each of *requests*, in one round trip if the store supports it. An error replaces its answer."""
        if self._batched is None:
            return [decide_or_error(self, request) for request in requests]
        try:
            return list(self._batched.decide_all(requests))
        except StoreUnavailable as error:
            return [error] * len(requests)

    def settle(self, corrections: Sequence[Correction], now_us: int | None = None) -> None:
        self._part_by_part(corrections, lambda store, those: store.settle(those, now_us))

    def release(self, leases: Sequence[Lease], now_us: int | None = None) -> None:
        self._part_by_part(leases, lambda store, those: store.release(those, now_us))

    def renew(self, leases: Sequence[Lease], now_us: int | None = None) -> Sequence[bool]:
        held: dict[Lease, bool] = {}

        def renew(store: Store, those: Sequence[Lease]) -> None:
            held.update(zip(those, store.renew(those, now_us), strict=True))

        self._part_by_part(leases, renew)
        return [held[each] for each in leases]

    def pause(
        self, claims: Sequence[StoreClaim], for_us: int | None, now_us: int | None = None, *, emptied: bool = False
    ) -> None:
        self._part_by_part(claims, lambda store, those: store.pause(those, for_us, now_us, emptied=emptied))

    def slow(self, slowings: Sequence[Slowing], now_us: int | None = None) -> None:
        self._part_by_part(slowings, lambda store, those: store.slow(those, now_us))

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None
    ) -> Look:
        return self._ask([claim.bucket], lambda store: store.look(claim, owner, free, ids, now_us))

    def forget(
        self,
        claims: Sequence[StoreClaim],
        ids: Sequence[str],
        owner: str = "",
        now_us: int | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self._part_by_part(claims, lambda store, those: store.forget(those, ids, owner, now_us, keep=keep))

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        return self._ask([each.bucket for each in claims], lambda store: store.where(claims, id, now_us))

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        return self._ask([claim.bucket], lambda store: store.list_waiting(claim, most))

    def return_units(self, charges: Sequence[Charge], requester: Requester, now_us: int | None = None) -> None:
        self._part_by_part(charges, lambda store, those: store.return_units(those, requester, now_us))

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        return self._store.listen(owner, on_wakes, missed)

    def reset(self, buckets: Sequence[str]) -> None:
        self._part_by_part(buckets, lambda store, those: store.reset(those), str)

    def clear_waitlists(self, buckets: Sequence[str]) -> int:
        cleared: list[int] = []
        self._part_by_part(buckets, lambda store, those: cleared.append(store.clear_waitlists(those)), str)
        return sum(cleared)

    @property
    def shared(self) -> bool:
        """Whether the store supports `commands`."""
        store = self._store
        return store.shared if isinstance(store, StoreAccess) else isinstance(store, SupportsCommands)

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """
        Like `SupportsCommands.commands`.

        Raises:
            TypeError: The store does not support it; see `shared`.
        """
        if not isinstance(self._store, SupportsCommands):
            raise TypeError(f"a {type(self._store).__name__} stores no data of the whole fleet")
        return self._store.commands(commands)

    def scan(self, pattern: str, cursor: str = "") -> tuple[str, list[str]]:
        """
        Like `SupportsScan.scan`.

        Raises:
            TypeError: The store does not support it.
        """
        if not isinstance(self._store, SupportsScan):
            raise TypeError(f"a {type(self._store).__name__} cannot list names")
        return self._store.scan(pattern, cursor)

    def close(self) -> None:
        self._store.close()

    def _ask(self, names: Sequence[str], question: Callable[[Store], _T]) -> _T:
        """Call *question*, which reads or changes *names* in a store."""
        return question(self._store)

    def _part_by_part(
        self,
        what: Sequence[_T],
        question: Callable[[Store, Sequence[_T]], None],
        name_of: Callable[[Any], str] = attrgetter("bucket"),
    ) -> None:
        """Call *question* for each part of the store, even after one has failed. Then raise the first error."""

        def ask(those: Sequence[_T]) -> None:
            self._ask([name_of(each) for each in those], lambda store: question(store, those))

        parts: dict[str, list[_T]] = {}
        for each in what:
            parts.setdefault(self._part(name_of(each)), []).append(each)
        failed: StoreUnavailable | None = None
        for those in parts.values():
            try:
                ask(those)
            except StoreUnavailable as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _part(self, name: str) -> str:
        return self._parted.part_of(name) if self._parted is not None else ""
