"""A limiter's part in the fleet: what it does once a second, and what it was told."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from throttlekit._fleet.follow import Follower
from throttlekit._fleet.pulse import Pulse
from throttlekit._fleet.steering import Steering
from throttlekit._outage import Guarded

__all__ = ["Fleet"]


class Fleet:
    """
    Of a limiter in memory there is no fleet: nothing beats, and nothing is told.

    Args:
        owner: The limiter. When it is gone nothing beats any more, so no beat may know it.
        beats: What else is done once a second.
    """

    def __init__(self, store: Guarded, owner: object, *, beats: tuple[Callable[[], None], ...] = ()) -> None:
        self._follower = Follower(store)
        self.steering = Steering(self._follower)
        self._pulse: Pulse | None = None
        if store.shared:
            self._pulse = Pulse([self._follower.follow, *beats])
            weakref.finalize(owner, self._pulse.abandon)

    def steers(self) -> bool:
        """Whether anything is in force, of any limit. The first call in a process asks the store; later ones nobody."""
        if self._pulse is None:
            return False
        self._pulse.felt()
        return bool(self.steering.rules)

    def follow(self) -> None:
        """
        Ask now what is in force.

        Raises:
            StoreUnavailable: The store did not answer. What was in force stays so.
        """
        self._follower.follow()

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
