"""The Redis store with waitlists. No adapter uses it yet, so that nothing loads it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

from throttlekit._core.claim import StoreClaim
from throttlekit._core.decide import Answer, Asker, Look
from throttlekit._core.storage_keys import granted_name
from throttlekit.stores.redis import RedisStore
from throttlekit.stores.waitlist_wire import answer_of, asker_arguments, encoded, look_of, wait_keys
from throttlekit.stores.wire import claims_arguments, script_for

__all__ = ["WaitlistRedisStore"]

_MOST_IDS = 50
"""So many entries of waitlists one script moves or removes: it takes up to 60 µs for each."""


class WaitlistRedisStore(RedisStore):
    """A Redis store whose jobs wait on waitlists: one script for each of the verbs of `WaitlistMemoryStore`."""

    _is_cluster = False
    """Whether scripts run on a node of a cluster."""

    def ask(
        self, claims: Sequence[StoreClaim], asker: Asker, now_us: int | None = None, *, attempt: str = ""
    ) -> Answer:
        keys = wait_keys(claims) + ([granted_name(claims[0].bucket, asker.job)] if attempt else [])
        head = asker_arguments(asker, _or_empty(now_us), self._epoch(), attempt)
        reply = self._run_wait("ask", claims, keys, [*head, *claims_arguments(claims)])
        return self._call(claims[0].bucket, lambda: answer_of(reply))

    def look(
        self, claim: StoreClaim, owner: str, free: int, ids: Sequence[str] = (), now_us: int | None = None, *,
        near: bool = False,
    ) -> Look:  # fmt: skip
        head = [_or_empty(now_us), encoded(owner), f"{max(0, free)} {near:d}", *claims_arguments([claim])]
        reply = self._run_wait("wait_look", [claim], wait_keys([claim]), [*head, *map(encoded, ids)])
        return self._call(claim.bucket, lambda: look_of(reply))

    def own(self, claim: StoreClaim, owner: str, ids: Sequence[str], now_us: int | None = None) -> Look:
        head = [_or_empty(now_us), encoded(owner), *claims_arguments([claim])]
        looks: list[Look] = []
        for part in _parts(ids, _MOST_IDS):
            reply = self._run_wait("wait_own", [claim], wait_keys([claim]), [*head, *map(encoded, part)])
            looks.append(self._call(claim.bucket, lambda: look_of(reply)))  # noqa: B023
        again = tuple(chain.from_iterable(look.again for look in looks))
        in_us = min((look.look_in_us for look in looks if look.look_in_us is not None), default=None)
        return looks[-1]._replace(again=again, look_in_us=in_us)

    def forget(
        self, claims: Sequence[StoreClaim], ids: Sequence[str], owner: str = "", now_us: int | None = None
    ) -> None:
        head = [_or_empty(now_us), len(claims), encoded(owner), *claims_arguments(claims)]
        for part in _parts(ids, max(1, _MOST_IDS // len(claims))):
            self._run_wait("wait_forget", claims, wait_keys(claims), [*head, *map(encoded, part)])

    def wake(self, claims: Sequence[StoreClaim], now_us: int | None = None) -> None:
        self.forget(claims, (), now_us=now_us)

    def _run_wait(self, verb: str, claims: Sequence[StoreClaim], keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script on the waitlists of *claims*."""
        codes = frozenset([claim.algorithm.code for claim in claims])
        script = script_for(verb, codes, cluster=self._is_cluster)
        return self._call(keys[0], lambda: self._run(script, [len(keys), *keys, *arguments]))

    def _epoch(self) -> str:
        return os.urandom(4).hex()


def _parts(ids: Sequence[str], most: int) -> list[Sequence[str]]:
    """*ids* in parts; one that is empty if there are none."""
    return [ids[first : first + most] for first in range(0, max(1, len(ids)), most)]


def _or_empty(now_us: int | None) -> int | str:
    return "" if now_us is None else now_us
