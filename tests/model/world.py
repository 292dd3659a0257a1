"""A small world of jobs, processes and limits around the shipped decision: possible events, and the rules that hold."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from throttlekit import Concurrency, TokenBucket
from throttlekit._core.answer import Caller, Reason, Requester, Waited
from throttlekit._core.claim import StoreClaim
from throttlekit._core.limit.base import Limit
from throttlekit._core.storage_keys import bucket_name, holder_name
from throttlekit._core.waitlist import PATIENCE_US, WOKEN_US, Wake
from throttlekit.stores import Lease
from throttlekit.stores.memory import MemoryStore

__all__ = ["SECOND", "Explored", "Rules", "World", "explore"]

SECOND = 1_000_000
TICK_US = SECOND // 2
BEGIN_US = 1_800_000_000 * SECOND
FREE = 2


class Rules(NamedTuple):
    """What may happen in a world. Each number is how often it may happen in one history."""

    limits: tuple[Limit, ...]
    jobs: int = 3
    ticks: int = 5
    deaths: int = 0
    """A process dies with the jobs that it holds, and another process gets their messages."""
    purges: int = 0
    """A waiting job's message is deleted, and the store is not notified."""
    losses: int = 0
    """The store loses its state."""
    leaves: int = 0
    """A waiting job expires, and its process notifies the store."""
    back_us: int = 0
    """How far the server's clock steps back, once."""


class _Store(MemoryStore):
    def _epoch(self) -> str:
        return "e"


@dataclass
class World:
    """
    One state.

    Attributes:
        waits: The jobs that were denied and have not been granted since, in order, with the process that holds each.
        on: The limit on whose waitlist each of them is.
        woken_at: The jobs that were woken and have not requested since, with the time of the wake.
        missed: The jobs that did not request in time, so that others may be granted ahead of them.
        hung: The processes of these jobs: they were skipped, and so were their other jobs.
        began_at: The times at which jobs began, since the store lost its state.
        running: The jobs that hold slots, and since when.
    """

    rules: Rules
    now_us: int = BEGIN_US
    store: _Store = field(default_factory=_Store)
    left: dict[str, int] = field(default_factory=dict)
    new: int = 0
    waits: dict[str, str] = field(default_factory=dict)
    on: dict[str, str] = field(default_factory=dict)
    woken_at: dict[str, int] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    began_at: list[int] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = self.rules
        self.left = {"tick": rules.ticks, "death": rules.deaths, "purge": rules.purges, "loss": rules.losses}
        self.left |= {"leave": rules.leaves, "back": int(rules.back_us > 0)}
        for owner in ("p", "q"):
            self.listen(owner)

    def listen(self, owner: str) -> None:
        def on_wakes(bucket: str, wakes: Sequence[Wake]) -> None:
            self.on_wakes(wakes)

        self.store._listeners[owner] = on_wakes  # pyright: ignore[reportPrivateUsage]

    def copy(self) -> World:
        store = self.store
        listeners, store._listeners = store._listeners, {}  # pyright: ignore[reportPrivateUsage]
        lock, store._lock = store._lock, None  # type: ignore[assignment]  # pyright: ignore
        clock, store._clock_us = store._clock_us, None  # type: ignore[assignment]  # pyright: ignore
        other = copy.deepcopy(self)
        for each in (store, other.store):
            each._lock, each._clock_us = lock, clock  # pyright: ignore[reportPrivateUsage]
        store._listeners = listeners  # pyright: ignore[reportPrivateUsage]
        for owner in listeners:
            other.listen(owner)
        return other

    @property
    def key(self) -> str:
        """Equal for equal states."""
        return repr(
            (
                self.now_us,
                self.new,
                self.waits,
                self.woken_at,
                sorted(self.missed),
                sorted(self.began_at),
                self.running,
                self.left,
                sorted(self.dead),
                sorted(self.store._values.items()),  # pyright: ignore[reportPrivateUsage]
            )
        )

    # Events

    def steps(self) -> Iterator[tuple[str, Any]]:
        """Return the events that are possible now: the name of a method and its argument."""
        if self.new < self.rules.jobs:
            yield from (("request_new", owner) for owner in ("p", "q") if owner not in self.dead)
        for job, at_us in self.woken_at.items():
            if at_us <= self.now_us:
                yield "request", job
        yield from (("end", job) for job in self.running)
        for what, verb in (("tick", "tick"), ("loss", "lose"), ("back", "step_back")):
            if self.left[what]:
                yield verb, None
        if self.left["death"]:
            yield "die", "p"
        yield from (("purge", job) for job in self.waits if self.left["purge"])
        yield from (("leave", job) for job in self.waits if self.left["leave"])

    def request_new(self, owner: str) -> None:
        self.new += 1
        self._request(f"job{self.new}", owner)

    def request(self, job: str) -> None:
        self._request(job, self.waits[job])

    def end(self, job: str) -> None:
        since_us = self.running.pop(job)
        leases = [Lease(each.bucket, each.algorithm, since_us) for each in self._claims(job) if each.algorithm.holder]
        self.store.release(leases, self.now_us)
        self.look_all()

    def tick(self, _: None = None) -> None:
        """Time passes, and the processes that are due to look do so."""
        self.left["tick"] -= 1
        self.pass_time()

    def pass_time(self) -> None:
        self.now_us += TICK_US
        missed = {job for job, at_us in self.woken_at.items() if self.now_us >= at_us + PATIENCE_US}
        self.missed |= missed
        self.hung |= {self.waits[job] for job in missed}
        self.look_all()

    def lose(self, _: None = None) -> None:
        self.left["loss"] -= 1
        self.store._values.clear()  # pyright: ignore[reportPrivateUsage]
        self.began_at, self.running = [], {}
        self.missed |= {*self.waits}

    def step_back(self, _: None = None) -> None:
        self.left["back"] = 0
        self.now_us -= self.rules.back_us

    def die(self, owner: str) -> None:
        self.left["death"] -= 1
        self.dead.add(owner)
        del self.store._listeners[owner]  # pyright: ignore[reportPrivateUsage]
        own = [job for job, of in self.waits.items() if of == owner]
        self.missed |= {*own}
        for job in own:
            self.woken_at.pop(job, None)
            self._request(job, "q")

    def purge(self, job: str) -> None:
        self.left["purge"] -= 1
        self.woken_at.pop(job, None)
        del self.waits[job]

    def leave(self, job: str) -> None:
        self.left["leave"] -= 1
        owner = self.waits.pop(job)
        self.woken_at.pop(job, None)
        self.store.forget(self._claims(job), [job], owner, self.now_us)

    # Continuation

    def look_all(self) -> None:
        """Let each process poll each waitlist, as it does periodically; jobs unknown to the store request again."""
        for owner in ("p", "q"):
            if owner in self.dead:
                continue
            for claim in self._claims(""):
                own = [job for job, of in self.waits.items() if of == owner and self.on[job] == claim.bucket]
                found = self.store.look(claim, owner, FREE, own, self.now_us)
                self.on_wakes(found.wakes)
                for job in found.again if not found.epoch else ():
                    self.woken_at.setdefault(job, self.now_us)

    def on_wakes(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            if wake.id in self.waits:
                self.woken_at.setdefault(wake.id, self.now_us + wake.in_us)

    def settle(self) -> None:
        """From now on no other event happens: each waiting job must begin."""
        for _ in range(2 * (WOKEN_US // SECOND) // 100 + 8 * self.rules.jobs):
            if not self.waits:
                return
            for job in sorted(self.woken_at, key=lambda job: self.woken_at[job]):
                if job in self.woken_at and self.woken_at[job] <= self.now_us:
                    self._request(job, self.waits[job])
            for job in [*self.running]:
                self.end(job)
            self.pass_time()
        self.broken.append(f"{[*self.waits]} never begin")

    # Rules

    def _request(self, job: str, owner: str) -> None:
        self.woken_at.pop(job, None)
        requester = Requester(Caller.JOB, job, owner, FREE, waited=Waited(denials=int(job in self.waits)))
        claims = self._claims(job)
        answer = self.store.decide(claims, requester, self.now_us)
        for _, wake in answer.wakes:
            self.on_wakes([wake])
        if answer.reason is not Reason.ALLOWED:
            assert answer.kept is not None
            self.waits[job], self.on[job] = owner, claims[answer.kept.claim].bucket
            if any(self.store.where([claim], job, self.now_us) is None for claim in claims):
                self.broken.append(f"{job} has no position on a list")
            return
        before = [each for each, of in self.waits.items() if int(each[3:]) < int(job[3:]) and of not in self.hung]
        if any(each not in self.missed for each in before) and job not in self.missed:
            self.broken.append(f"{job} is granted before {before}")
        self.waits.pop(job, None)
        self._begin(job, answer.retry_us)

    def _begin(self, job: str, at_us: int) -> None:
        self.began_at.append(at_us)
        for limit in self.rules.limits:
            if isinstance(limit, TokenBucket):
                for from_us in self.began_at:
                    within = [each for each in self.began_at if from_us <= each <= at_us]
                    most = limit.burst + (at_us - from_us) * limit.amount // limit.period_us
                    if len(within) > most:
                        self.broken.append(f"{len(within)} of {most} within {at_us - from_us} us")
            elif len(self.running) >= limit.amount:
                self.broken.append(f"{len(self.running) + 1} of {limit.amount} slots are taken")
        if any(isinstance(limit, Concurrency) for limit in self.rules.limits):
            self.running[job] = self.now_us

    def _claims(self, job: str) -> list[StoreClaim]:
        return [
            StoreClaim(
                bucket_name(limit.name, "", limit.fingerprint),
                limit.bind(1, 0, holder_name(job or "nobody", 0, BEGIN_US) if isinstance(limit, Concurrency) else ""),
            )
            for limit in self.rules.limits
        ]


class Explored(NamedTuple):
    """The result of a search: the number of states, and the first history that breaks a rule."""

    states: int
    broken: tuple[str, list[tuple[str, Any]]] | None
    kinds: set[str]


def explore(rules: Rules, most: int) -> Explored:
    """Visit states, the nearest first, until all or *most* are visited. From each of them all jobs must end."""
    first = World(rules)
    seen, kinds = {first.key}, set[str]()
    queue: deque[tuple[World, list[tuple[str, Any]]]] = deque([(first, [])])
    while queue and len(seen) < most:
        world, trace = queue.popleft()
        for verb, argument in [*world.steps()]:
            after = world.copy()
            getattr(after, verb)(argument)
            if after.broken:
                return Explored(len(seen), (after.broken[0], [*trace, (verb, argument)]), kinds)
            if after.key in seen:
                continue
            seen.add(after.key)
            kinds.add(verb)
            end = after.copy()
            end.settle()
            if end.broken:
                return Explored(len(seen), (end.broken[0], [*trace, (verb, argument)]), kinds)
            queue.append((after, [*trace, (verb, argument)]))
    return Explored(len(seen), None, kinds)
