"""The toy adapter keeps every promise of an adapter; its code is the example of docs/write-an-adapter.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

from support.toy.adapter import Throttle
from support.toy.queue import Message, Queue
from throttlekit.testing import AdapterConformance
from throttlekit.testing.adapter_site import JOBS, AdapterSite, End, Settings, note_failure, perform

_CURRENT = ContextVar[Message]("message")


class _Watched(Throttle):
    """Makes the message available to bodies, and reports failed runs to the suite."""

    def process(self, message: Message, run: Callable[[], None]) -> None:
        _CURRENT.set(message)
        super().process(message, run)

    def failed(self, message: Message) -> None:
        note_failure(*message.args)


class ToySite(AdapterSite):
    slots = 2

    def __init__(self, settings: Settings) -> None:
        self.limiter = settings.limiter("memory://")
        throttle = _Watched(self.limiter, **settings.options())
        self.queue = throttle.queue = Queue(throttle, threads=self.slots)
        for name, kind in JOBS.items():
            self.queue.task(name, _job, retries=kind.retries, **kind.options())

    def start(self) -> None:
        self.queue.start()

    def enqueue(self, kind: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Message:
        return self.queue.send(kind, *arguments, **options)

    def id_of(self, job: Message) -> int:
        return job.id

    def end(self, job: Message) -> End | None:
        if job.result is None:
            return None
        outcome, value = job.result
        return End(outcome, error=type(value).__name__) if outcome == "failed" else End(outcome, value)

    def left(self) -> int:
        return self.queue.unfinished

    def cancel(self, job: Message) -> None:
        job.result = ("cancelled", None)

    def declare(self, **options: Any) -> None:
        self.queue.task("declared", lambda key: None, **options)


def _job(key: str, notes: str, name: str, steps: list[str]) -> str:
    message = _CURRENT.get()
    return perform(key, notes, name, steps, {"id": message.id, "options": message.options, "retries": message.retries})


class TestToy(AdapterConformance):
    unsupported: ClassVar[Mapping[str, str]] = {
        "a_denial_loses_nothing": "the queue is in the memory of its workers, and ends with them",
        "a_killed_worker_frees_its_lease": "the queue is in the memory of its workers, and ends with them",
        "a_denial_keeps_dependents": "no job follows another",
    }

    @contextmanager
    def make_site(self, settings: Settings) -> Iterator[ToySite]:
        site = ToySite(settings)
        try:
            yield site
        finally:
            site.queue.stop()
            site.limiter.close()
