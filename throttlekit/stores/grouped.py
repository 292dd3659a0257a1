"""A store that consists of several stores, one for each group of limits. Its parts fail independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

from throttlekit._core.answer import Answer, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.pattern import matches
from throttlekit._core.wait_control import Where
from throttlekit._core.waitlist import Wake
from throttlekit.errors import StoreUnavailable
from throttlekit.stores.access import StoreAccess
from throttlekit.stores.base import Request, Store, decide_or_error, key_of
from throttlekit.stores.parts import Part, decide_in_parts
from throttlekit.stores.waitlists import binding_where

__all__ = ["GroupedStore"]

_T = TypeVar("_T")
_MOST_KNOWN = 1024


class _Group(StoreAccess):
    """
    The store of one group. Its errors name the group as the part that failed.

    Args:
        label: The unique name of the group's part.

    Attributes:
        failed: Whether the store did not respond to the last request.
    """

    def __init__(self, label: str, store: Store) -> None:
        super().__init__(store)
        self.label, self.failed = label, False

    def part_of(self, name: str) -> str:
        return f"{self.label} {self._part(name)}"

    def decide_all(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        answers = super().decide_all(requests)
        if self._batched is not None:  # otherwise `decide` has named the errors
            self.failed = all(isinstance(each, StoreUnavailable) for each in answers)
            for answer in {id(each): each for each in answers}.values():
                self._name(answer)
        return answers

    def call(self, question: Callable[[], _T]) -> _T:
        try:
            answer = question()
        except StoreUnavailable as error:
            self.failed = True
            self._name(error)
            raise
        self.failed = False
        return answer

    def _ask(self, names: Sequence[str], question: Callable[[Store], _T]) -> _T:
        return self.call(partial(question, self._store))

    def _name(self, error: object) -> None:
        if isinstance(error, StoreUnavailable) and error.part is not None:
            error.part = f"{self.label} {error.part}"


class GroupedStore(StoreAccess):
    """
    Keeps each limit in the store of the first group whose pattern matches its name, otherwise in the default store. The
    default store also has the data of the fleet for all limits.

    If a job has limits in several stores, each store decides in turn. If one denies, the others return the units that
    they charged before (`decide_in_parts`), as on a cluster. The bound of each limit always holds.

    Args:
        default: The store of all other limits.
        groups: Patterns (see `matches`) and their stores, in order.
    """

    def __init__(self, default: Store, groups: Sequence[tuple[str, Store]]) -> None:
        self._default = _Group("default", default)
        super().__init__(self._default)
        self._groups = [(pattern, _Group(f"group {pattern}", store)) for pattern, store in groups]
        self._known: dict[str, _Group] = {}

    def decide(
        self, claims: Sequence[StoreClaim], requester: Requester, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        numbers: dict[_Group, list[int]] = {}
        for number, claim in enumerate(claims):
            numbers.setdefault(self._of(claim.bucket), []).append(number)
        if len(numbers) == 1:
            return next(iter(numbers)).decide(claims, requester, now_us, attempt=attempt)
        parts = [Part(group, those, group.failed) for group, those in numbers.items()]
        return decide_in_parts(parts, claims, requester, now_us, attempt=attempt)

    def decide_all(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        answers: dict[int, Answer | Exception] = {}
        together: dict[_Group, list[int]] = {}
        for number, request in enumerate(requests):
            groups = {self._of(claim.bucket) for claim in request.claims}
            if len(groups) == 1:
                together.setdefault(groups.pop(), []).append(number)
        for group, numbers in together.items():
            answers.update(zip(numbers, group.decide_all([requests[number] for number in numbers]), strict=True))
        return [answers.get(number) or decide_or_error(self, request) for number, request in enumerate(requests)]

    def where(self, claims: Sequence[StoreClaim], id: str, now_us: int | None = None) -> Where | None:
        found: list[Where] = []

        def find(group: Store, those: Sequence[StoreClaim]) -> None:
            each = group.where(those, id, now_us)
            if each is not None:
                found.append(each._replace(claim=claims.index(those[each.claim])))

        self._part_by_part(claims, find)
        return binding_where(found)

    def listen(
        self, owner: str, on_wakes: Callable[[str, Sequence[Wake]], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        with ExitStack() as stack:
            for group in self._all():
                stack.callback(group.listen(owner, on_wakes, missed))
            return stack.pop_all().close

    def part_of(self, name: str) -> str:
        """Return the group that keeps *name*, and the part of its store. Each group has a different clock."""
        return self._of(name).part_of(name)

    def close(self) -> None:
        for group in self._all():
            group.close()

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """Like `SupportsCommands.commands`. Each command is sent to the store that keeps its key."""
        answers: dict[int, Any] = {}
        together: dict[_Group, list[int]] = {}
        for number, each in enumerate(commands):
            together.setdefault(self._of(key_of(each)), []).append(number)
        for group, numbers in together.items():
            those = [commands[number] for number in numbers]
            answers.update(zip(numbers, group.call(partial(group.commands, those)), strict=True))
        return [answers[number] for number in range(len(commands))]

    def scan(self, pattern: str, cursor: str = "") -> tuple[str, list[str]]:
        """
        Like `SupportsScan.scan`, in the store of the limit that *pattern* names, or in one store after the other.
        *cursor* begins with the number of the store.
        """
        number, _, inner = (cursor or "0:").partition(":")
        groups = self._all() if "{*" in pattern else [self._of(pattern)]
        group = groups[int(number)]
        after, names = group.call(lambda: group.scan(pattern, inner))
        if after:
            return f"{number}:{after}", names
        return (f"{int(number) + 1}:" if int(number) + 1 < len(groups) else ""), names

    def _ask(self, names: Sequence[str], question: Callable[[Store], _T]) -> _T:
        return question(self._of(names[0]))

    def _part(self, name: str) -> str:
        return self.part_of(name)

    def _all(self) -> list[_Group]:
        return [self._default, *[group for _, group in self._groups]]

    def _of(self, name: str) -> _Group:
        """Return the group that keeps *name*, which may be a pattern for all names of one limit."""
        limit = name.partition("{")[2].partition(":")[0]  # names of the fleet's data have no colon there
        found = self._known.get(limit)
        if found is None:
            shown = unquote(limit)
            of_group = (group for pattern, group in self._groups if "}" not in limit and matches(pattern, shown))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[limit] = next(of_group, self._default)
        return found
