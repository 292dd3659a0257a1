"""Tasks that a worker holds, in its main process: their state, their order, and what Celery counts as reserved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from throttlekit.adapter import Ticket
from throttlekit_celery._host import worker_state
from throttlekit_celery._waiting import HeldTask, HeldTasks, State


class Consumer:
    """Takes up tasks, and fires no timer by itself: those that were set are in `timers`."""

    def __init__(self) -> None:
        self.hub: Any = SimpleNamespace()
        self.qos: Any = SimpleNamespace(value=0)
        self.timer: Any = SimpleNamespace(call_after=self._after, cancel=lambda entry: None)
        self.timers: list[Callable[[], object]] = []
        self.taken_up: list[Any] = []

    def _after(self, _: float, call: Any, arguments: Any, **__: Any) -> Any:
        self.timers.append(lambda: call(*arguments))
        return SimpleNamespace()

    def on_task_request(self, request: Any) -> None:
        self.taken_up.append(request)


class Request:
    """Like Celery's it can be referred to weakly."""

    def __init__(self, number: int) -> None:
        self.id = str(number)


@pytest.fixture
def reserved() -> Iterator[Any]:
    """What Celery counts as reserved is the process's own."""
    known: Any = worker_state().reserved_requests
    before = list(known)
    known.clear()
    yield known
    known.clear()
    known.update(before)


def make(consumer: Consumer, number: int, lane: str = "") -> HeldTask:
    held = HeldTask(consumer, Request(number), None, 0.0, ticket=Ticket(lane=lane).write())
    worker_state().task_reserved(held.request)
    return held


def test_celery_counts_a_task_as_reserved_but_for_the_time_it_is_held(reserved: Any) -> None:
    """Its state says which part of the worker has it."""
    consumer, tasks = Consumer(), HeldTasks(10)
    held = make(consumer, 1)
    assert (held.state, set(reserved)) == (State.RESERVED, {held.request})
    tasks.hold(held, 5.0)
    assert (held.state, set(reserved)) == (State.HELD, set())
    consumer.timers.pop()()
    assert (held.state, set(reserved)) == (State.RESERVED, {held.request})
    assert consumer.taken_up == [held.request]
    held.becomes(State.RUNNING)
    held.becomes(State.GONE)
    assert set(reserved) == set()
    held.becomes(State.ENDED)
    assert set(reserved) == set(), "what has ended is not reserved again"


@pytest.mark.usefixtures("reserved")
def test_a_free_slot_wakes_the_first_of_its_lane_once() -> None:
    """Not a task of another lane, nor one that cannot be woken; its timer does nothing more."""
    consumer, tasks = Consumer(), HeldTasks(10)
    late, first, other, deaf = (make(consumer, n, lane) for n, lane in enumerate(["one", "one", "two", "one"]))
    tasks.hold(late, 9.0, wakeable=True)
    tasks.hold(first, 5.0, wakeable=True)
    tasks.hold(other, 1.0, wakeable=True)
    tasks.hold(deaf, 1.0)
    tasks.wake("one")
    consumer.timers[1]()
    assert consumer.taken_up == [first.request]
    tasks.wake("one")
    tasks.wake("one")
    assert consumer.taken_up == [first.request, late.request]
    assert tasks.take_all(consumer) == [other, deaf]


@pytest.mark.usefixtures("reserved")
def test_a_task_that_is_dropped_is_not_taken_up() -> None:
    """And those that a lost connection takes away neither."""
    consumer, tasks = Consumer(), HeldTasks(10)
    dropped, taken = make(consumer, 1), make(consumer, 2)
    tasks.hold(dropped, 1.0)
    tasks.hold(taken, 1.0)
    tasks.drop(dropped)
    tasks.drop(dropped)
    assert tasks.take_all(consumer) == [taken]
    for fire in consumer.timers:
        fire()
    assert consumer.taken_up == []
