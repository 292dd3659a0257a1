"""A limiter that records what responses report, and a plugin that records deferrals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from throttlekit import Limit, Limiter
from throttlekit._core.slowdown import Remaining
from throttlekit._engine.claims import Claim
from throttlekit.hookspecs import Deferred, hookimpl
from throttlekit.stores.base import Slowing

__all__ = ["Deferrals", "Recording"]


class Deferrals:
    """A plugin that records each deferral."""

    def __init__(self) -> None:
        self.events: list[Deferred] = []

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        self.events.append(event)


class Recording(Limiter):
    """
    A limiter that does not slow down: `slowed` has each bucket with its remaining units, and `paused` has the seconds
    of pauses.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.slowed: list[tuple[str, Remaining]] = []
        self.paused: list[float] = []

    def slow_down(self, slowings: Sequence[tuple[Limit, Slowing]]) -> None:
        for _, slowing in slowings:
            assert isinstance(slowing.why, Remaining)
            self.slowed.append((slowing.claim.bucket, slowing.why))

    def pause_claims(self, claims: Sequence[Claim], for_us: int | None, *, emptied: bool = False) -> None:
        super().pause_claims(claims, for_us, emptied=emptied)
        self.paused += [(for_us or 0) / 1_000_000 for _ in claims]
