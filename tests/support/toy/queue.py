"""A job queue in the memory of one process, in 70 lines: the framework of `support.toy.adapter`."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Message", "Plugin", "Queue", "Task"]

_NUMBERS = itertools.count(1)


@dataclass
class Task:
    name: str
    function: Callable[..., Any]
    retries: int = 0
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Message:
    task: Task
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    id: int = field(default_factory=lambda: next(_NUMBERS))
    retries: int = 0
    expires_at: float = float("inf")
    result: tuple[str, Any] | None = None


class Plugin:
    """The interface of a plugin of a queue."""

    def declare(self, task: Task) -> None: ...

    def send(self, message: Message) -> None: ...

    def process(self, message: Message, run: Callable[[], None]) -> None:
        run()

    def failed(self, message: Message) -> None: ...


class Queue:
    """Runs each message in a thread, at its time."""

    def __init__(self, plugin: Plugin, threads: int = 2) -> None:
        self.tasks: dict[str, Task] = {}
        self.plugin, self.unfinished = plugin, 0
        self._heap: list[tuple[float, int, Message]] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def task(self, name: str, function: Callable[..., Any], retries: int = 0, **options: Any) -> None:
        task = Task(name, function, retries, options)
        self.plugin.declare(task)
        self.tasks[name] = task

    def send(self, name: str, *args: Any, expires: float = float("inf"), **options: Any) -> Message:
        message = Message(self.tasks[name], args, options, expires_at=time.time() + expires)
        self.plugin.send(message)
        self.put(message)
        return message

    def put(self, message: Message, delay: float = 0.0) -> None:
        """Deliver *message* after *delay* seconds."""
        with self._changed:
            self.unfinished += 1
            heapq.heappush(self._heap, (time.monotonic() + delay, next(_NUMBERS), message))
            self._changed.notify()

    def start(self) -> None:
        for thread in self._threads:
            if not thread.ident:
                thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (message := self._next()) is not None:
            if time.time() > message.expires_at:
                message.result = ("failed", TimeoutError())
            elif message.result is None:
                self._run(message)
            with self._changed:
                self.unfinished -= 1

    def _run(self, message: Message) -> None:
        def run() -> None:
            message.result = ("succeeded", message.task.function(*message.args))

        try:
            self.plugin.process(message, run)
        except Exception as error:
            self.plugin.failed(message)
            message.retries += 1
            if message.retries > message.task.retries:
                message.result = ("failed", error)
            else:
                self.put(message)

    def _next(self) -> Message | None:
        with self._changed:
            while not self._stopped:
                wait = self._heap[0][0] - time.monotonic() if self._heap else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(wait)
            return None
