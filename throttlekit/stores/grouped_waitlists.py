"""One store with waitlists for each group of limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Asker, Look
from throttlekit._core.verdict import Verdict
from throttlekit._core.wait_control import Charge, Waiting, Where
from throttlekit._core.waitlist import Wake
from throttlekit.stores.base import Request, Store, SupportsCommands
from throttlekit.stores.grouped import GroupedStore, SharedGroupedStore
from throttlekit.stores.grouped import grouped as without_waitlists
from throttlekit.stores.wait_parts import WaitPart, ask_in_parts
from throttlekit.stores.waitlists import SupportsWaitlists, binding_where, has_waitlists, verdict_of_answer

__all__ = ["WaitlistGroupedStore", "WaitlistSharedGroupedStore", "group_waitlists", "grouped"]


class WaitlistGroupedStore(GroupedStore):
    """As `GroupedStore`, of stores with waitlists: each limit's list is in the store of its group."""

    def ask(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        numbers: dict[Any, list[int]] = {}
        for number, claim in enumerate(claims):
            numbers.setdefault(self._of(claim.bucket), []).append(number)
        if len(numbers) == 1:
            return next(iter(numbers)).ask(claims, asker, now_us, attempt=attempt)  # type: ignore[no-any-return]
        parts = [WaitPart(group, those, group.failed) for group, those in numbers.items()]
        return ask_in_parts(parts, claims, asker, now_us, attempt=attempt)

    def acquire(self, request: Request, now_us: int | None = None) -> Verdict:
        if request.asker is None:
            return super().acquire(request, now_us)
        return verdict_of_answer(self.ask(request.claims, request.asker, now_us, attempt=request.attempt))

    def return_units(self, charges: Sequence[Charge], asker: Asker, now_us: int | None = None) -> None:
        self._each(
            charges, lambda store, those: _of(store).return_units(those, asker, now_us), lambda each: each.claim.bucket
        )

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None, *,
        near: bool = False,
    ) -> Look:  # fmt: skip
        return self._of(claim.bucket).call(lambda store: store.look(claim, owner, free, ids, now_us, near=near))  # type: ignore[no-any-return]

    def own(self, claim: StoreClaim, owner: str, ids: Sequence[str], now_us: int | None = None) -> Look:
        return self._of(claim.bucket).call(lambda store: store.own(claim, owner, ids, now_us))  # type: ignore[no-any-return]

    def forget(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str = "", now_us: int | None = None, *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        self._each(claims, lambda store, those: _of(store).forget(those, ids, owner, now_us, keep=keep))

    def wake(self, claims: Sequence[StoreClaim], now_us: int | None = None) -> None:
        self._each(claims, lambda store, those: _of(store).wake(those, now_us))

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        found: list[Where] = []

        def find(store: Any, those: list[StoreClaim]) -> None:
            each = store.where(those, id, now_us)
            if each is not None:
                found.append(each._replace(claim=claims.index(those[each.claim])))

        self._each(claims, find)
        return binding_where(found)

    def list_waiting(self, claim: StoreClaim, most: int = 0) -> Waiting:
        return self._of(claim.bucket).call(lambda store: store.list_waiting(claim, most))  # type: ignore[no-any-return]

    def listen(
        self, owner: str, heard: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        with ExitStack() as stack:
            for group in self._all():
                stack.callback(_of(group.store).listen(owner, heard, missed))
            return stack.pop_all().close


class WaitlistSharedGroupedStore(WaitlistGroupedStore, SharedGroupedStore):
    """One whose default store the whole fleet sees."""


def group_waitlists(default: SupportsWaitlists, groups: Sequence[tuple[str, SupportsWaitlists]]) -> SupportsWaitlists:
    """*default* with a store of its own for each of *groups*."""
    made = WaitlistSharedGroupedStore if isinstance(default, SupportsCommands) else WaitlistGroupedStore
    return made(default, groups) if groups else default


def grouped(default: Store, groups: Sequence[tuple[str, Store]]) -> Store:
    """*default* with a store of its own for each of *groups*. It has waitlists if each of them has."""
    all_have = all(map(has_waitlists, (default, *(store for _, store in groups))))
    return group_waitlists(cast(Any, default), cast(Any, groups)) if all_have else without_waitlists(default, groups)


def _of(store: Any) -> SupportsWaitlists:
    return store  # type: ignore[no-any-return]
