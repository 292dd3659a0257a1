"""A store that does not decide."""

from __future__ import annotations

from typing import Any

from support.servers.stores import Passing
from throttlekit import StoreUnavailable
from throttlekit._core.answer import Answer, Requester
from throttlekit.stores import MemoryStore, Store

__all__ = ["Away"]


class Away(Passing):
    """
    A store that is unavailable for decisions, and delegates all other calls.

    Attributes:
        is_away: Set it to False to make the store decide.
        asked: How many decisions were requested.
    """

    def __init__(self, inner: Store | None = None) -> None:
        self.inner = MemoryStore() if inner is None else inner
        self.is_away, self.asked = True, 0

    def decide(self, claims: Any, requester: Requester, now_us: int | None = None, *, attempt: str = "") -> Answer:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable("the store gave no usable answer: TimeoutError", part="")
        return super().decide(claims, requester, now_us, attempt=attempt)
