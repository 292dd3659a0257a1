"""Tasks that wait for a free thread of a pool, in the worker's main process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import worker_state
from throttlekit_celery._pool_capacity import PoolCapacity


class Consumer:
    """Runs nothing by itself. Scheduled calls are collected in `later`."""

    def __init__(self, capacity: PoolCapacity, pool: Any) -> None:
        self.capacity, self.pool = capacity, pool
        self.hub: Any = SimpleNamespace(call_soon=self._call_soon)
        self.timer: Any = SimpleNamespace(call_after=self._after)
        self.soon: list[Callable[[], object]] = []
        self.later: list[Callable[[], object]] = []
        self.ran: list[Any] = []

    def _call_soon(self, call: Callable[[], object]) -> None:
        self.soon.append(call)

    def _after(self, _: float, call: Callable[[], object]) -> None:
        self.later.append(call)

    def on_task_request(self, request: Any) -> None:
        if self.capacity.admit_or_queue(request.held, self.pool):
            self.ran.append(request)

    def receive(self) -> Any:
        """Receive another task, which Celery counts as reserved."""
        request: Any = _Request()
        request.held = HeldTask(self, request, _nothing, 0.0)
        self.capacity.record_received(self, request)
        worker_state().reserved_requests.add(request)
        self.on_task_request(request)
        return request


class _Request:
    """A request that can be referenced weakly, like Celery's."""

    held: HeldTask


def _nothing() -> None: ...


@pytest.fixture
def consumer(reserved: Any) -> Consumer:
    """A consumer whose pool has a single thread."""
    return Consumer(PoolCapacity(), SimpleNamespace(limit=1))


def test_a_waiting_task_starts_as_soon_as_a_thread_is_free(consumer: Consumer) -> None:
    """The end of a body wakes the loop at once, before the next periodic check."""
    first, second, third = (consumer.receive() for _ in range(3))
    assert consumer.ran == [first]
    assert len(consumer.later) == 1
    worker_state().reserved_requests.discard(first)
    consumer.capacity.on_slot_freed(consumer)
    consumer.soon.pop()()
    assert consumer.ran == [first, second]
    worker_state().reserved_requests.discard(second)
    consumer.capacity.on_slot_freed(consumer)
    consumer.soon.pop()()
    assert consumer.ran == [first, second, third]
    assert len(consumer.later) == 1, "one periodic check is scheduled, and no second one"
    consumer.later.pop()()
    assert not consumer.later


def test_no_call_is_made_if_no_task_waits(consumer: Consumer) -> None:
    """A worker whose threads keep up has no additional cost."""
    consumer.receive()
    consumer.capacity.on_slot_freed(consumer)
    assert not consumer.soon


def test_requests_of_another_worker_use_no_thread_of_this_one(consumer: Consumer) -> None:
    """
    Celery's list of reserved requests belongs to the process. It can have requests of two embedded workers, or of an
    earlier one.
    """
    others = [_Request() for _ in range(5)]
    worker_state().reserved_requests.update(others)
    first, second = consumer.receive(), consumer.receive()
    assert consumer.ran == [first], "this worker's own request has its thread"
    worker_state().reserved_requests.discard(first)
    consumer.later.pop()()
    assert consumer.ran == [first, second]


def test_requests_of_an_earlier_worker_of_the_app_use_no_thread(consumer: Consumer) -> None:
    """A test suite starts one worker after the other. Celery keeps a request whose end the pool has not reported."""
    first = consumer.receive()
    later = Consumer(consumer.capacity, consumer.pool)
    second = later.receive()
    assert (consumer.ran, later.ran) == ([first], [second])


def test_a_body_can_end_while_the_reserved_requests_are_read(
    consumer: Consumer, reserved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread removes its request from Celery's list while the worker reads that list."""
    first = consumer.receive()
    reads = iter([RuntimeError("Set changed size during iteration"), None])

    def read(_: Any) -> Iterator[Any]:
        if (error := next(reads)) is not None:
            raise error
        return iter([])

    monkeypatch.setattr(type(reserved), "__iter__", read)
    second = consumer.receive()
    monkeypatch.undo()
    assert consumer.ran == [first, second]
