"""
Virtual time for the shipped code: each of its threads is a greenlet, and one clock jumps from event to event.

`load` imports throttlekit with modules `time`, `threading`, `random` and `os` whose clocks, threads, locks and random
bytes are those of the current `Scheduler`. So the shipped wakers, breakers, heartbeats and pauses run unchanged, and
nothing depends on the machine: a seed has one history. One greenlet runs at a time. Another one may continue when the
code waits, and, at random, when it takes a lock.
"""

from __future__ import annotations

import heapq
import importlib
import os
import pkgutil
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

__all__ = ["EPOCH_US", "MS", "SECOND", "Host", "Scheduler", "Task", "load"]

MS, SECOND = 1_000, 1_000_000
EPOCH_US = 1_800_000_000_000_000
"""The wall clock's time at the start of a run."""

PREEMPTED = 0.05
"""The probability that a thread that takes a lock is interrupted, for up to `LONGEST_INTERRUPTION`."""
LONGEST_INTERRUPTION = 300


class Host:
    """A process, in which threads run. A dead process runs no more; a process that hangs continues later."""

    def __init__(self) -> None:
        self.dead, self.hangs_until, self.wall_offset = False, 0, 0


class Task:
    """A virtual thread."""

    __slots__ = ("greenlet", "host", "joined", "over", "thread", "ticket")

    def __init__(self, host: Host) -> None:
        self.host, self.ticket, self.over, self.thread = host, 0, False, None
        self.joined: list[Task] = []
        self.greenlet: Any = None


class Scheduler:
    """The clock and the events of one run. The last scheduler that was created is `Scheduler.current`."""

    current: Scheduler

    def __init__(self, seed: int) -> None:
        self.random, self.now, self.task, self.closed = random.Random(seed), 0, None, False
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number, self._hub, self._tasks = 0, getcurrent(), list[Task]()
        self.task: Task | None
        Scheduler.current = self

    def at(self, at_us: int, what: Callable[..., object], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_us, self._number, what, arguments))

    def run(self, until_us: int, is_over: Callable[[], bool]) -> None:
        while self._events and self._events[0][0] <= until_us and not is_over():
            self.now, _, what, arguments = heapq.heappop(self._events)
            what(*arguments)

    def close(self) -> None:
        """End all threads."""
        self.closed = True
        for task in self._tasks:
            if not task.over:
                task.greenlet.throw(GreenletExit)
        self._events.clear()

    # Threads

    def spawn(self, host: Host, function: Callable[..., object], *arguments: Any) -> Task:
        task = Task(host)

        def run(_: object) -> None:
            try:
                function(*arguments)
            finally:
                task.over = True
                for each in task.joined:
                    self.wake(each)

        if not self.closed:
            task.greenlet = greenlet(run, self._hub)
            self._tasks.append(task)
            self.wake(task)
        return task

    def block(self, for_us: int | None = None) -> bool:
        """Let the current thread wait until it is woken, or for *for_us*. Return whether it was woken."""
        if self.closed or self.task is None:
            raise GreenletExit
        task = self.task
        if for_us is not None:
            self.at(self.now + max(0, for_us), self._resume, task, task.ticket, False)
        woken: bool = self._hub.switch()
        return woken

    def wake(self, task: Task, in_us: int = 0) -> None:
        self.at(self.now + in_us, self._resume, task, task.ticket, True)

    def preempt(self) -> None:
        if self.task is not None and not self.closed and self.random.random() < PREEMPTED:
            self.block(self.random.randrange(LONGEST_INTERRUPTION))

    def _resume(self, task: Task, ticket: int, woken: bool) -> None:
        if ticket != task.ticket or task.over or task.host.dead:
            return
        if task.host.hangs_until > self.now:
            self.at(task.host.hangs_until, self._resume, task, ticket, woken)
            return
        task.ticket += 1
        self.task = task
        task.greenlet.switch(woken)
        self.task = None


class Lock:
    """`threading.Lock`: waiting threads get it in their order."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: Any = None
        self._depth = 0
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = Scheduler.current
        if scheduler.closed:
            return True
        scheduler.preempt()
        me = scheduler.task or scheduler
        if self._owner is None:
            self._owner, self._depth = me, 1
        elif self.reentrant and self._owner is me:
            self._depth += 1
        elif not blocking:
            return False
        else:
            assert scheduler.task is not None, "an event must not wait for a lock"
            self._waiting.append(scheduler.task)
            scheduler.block()  # `release` makes the first waiting task the owner
        return True

    def release(self) -> None:
        scheduler = Scheduler.current
        self._depth -= 1
        if self._depth > 0 or scheduler.closed:
            return
        self._owner = self._waiting.popleft() if self._waiting else None
        if self._owner is not None:
            self._depth = 1
            scheduler.wake(self._owner)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self._owner is not None


class RLock(Lock):
    reentrant = True


class Condition:
    """`threading.Condition`, which creates its lock."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = Scheduler.current
        task = scheduler.task
        assert task is not None, "an event must not wait"
        self._waiting.append(task)
        self._lock.release()
        woken = scheduler.block(None if timeout is None else round(timeout * SECOND))
        if task in self._waiting:
            self._waiting.remove(task)
        self._lock.acquire()
        return woken

    def notify(self, n: int = 1) -> None:
        for task in self._waiting[:n]:
            self._waiting.remove(task)
            Scheduler.current.wake(task)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    def __init__(self) -> None:
        self._set, self._changed = False, Condition()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return self._set or self._changed.wait(timeout) or self._set


class Thread:
    """`threading.Thread`: it runs in the process that starts it, and ends with that process."""

    def __init__(self, target: Any = None, args: Any = (), name: str = "", daemon: bool = False, **_: object) -> None:
        self._target, self._args, self.name, self._task = target, args, name, None
        self._task: Task | None

    def start(self) -> None:
        scheduler = Scheduler.current
        if scheduler.task is not None:
            self._task = scheduler.spawn(scheduler.task.host, self._target, *self._args)
            self._task.thread = self

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.over

    def join(self, timeout: float | None = None) -> None:
        scheduler = Scheduler.current
        if self.is_alive() and scheduler.task is not None:
            self._task.joined.append(scheduler.task)  # type: ignore[union-attr]
            scheduler.block(None if timeout is None else round(timeout * SECOND))


def _monotonic_ns() -> int:
    return Scheduler.current.now * 1000


def _time_ns() -> int:
    scheduler = Scheduler.current
    offset = 0 if scheduler.task is None else scheduler.task.host.wall_offset
    return (EPOCH_US + scheduler.now + offset) * 1000


def _sleep(seconds: float) -> None:
    Scheduler.current.block(round(seconds * SECOND))


class _Module:
    """A module of the standard library in which some names are virtual."""

    def __init__(self, real: Any, **names: Any) -> None:
        self._real = real
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


VIRTUAL = {
    "time": _Module(
        time,
        monotonic_ns=_monotonic_ns,
        time_ns=_time_ns,
        sleep=_sleep,
        monotonic=lambda: _monotonic_ns() / 1e9,
        perf_counter=lambda: _monotonic_ns() / 1e9,
        time=lambda: _time_ns() / 1e9,
    ),
    "threading": _Module(
        threading,
        Lock=Lock,
        RLock=RLock,
        Condition=Condition,
        Event=Event,
        Thread=Thread,
        current_thread=lambda: None if Scheduler.current.task is None else Scheduler.current.task.thread,
        get_ident=lambda: id(Scheduler.current.task),
    ),
    "random": _Module(random, uniform=lambda low, high: Scheduler.current.random.uniform(low, high)),
    "os": _Module(os, urandom=lambda n: Scheduler.current.random.randbytes(n)),
}


def load() -> None:
    """
    Import throttlekit again, on virtual time, for the rest of this process. Call this before other modules import it.
    Modules that need another package and are not part of the engine are not imported.
    """
    _import_all()  # this also imports all modules of the standard library that it uses, unchanged
    for name in [each for each in sys.modules if each.partition(".")[0] == "throttlekit"]:
        del sys.modules[name]
    real = {name: sys.modules[name] for name in VIRTUAL}
    sys.modules.update(VIRTUAL)  # type: ignore[arg-type]
    try:
        _import_all()
    finally:
        sys.modules.update(real)


def _import_all() -> None:
    for package in (
        "throttlekit",
        "throttlekit.adapter",
        "throttlekit._core",
        "throttlekit._engine",
        "throttlekit._util",
    ):
        for each in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            if package != "throttlekit" or not each.ispkg:
                importlib.import_module(each.name)
    importlib.import_module("throttlekit.stores.memory")
