"""
Jobs that an earlier version of the adapters parked in the broker's own store. No adapter parks jobs any more: workers
hold what waits. `throttlekit parked` shows what is left there, and `throttlekit release` gives it back to its queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import throttlekit_lua

__all__ = ["MOST_WOKEN", "PARKS", "Park", "ParkedLine"]

PARKS = "throttlekit:parks"
"""The hash in which a Redis says which parks it has: a JSON object of each, by its prefix."""

_BATCH = 500
MOST_WOKEN = 200
"""Jobs that one script wakes: with new messages that takes the server some 2 ms."""

_WAKE = throttlekit_lua.script("park_wake")


@dataclass(frozen=True, slots=True)
class ParkedLine:
    """The parked jobs of one line: its name, its limit's, and how many they are."""

    lane: str
    limit: str
    jobs: int


class Park:
    """
    The parked jobs of one queue, in the Redis of its broker.

    Args:
        client: A client of that Redis, as redis-py makes it, which answers with bytes.
        framework: Whose queue it is, in lower case.
        prefix: What the park's own keys begin with.
        messages: The hash of messages by id, in which those of parked jobs are.
        lists: Where woken jobs go.
        moves: Whether a message moves to its list, and begins with the index of that list, one digit. Else the list
            gets its id, and the message stays.
    """

    def __init__(
        self, client: Any, framework: str, queue: str, prefix: str, *, messages: str, lists: Sequence[str], moves: bool
    ) -> None:  # fmt: skip
        self.framework, self.queue, self.prefix = framework, queue, prefix
        self._client, self._messages, self._lists, self._moves = client, messages, lists, moves
        self._wake = client.register_script(_WAKE)

    @classmethod
    def all_of(cls, client: Any) -> list[Park]:
        """The parks of the Redis of *client*, also those whose workers have all ended."""
        found = client.hgetall(PARKS)
        return [cls(client, **json.loads(found[prefix])) for prefix in sorted(found)]

    def forget(self) -> None:
        """Let `all_of` find it no longer: its queue is gone."""
        self._client.hdel(PARKS, self.prefix)

    def lines_known(self) -> int:
        """How many lines have jobs in it; in constant time."""
        return int(self._client.hlen(f"{self.prefix}:limits"))

    def lines(self, most: int | None = None) -> list[ParkedLine]:
        """What is parked, by line: of *most* lines, or of all."""
        known = self._client.hscan_iter(f"{self.prefix}:limits", count=_BATCH)
        limits, found = list(dict(islice(known, most)).items()), list[ParkedLine]()
        for at in range(0, len(limits), _BATCH):
            counts = self._client.pipeline(transaction=False)
            for lane, _ in limits[at : at + _BATCH]:
                counts.zcard(f"{self.prefix}:lane:{lane.decode()}")
            for (lane, limit), jobs in zip(limits[at : at + _BATCH], counts.execute(), strict=True):
                found.append(ParkedLine(lane.decode(), limit.decode().partition(" ")[2], int(jobs)))
        return found

    def has_promoter(self) -> bool:
        """Whether a worker wakes what is parked, or has done so within the last seconds."""
        return bool(self._client.exists(f"{self.prefix}:promoter"))

    def parked(self, lane: str, batch: int = _BATCH, at: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """
        The jobs of *lane*, from the one that stands at *at*, each as `release_job` takes it; and its message, b"" if it
        was purged. So many are read at a time.
        """
        key = f"{self.prefix}:lane:{lane}"
        while jobs := self._client.zrange(key, at, at + batch - 1):
            messages = self._client.hmget(self._messages, [job[17:] for job in jobs])
            for job, message in zip(jobs, messages, strict=True):
                yield job, self.own(message)
            at += batch

    def release(self, lane: str, most: int) -> int:
        """
        Wake the first *most* jobs of *lane* for an operator, and return how many had a message. They keep their order:
        each batch goes to the front of the queue, so the last one is woken first.
        """
        woken = 0
        for end in range(most, 0, -MOST_WOKEN):
            jobs = self._client.zrange(f"{self.prefix}:lane:{lane}", max(0, end - MOST_WOKEN), end - 1)
            woken += self._wake_jobs(lane, jobs)
        return woken

    def release_job(self, lane: str, job: bytes) -> bool:
        """Wake *job*, as `parked` yields it; return False if it is not parked any more, or has no message."""
        return self._wake_jobs(lane, [job]) == 1

    def _wake_jobs(self, lane: str, jobs: Sequence[bytes]) -> int:
        """Wake *jobs* of *lane*, at most `MOST_WOKEN`, and return how many were woken."""
        keys = [*self._keys(lane), f"{self.prefix}:ends", self._messages, *self._lists]
        unchanged = chain.from_iterable((job, b"") for job in jobs)
        woken, _ = self._wake(keys=keys, args=[lane, 0, "", int(self._moves), *unchanged])
        return int(woken)

    def own(self, message: bytes | None) -> bytes:
        """The framework's own part of a stored message; b"" if it was purged."""
        return (message[1:] if self._moves else message) if message else b""

    def _keys(self, lane: str) -> tuple[str, str, str]:
        return f"{self.prefix}:lane:{lane}", f"{self.prefix}:lanes", f"{self.prefix}:limits"
