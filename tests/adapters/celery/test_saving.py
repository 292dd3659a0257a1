"""Tasks whose places are in no message yet: put back a few at a time, so that no new task stands behind many copies."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from throttlekit_celery._saving import Unsaved
from throttlekit_celery._waiting import HeldTask, State


class Worker:
    """Its timers fire by `turn` only; its broker has `lengths` messages in each queue, and may be `broken`."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        self.timer: Any = SimpleNamespace(call_after=self._after)
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.lengths: dict[str, int | None] = {}
        self.looks = 0
        self.broken = False
        self.saved: list[HeldTask] = []
        self.unsaved = Unsaved(self._in_queue, self._put_back)

    def _after(self, delay: float, call: Any, arguments: Any) -> None:
        self.timers.append((delay, lambda: call(*arguments)))

    def _in_queue(self, name: str) -> int | None:
        self.looks += 1
        if self.broken:
            raise OSError
        return self.lengths.get(name, 0)

    def _put_back(self, held: HeldTask) -> bool:
        self.saved.append(held)
        held.state = State.GONE
        return not self.broken

    def hold(self, queue: str | None = "celery", due: float = 100.0) -> HeldTask:
        held = HeldTask(self, SimpleNamespace(id="1"), None, 0.0, queue=queue, state=State.HELD, due=due)
        self.unsaved.add(held)
        return held

    def turn(self, late: float = 0.0) -> float:
        """Let the one timer fire, *late* or in time; return its delay."""
        ((delay, call),) = self.timers
        self.timers.clear()
        self.clock[0] += delay + late
        call()
        return delay


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker, and the time that it knows."""
    now = [0.0]
    monkeypatch.setattr("throttlekit_celery._saving.time", SimpleNamespace(monotonic=lambda: now[0]))
    return Worker(now)


def test_a_queue_gets_few_copies_at_a_time(worker: Worker) -> None:
    """As many as it has room for, in the order of coming; a queue that is long gets none until it is short again."""
    tasks = [worker.hold() for _ in range(15)]
    worker.lengths["celery"] = 10
    worker.turn()
    assert worker.saved == []
    worker.lengths["celery"] = 8
    worker.turn()
    assert worker.saved == tasks[:2]
    worker.lengths["celery"] = 0
    worker.turn()
    worker.turn()
    assert worker.saved == tasks
    assert worker.timers == [], "nothing is left to do"


def test_a_long_queue_holds_up_no_other(worker: Worker) -> None:
    """Each queue has its turn."""
    worker.lengths["long"] = 1_000
    worker.hold("long")
    short = worker.hold("short")
    worker.turn()
    worker.turn()
    assert worker.saved == [short]


def test_a_queue_whose_length_is_not_known_yet_is_asked_again_soon(worker: Worker) -> None:
    """RabbitMQ answers when it can, and the worker's loop goes on meanwhile. The queue keeps its turn."""
    worker.lengths["celery"] = None
    first, other = worker.hold(), worker.hold("other")
    worker.turn()
    worker.lengths["celery"] = 0
    assert worker.turn() == 0.01
    assert worker.saved == [first]
    assert worker.turn() == 0.1
    assert worker.saved == [first, other]


def test_a_task_that_waits_no_longer_or_not_for_long_is_left_alone(worker: Worker) -> None:
    """Also where its queue stays long for hours: those that have run meanwhile are forgotten. Nothing is asked then."""
    worker.lengths["celery"] = 1_000
    gone, soon, late = worker.hold(), worker.hold(due=100.0), worker.hold(due=200.0)
    gone.state = State.RUNNING
    worker.turn(late=80.0)
    assert soon.state is State.HELD
    worker.turn()
    unsaved: Any = worker.unsaved
    assert [len(tasks) for tasks in unsaved._queues.values()] == [1]
    worker.turn(late=100.0)
    worker.turn()
    assert (worker.saved, worker.timers, worker.looks) == ([], [], 1)
    assert late.state is State.HELD


def test_a_worker_that_is_behind_puts_nothing_back(worker: Worker) -> None:
    """Its loop has more to do than it can: tasks are due, and each copy is more work."""
    held = worker.hold()
    for _ in range(10):
        worker.turn(late=0.06)
    assert (worker.saved, worker.looks) == ([], 0)
    worker.turn(late=0.06)
    assert worker.saved == [held], "a timer may always be late"


def test_a_broker_with_errors_is_left_alone_for_a_second(worker: Worker) -> None:
    """A task that could not be put back is added again by the gate, which holds it meanwhile."""
    first, second = worker.hold(), worker.hold()
    worker.broken = True
    worker.turn()
    assert worker.turn() == 1.0
    assert worker.saved == []
    worker.broken = False
    worker.turn()
    assert worker.saved == [first, second]


def test_a_worker_that_connects_anew_begins_anew(worker: Worker) -> None:
    """It has forgotten its timers, and holds nothing; an old timer that fires all the same does nothing."""
    worker.hold()
    old = worker.timers.pop()
    worker.unsaved.clear()
    new = worker.hold()
    old[1]()
    assert worker.saved == []
    worker.turn()
    assert worker.saved == [new]


def test_a_task_of_an_unknown_queue_is_held_only(worker: Worker) -> None:
    """There is no queue to put it back into."""
    worker.hold(None)
    assert worker.timers == []
