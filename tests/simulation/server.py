"""The store of a simulated fleet: a server with the shipped `MemoryStore`, and each process's connections to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scheduler import EPOCH_US, MS, Task

from throttlekit import StoreUnavailable
from throttlekit._core.answer import Reason
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import is_workflow
from throttlekit._core.wait_control import Charge
from throttlekit._engine.relay import _WrittenAlgorithm
from throttlekit.stores.memory import MemoryStore

__all__ = ["Client", "Server"]

TIMEOUT = 250 * MS
"""How long a process waits for an answer of the store: the default of the product."""


class Server:
    """The server: a `MemoryStore` whose clock may step, and which may stall, be unavailable, or lose its data."""

    def __init__(self, world: Any, number: int) -> None:
        self.world, self.number, self.offset = world, number, 0
        self.stalls_until = self.unavailable_until = 0
        self.answers_lost = self.wakes_lost = 0.0
        self.requests = 0
        self.memory = MemoryStore(clock_us=self.clock_us)
        self.clients: list[Client] = []
        self._algorithms: dict[str, Any] = {}

    def clock_us(self) -> int:
        return EPOCH_US + self.world.now + self.offset

    def receive(self, client: Client, name: str, arguments: Any, options: Any, answer: Callable[..., None]) -> None:
        """Run a request that arrives, at once or after a stall, even if its caller no longer waits."""
        now = self.world.now
        if now < self.unavailable_until:
            answer(StoreUnavailable("the store refuses connections"))
        elif now < self.stalls_until:
            self.world.at(self.stalls_until, self.receive, client, name, arguments, options, answer)
        else:
            self.requests += name != "listen"
            found = getattr(self.memory, name)(*self._read(arguments), **options)
            self._note(client, name, arguments, found)
            if self.world.random.random() >= self.answers_lost:
                answer(found)

    def _read(self, arguments: Any) -> Any:
        """
        Return the arguments of a request for the memory store. A note of a `Relay` has the arguments of a script for
        its limit, which a `MemoryStore` cannot use: they are replaced by the algorithm of an earlier request for that
        limit.
        """
        first, *rest = arguments
        claims = first if isinstance(first, (list, tuple)) else [first]
        for each in claims:
            if isinstance(each, StoreClaim) and each.bucket not in self._algorithms:
                self._algorithms[each.bucket] = each.algorithm.of_one()
        if not any(isinstance(getattr(each, "algorithm", None), _WrittenAlgorithm) for each in claims):
            return arguments
        known = [replace(each, algorithm=self._algorithms[each.bucket]) for each in claims]
        return (known if isinstance(first, (list, tuple)) else known[0], *rest)

    def disconnect(self) -> None:
        """Lose all connections: no client listens until it has connected again."""
        for client in self.clients:
            client.end_listening()
            if not client.process.dead:
                client.listen_again()

    def lose_state(self) -> None:
        self.memory._values.clear()
        self.world.note("lost state", server=self)

    def _note(self, client: Client, name: str, arguments: Any, found: Any) -> None:
        note = partial(self.world.note, process=client.process.name, server=self)
        if name == "decide":
            claims, requester = arguments
            buckets = [each.bucket for each in claims]
            if found.reason is not Reason.ALLOWED:
                note("denied", job=requester.job, reason=found.reason.value, by=buckets[found.claim])
            elif found.now_us == self.clock_us():
                holders = [each.algorithm.holder for each in claims]
                note("granted", job=requester.job, buckets=buckets, holders=holders, at_us=found.now_us)
        elif name in ("release", "settle", "return_units"):
            for each in arguments[0]:
                claim = each.claim if isinstance(each, Charge) else each
                if name != "release" or not is_workflow(claim.algorithm.holder):  # a workflow keeps its slot
                    note("returned", bucket=claim.bucket, holder=claim.algorithm.holder)
        elif name == "renew":
            for each, held in zip(arguments[0], found, strict=True):
                note("renewed", bucket=each.bucket, holder=each.algorithm.holder, held=held)
        elif name == "pause":
            note("paused", buckets=[each.bucket for each in arguments[0]], for_us=arguments[1])


def _verb(name: str) -> Any:
    """Return a method of a `Store` that takes one value, or a sequence of values."""

    def verb(self: Client, what: Any, now_us: int | None = None) -> Any:
        return self._call(name, what)

    return verb


class Client:
    """The connections of one process to the server: a `Store`."""

    def __init__(self, process: Any, server: Server) -> None:
        self.process, self.server = process, server
        self.cut_until = 0
        self._mail: deque[Callable[[], object]] = deque()
        self._reader: Task | None = None
        self._owner, self._on_wakes, self._on_missed = "", None, None
        self._on_wakes: Any
        self._on_missed: Any
        server.clients.append(self)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Make one round trip."""
        world, scheduler = self.server.world, self.server.world.scheduler
        task, found = scheduler.task, list[Any]()
        assert task is not None or scheduler.closed, "an event must not call the store"

        def answer(what: Any) -> None:
            if world.now >= self.cut_until and not found:
                found.append(what)
                scheduler.wake(task, world.random.randint(*world.plan.leg))

        if world.now >= self.cut_until:
            leg = world.random.randint(*world.plan.leg)
            world.at(world.now + leg, self.server.receive, self, name, arguments, options, answer)
        if not scheduler.block(TIMEOUT):
            found[:] = [StoreUnavailable("the store did not reply within 0.25 s")]
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Any:
        return self._call("decide", claims, requester, attempt=attempt)

    def look(self, claim: Any, owner: str, free: int, ids: Any = (), now_us: int | None = None) -> Any:
        return self._call("look", claim, owner, free, ids)

    def forget(self, claims: Any, ids: Any, owner: str = "", now_us: int | None = None, *, keep: bool = False) -> None:
        self._call("forget", claims, ids, owner, keep=keep)

    def pause(self, claims: Any, for_us: int | None, now_us: int | None = None, *, emptied: bool = False) -> None:
        self._call("pause", claims, for_us, emptied=emptied)

    def return_units(self, charges: Any, requester: Any, now_us: int | None = None) -> None:
        self._call("return_units", charges, requester)

    def where(self, claims: Any, id: str, now_us: int | None = None) -> Any:
        return self._call("where", claims, id)

    def list_waiting(self, claim: Any, most: int = 0) -> Any:
        return self._call("list_waiting", claim, most)

    settle, release, renew, slow, reset, clear_waitlists = map(
        _verb, ("settle", "release", "renew", "slow", "reset", "clear_waitlists")
    )

    def close(self) -> None: ...

    # Wake messages

    def listen(self, owner: str, on_wakes: Any, on_missed: Any) -> Callable[[], None]:
        self._owner, self._on_wakes, self._on_missed = owner, on_wakes, on_missed
        self._call("listen", owner, self._publish)
        if self._reader is None:
            self._reader = self.server.world.scheduler.spawn(self.process, self._read)
        return self.end_listening

    def listen_again(self) -> None:
        """
        Connect again after the connection was lost, when the server is available. Wake messages until then are lost.
        """
        if self._owner:
            world = self.server.world
            reconnect_us = (
                max(world.now, self.server.unavailable_until, self.cut_until) + world.random.randint(50, 500) * MS
            )
            world.at(reconnect_us, self._reconnect)

    def end_listening(self) -> None:
        self.server.memory._listeners.pop(self._owner, None)

    def _reconnect(self) -> None:
        world = self.server.world
        if self.process.dead:
            return
        if world.now < max(self.server.unavailable_until, self.cut_until):
            self.listen_again()
            return
        self.server.memory.listen(self._owner, self._publish)
        self._deliver(self._on_missed)

    def _publish(self, bucket: str, wakes: Sequence[Any]) -> None:
        world = self.server.world
        if world.now >= self.cut_until and world.random.random() >= self.server.wakes_lost:
            leg = world.random.randint(*world.plan.leg)
            world.at(world.now + leg, self._deliver, partial(self._on_wakes, bucket, wakes))

    def _deliver(self, mail: Callable[[], object]) -> None:
        self._mail.append(mail)
        if len(self._mail) == 1 and self._reader is not None:
            self.server.world.scheduler.wake(self._reader)

    def _read(self) -> None:
        while True:
            while self._mail:
                self._mail[0]()
                self._mail.popleft()
            self.server.world.scheduler.block()
