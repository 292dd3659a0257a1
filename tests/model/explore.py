"""
A breadth-first search over every state that a small world can reach, and the shortest way to each rule that breaks.

A world yields what can happen next; it owns its rules. Worlds are told relative to their own now, so a search that
ends has covered histories of every length.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Found", "World", "explore"]


class World(Protocol):
    """What is searched. A state is hashable and canonical: two states that can no longer differ are equal."""

    def starts(self) -> Iterable[tuple[str, Hashable]]:
        """Each state that a search begins with, and its name."""
        ...

    def steps(self, state: Any) -> Iterator[tuple[str, Any, str | None]]:
        """What can happen next: its name, the state after it, and the rule that it broke."""
        ...

    def plays(self, state: Any) -> Iterator[tuple[str, str]]:
        """What must come about from *state*, and does not: what was played, and the rule that it broke."""
        ...


@dataclass
class Found:
    """What a search found."""

    states: int = 0
    steps: int = 0
    is_closed: bool = False
    """Whether every state was reached: no limit cut the search."""
    broken: dict[str, list[str]] = field(default_factory=dict)
    """For each broken rule, the shortest way to break it."""
    seconds: float = 0.0


def explore(world: World, *, states: int | None = None, seconds: float | None = None, first: bool = False) -> Found:
    """
    Search *world*, the shortest histories first.

    Args:
        states: At most about so many states. Default: all.
        seconds: About so long, with what is played from each state. Default: to the end.
        first: Stop at the first broken rule.
    """
    begun = time.perf_counter()
    seen: dict[Any, int] = {}
    came: list[tuple[int, str]] = []
    queue: list[Any] = []
    found = Found()

    def trace(at: int, last: str) -> list[str]:
        way = [last]
        while at >= 0:
            at, what = came[at]
            way.append(what)
        return way[::-1]

    def add(state: Any, before: int, what: str) -> None:
        if state not in seen:
            seen[state] = len(queue)
            queue.append(state)
            came.append((before, what))

    for what, state in world.starts():
        add(state, -1, what)
    at = 0
    while at < len(queue):
        for what, after, rule in world.steps(queue[at]):
            found.steps += 1
            if rule is None:
                add(after, at, what)
            elif rule not in found.broken:
                found.broken[rule] = trace(at, what)
        for what, rule in world.plays(queue[at]):
            if rule not in found.broken:
                found.broken[rule] = trace(at, what)
        at += 1
        if found.broken and first:
            break
        if (states and len(queue) >= states) or (seconds and time.perf_counter() - begun > seconds):
            break
    found.states, found.is_closed = at, at == len(queue)
    found.seconds = time.perf_counter() - begun
    return found
