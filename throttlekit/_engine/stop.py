"""What holds back the jobs of one list, though the store does not know it."""

from __future__ import annotations

__all__ = ["Stop"]


class Stop:
    """
    A list whose jobs something holds back that the store does not know, like an operator's pause.

    Attributes:
        at_us: When the jobs that it holds back ask again.
        ids: These jobs, in the order in which they asked first, and whether they have positions.
        positions: How many have. If one has, the store is told that no thread is free for the list; then those without
            ask later than those with, as they would pass before all that wait.
    """

    __slots__ = ("at_us", "ids", "positions")

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us
        self.ids: dict[str, bool] = {}
        self.positions = 0

    def add(self, id: str, *, has_position: bool) -> None:
        self.ids[id] = has_position
        self.positions += has_position

    def remove(self, id: str) -> None:
        self.positions -= self.ids.pop(id, False)
