"""
Jobs that an earlier version of the adapters parked in the broker's own store. No adapter parks jobs any more: workers
hold what waits. `throttlekit parked` shows what is left there, and `throttlekit release` gives it back to its queue.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

import throttlekit_lua
from throttlekit._engine.delivery import PLAIN_DELIVERY, Delivery
from throttlekit._engine.ticket import Ticket
from throttlekit.adapter.waiting import lane_in

__all__ = [
    "MOST_DUE", "MOST_OTHERS", "MOST_WOKEN", "SOON", "SOON_SLOT", "Command", "Park", "ParkedLine", "Tell",
]  # fmt: skip

SOON, SOON_SLOT = 2.0, 20.0
"""Seconds before it is due that a parked job is woken; less than the above, or it would be parked again."""

_PARKS = "throttlekit:parks"
"""The hash in which a Redis says which parks it has: a JSON object of each, by its prefix."""

_LEASE_MS = 2_000
MOST_DUE = 200
MOST_OTHERS = 16
"""Lines a turn at which a promoter looks though their jobs were not to be due yet: a rate may have been raised."""
_MOST_KNOWN = 10_000
_BATCH = 500
MOST_WOKEN = 200
"""Jobs that one script wakes: with new messages that takes the server some 2 ms."""

_TOGETHER = 50
"""Commands in one pipeline: the server runs all of them before it turns to another client."""

_SCRIPTS = tuple(throttlekit_lua.script(name) for name in ("park", "park_look", "park_wake", "park_move"))

Command: TypeAlias = Callable[[Any], object]
"""Adds one command to a pipeline of redis-py."""

Tell: TypeAlias = Callable[[bytes, float], "bytes | None"]
"""Returns the message of a job that is woken, with the instant at which it is due, in seconds. None: as it is."""


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
        self._known: set[str] = set()  # lines in which this process has parked jobs
        self._known_for_slots: set[str] = set()  # those of them whose jobs wait for slots
        self._park, self._look, self._wake, self._move = (client.register_script(text) for text in _SCRIPTS)

    @classmethod
    def all_of(cls, client: Any) -> list[Park]:
        """The parks of the Redis of *client*, also those whose workers have all ended."""
        found = client.hgetall(_PARKS)
        return [cls(client, **json.loads(found[prefix])) for prefix in sorted(found)]

    def announce(self) -> None:
        """Let `all_of` find it."""
        park = {
            "framework": self.framework, "queue": self.queue, "prefix": self.prefix, "messages": self._messages,
            "lists": list(self._lists), "moves": self._moves,
        }  # fmt: skip
        self._client.hset(_PARKS, self.prefix, json.dumps(park))

    def forget(self) -> None:
        """Let `all_of` find it no longer: its queue is gone."""
        self._client.hdel(_PARKS, self.prefix)

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
        The jobs of *lane*, from the one that stands at *at*, each as `wake` takes it; and its message, b"" if it was
        purged. So many are read at a time.
        """
        key = f"{self.prefix}:lane:{lane}"
        while jobs := self._client.zrange(key, at, at + batch - 1):
            messages = self._client.hmget(self._messages, [job[17:] for job in jobs])
            for job, message in zip(jobs, messages, strict=True):
                yield job, self.own(message)
            at += batch

    def put(
        self, message_id: str, message: bytes | str, ticket: Mapping[str, Any] | None, *, unacked: str,
        beside: str, delay: float, delivery: Delivery = PLAIN_DELIVERY, new_id: str = "",
    ) -> bool:  # fmt: skip
        """
        Park a job that carries *ticket*, whose message a worker holds unacknowledged.

        Args:
            message: With that ticket.
            unacked: Where the broker notes that the worker holds it: a hash if messages move, else a set.
            beside: Where else the message is, and is not to stay.
            delay: Seconds until the job is due.
            delivery: Says until when it may wait.
            new_id: The message's id from now on, if it stays with it: what its worker still does by the old one hits no
                later delivery.

        Returns:
            False, and nothing was done, if the worker does not hold it any more.
        """
        lane, read = lane_in(ticket), Ticket.read(ticket)
        waited = (read.due_us - read.since_us) / 1_000_000 - delay
        # A job that would end sooner is not told so late an instant; a longer wait is told in hops.
        ends_in = max(delay, min(delivery.expires_in, delivery.max_wait - waited))
        look_in = max(0.0, delay - (SOON_SLOT if lane.slots else SOON))
        keys = [unacked, beside, self._messages, *self._keys(lane.name), f"{self.prefix}:ends"]
        args = [
            "hash" if self._moves else "set", message_id, message, lane.name, read.limit_name,
            lane.start, lane.number, look_in, "" if ends_in == math.inf else ends_in, read.places[read.limit_ref].epoch,
            new_id or message_id,
        ]  # fmt: skip
        if len(self._known) < _MOST_KNOWN:
            self._known.add(lane.name)
            if lane.slots:
                self._known_for_slots.add(lane.name)
        return bool(self._park(keys=keys, args=args))

    def look(self, owner: str, skip: int) -> tuple[list[str], list[str], list[bytes], int] | None:
        """
        What the promoter *owner* is to look at, None if another has the lease: lines that are due for a look; others,
        of which *skip* are passed over; jobs that end now, "line number id"; and 1 if its lease is a new one.
        """
        keys = [f"{self.prefix}:promoter", f"{self.prefix}:lanes", f"{self.prefix}:ends"]
        found = self._look(keys=keys, args=[owner, _LEASE_MS, MOST_DUE, skip, MOST_OTHERS])
        if found:
            found[:2] = [[*map(bytes.decode, lanes)] for lanes in found[:2]]
        return found  # type: ignore[no-any-return]

    def resign(self, owner: str) -> None:
        """*owner* stops: another promoter need not wait for its lease to end."""
        key = f"{self.prefix}:promoter"
        if self._client.get(key) == owner.encode():
            self._client.delete(key)

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """
        Run *commands* of this park in few round trips, and return their replies. If a command fails, its error is
        returned instead of a reply.

        Raises:
            Exception: The connection failed.
        """
        replies: list[Any] = []
        for begun in range(0, len(commands), _TOGETHER):
            replies += self._run_together(commands[begun : begun + _TOGETHER])
        missing = [number for number, reply in enumerate(replies) if type(reply).__name__ == "NoScriptError"]
        if missing:  # these commands have done nothing
            for text in _SCRIPTS:
                self._client.script_load(text)
            for number in missing:
                (replies[number],) = self._run_together([commands[number]])
        return replies

    def _run_together(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            command(pipeline)
        return pipeline.execute(raise_on_error=False)  # type: ignore[no-any-return]

    def count(self, lane: str) -> Command:
        """A command that replies how many jobs of *lane* are parked."""
        return lambda pipeline: pipeline.zcard(f"{self.prefix}:lane:{lane}")

    def range(self, lane: str, first: int, last: int) -> Command:
        """A command that replies the jobs of *lane* from position *first* to *last*, with their scores."""
        return lambda pipeline: pipeline.zrange(f"{self.prefix}:lane:{lane}", first, last, withscores=True)

    def epoch(self, lane: str) -> Command:
        """A command that replies what `shift_in` reads."""
        return lambda pipeline: pipeline.hget(f"{self.prefix}:limits", lane)

    @staticmethod
    def shift_in(reply: bytes | None) -> float:
        """The score up to which the jobs of a line have lost their places."""
        return float((reply or b"").partition(b" ")[0].partition(b"/")[2] or 0)

    def messages(self, jobs: Sequence[bytes]) -> Command:
        """A command that replies the stored messages of *jobs*; see `own`."""
        return lambda pipeline: pipeline.hmget(self._messages, [job[17:] for job in jobs])

    def wake(
        self, lane: str, first: int, again_in: float | None = None, jobs: Sequence[bytes] = (),
        new_messages: Sequence[bytes] = (),
    ) -> Command:  # fmt: skip
        """
        A command that wakes the first *first* jobs of *lane*, and *jobs* wherever they are in it: at most `MOST_WOKEN`
        in all. It replies how many jobs were woken, and how many are still parked.

        Args:
            new_messages: The messages of *jobs* from now on, as `write_due_times` returns them. Empty: they stay.
        """
        keys = [*self._keys(lane), f"{self.prefix}:ends", self._messages, *self._lists]
        pairs = chain.from_iterable(zip(jobs, new_messages or [b""] * len(jobs), strict=True))
        args = [lane, first, "" if again_in is None else again_in, int(self._moves), *pairs]
        return lambda pipeline: pipeline.evalsha(self._wake.sha, len(keys), *keys, *args)

    def move(self, lane: str, other: str, limit: str, jobs: Sequence[bytes], look_in: float) -> Command:
        """A command that moves *jobs* of *lane* to the line *other*, whose jobs *limit* blocks; see park_move.lua."""
        keys = [f"{self.prefix}:lane:{lane}", *self._keys(other), f"{self.prefix}:ends"]
        args = [lane, other, limit, look_in, *jobs]
        return lambda pipeline: pipeline.evalsha(self._move.sha, len(keys), *keys, *args)

    def write_due_times(self, messages: Sequence[bytes | None], dues: Sequence[float], tell: Tell) -> list[bytes]:
        """Return stored *messages* whose jobs are due in *dues* seconds, with that time; b"" if one stays as it is."""
        written: list[bytes] = []
        for message, seconds in zip(messages, dues, strict=True):
            own = self.own(message)
            new = None
            with suppress(Exception):  # the framework reports what is wrong with it, once it is woken
                new = tell(own, seconds) if own else None
            written.append(b"" if new is None or not message else message[:1] + new if self._moves else new)
        return written

    def release(self, lane: str, most: int) -> int:
        """
        Wake the first *most* jobs of *lane* for an operator, and return how many had a message. They keep their order:
        each batch goes to the front of the queue, so the last one is woken first.
        """
        woken = 0
        for end in range(most, 0, -MOST_WOKEN):
            jobs = self._client.zrange(f"{self.prefix}:lane:{lane}", max(0, end - MOST_WOKEN), end - 1)
            woken += self._wake_now(lane, 0, jobs)[0]
        return woken

    def release_job(self, lane: str, job: bytes) -> bool:
        """Wake *job*, as `parked` yields it; return False if it is not parked any more, or has no message."""
        return self._wake_now(lane, 0, [job])[0] == 1

    def _wake_now(self, lane: str, first: int, jobs: Sequence[bytes] = ()) -> tuple[int, int]:
        """Wake jobs, and return how many were woken, and how many are still parked."""
        (reply,) = self.run([self.wake(lane, first, None, jobs)])
        if isinstance(reply, Exception):
            raise reply
        woken, left = reply
        return int(woken), int(left)

    def freed(self, lanes: Sequence[str]) -> None:
        """A slot for which jobs of *lanes* wait has come free: the first one asks, where this process parked any."""
        for lane in lanes:
            if lane in self._known_for_slots and not self._wake_now(lane, 1)[1]:
                self._known_for_slots.discard(lane)

    def wake_first(self, lanes: Sequence[str], tell: Tell) -> None:
        """
        Wake the first job of each of *lanes* in which this process has parked any, as units were given back to their
        limits. *tell* writes into its message that it is due now.
        """
        for lane in self._known.intersection(lanes):
            (found,) = self.run([self.range(lane, 0, 0)])
            names = [name for name, _ in found]
            if not names:
                self._known.discard(lane)
                continue
            (messages,) = self.run([self.messages(names)])
            self.run([self.wake(lane, 0, None, names, self.write_due_times(messages, [0.0], tell))])

    def own(self, message: bytes | None) -> bytes:
        """The framework's own part of a stored message; b"" if it was purged."""
        return (message[1:] if self._moves else message) if message else b""

    def _keys(self, lane: str) -> tuple[str, str, str]:
        return f"{self.prefix}:lane:{lane}", f"{self.prefix}:lanes", f"{self.prefix}:limits"
