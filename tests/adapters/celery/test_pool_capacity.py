"""Tasks that wait for a free thread or process of a pool, in the worker's main process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.asynpool import SCHED_STRATEGY_FAIR, SCHED_STRATEGY_FCFS
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import worker_state
from throttlekit_celery._pool_capacity import PoolCapacity


class Consumer:
    """Runs nothing by itself. Scheduled calls are collected in `later`."""

    def __init__(self, pool: Any) -> None:
        self.capacity, self.pool = PoolCapacity(self), pool
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
        if request.held is None:
            request.execute_using_pool(self.pool)
        elif self.capacity.admit_or_queue(request.held):
            self.ran.append(request)

    def receive_without_limits(self) -> Any:
        """Receive a task without limits, which Celery counts as reserved, too."""
        request: Any = _Request()
        request.held, request.execute_using_pool = None, lambda pool: self.ran.append(request)
        self.capacity.record_received(request)
        worker_state().reserved_requests.add(request)
        self.capacity.keep_order(request)
        self.on_task_request(request)
        return request

    def receive(self) -> Any:
        """Receive another task, which Celery counts as reserved."""
        request: Any = _Request()
        request.held = HeldTask(request, _nothing, 0.0)
        self.capacity.record_received(request)
        worker_state().reserved_requests.add(request)
        self.on_task_request(request)
        return request


class _Request:
    """A request that can be referenced weakly, like Celery's."""

    held: HeldTask | None


def _nothing() -> None: ...


@pytest.fixture
def consumer(reserved: Any) -> Consumer:
    """A consumer whose pool has a single thread."""
    return Consumer(SimpleNamespace(limit=1))


def test_a_waiting_task_starts_as_soon_as_a_thread_is_free(consumer: Consumer) -> None:
    """The end of a body wakes the loop at once, before the next periodic check."""
    first, second, third = (consumer.receive() for _ in range(3))
    assert consumer.ran == [first]
    assert len(consumer.later) == 1
    worker_state().reserved_requests.discard(first)
    consumer.capacity.on_slot_freed()
    consumer.soon.pop()()
    assert consumer.ran == [first, second]
    worker_state().reserved_requests.discard(second)
    consumer.capacity.on_slot_freed()
    consumer.soon.pop()()
    assert consumer.ran == [first, second, third]
    assert len(consumer.later) == 1, "one periodic check is scheduled, and no second one"
    consumer.later.pop()()
    assert not consumer.later


def test_no_call_is_made_if_no_task_waits(consumer: Consumer) -> None:
    """A worker whose threads keep up has no additional cost."""
    consumer.receive()
    consumer.capacity.on_slot_freed()
    assert not consumer.soon


def test_tasks_without_limits_do_not_overtake_a_task_that_waits_for_a_thread(consumer: Consumer) -> None:
    """They pass at once if no task waits. Otherwise all tasks begin in the order in which they were received."""
    tasks = [consumer.receive_without_limits(), consumer.receive_without_limits()]
    assert consumer.ran == tasks
    assert consumer.capacity.count_free(0) == 1, "one woken task at a time waits among the other tasks"
    tasks += [consumer.receive(), *(consumer.receive_without_limits() for _ in range(3)), consumer.receive()]
    assert consumer.ran == tasks[:2]
    for ended, begun in ((0, 2), (1, 6), (2, 6), (3, 6), (4, 6), (5, 7)):
        worker_state().reserved_requests.discard(tasks[ended])
        consumer.later.pop()()
        assert consumer.ran == tasks[:begun]
    assert not consumer.later


def test_tasks_that_wait_as_the_worker_connects_are_checked(consumer: Consumer) -> None:
    """The worker may have dropped the timer of their check, and all tasks that it receives wait behind them."""
    tasks = [consumer.receive(), consumer.receive()]
    consumer.later.clear()
    tasks.append(consumer.receive_without_limits())
    assert not consumer.later
    consumer.capacity.start()
    worker_state().reserved_requests.discard(tasks[0])
    consumer.later.pop()()
    assert consumer.ran == tasks


def test_a_task_without_limits_is_freed_as_it_begins(consumer: Consumer) -> None:
    """It is not part of a reference cycle, so its arguments use no memory after its end."""
    request = consumer.receive_without_limits()
    assert set(vars(request)) == {"held"}


def test_a_prefork_pool_without_an_event_loop_has_the_processes_that_it_has_now(reserved: Any) -> None:
    """Such a pool has no record of busy processes. With autoscale, its `limit` is the least number of processes."""
    consumer = Consumer(SimpleNamespace(uses_semaphore=True, limit=1, num_processes=2))
    first, second, _ = (consumer.receive() for _ in range(3))
    assert consumer.ran == [first, second]


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
    later = Consumer(consumer.pool)
    second = later.receive()
    assert (consumer.ran, later.ran) == ([first], [second])


class Controller:
    """Celery's controller of a prefork pool: it passes a request to the pool when its semaphore has a slot."""

    pool_putlocks = True

    def __init__(self, processes: int) -> None:
        self.semaphore = LaxBoundedSemaphore(processes)


class Prefork(Consumer):
    """
    A worker with a prefork pool.

    Attributes:
        busy: Celery's record of busy processes. Each request has a process, unless *fcfs*: then one process has all.
        tasks: The requests that the pool has.
    """

    def __init__(self, processes: int, *, fcfs: bool = False) -> None:
        strategy = SCHED_STRATEGY_FCFS if fcfs else SCHED_STRATEGY_FAIR
        workers = SimpleNamespace(
            _busy_workers=set[Any](), outbound_buffer=deque[Any](), _cache=dict[Any, Any](), sched_strategy=strategy
        )
        super().__init__(SimpleNamespace(num_processes=processes, _pool=workers))
        self.controller: Any = Controller(processes)
        self.busy, self.tasks, self.semaphore = workers._busy_workers, workers._cache, self.controller.semaphore
        self.fcfs = fcfs

    def on_task_request(self, request: Any) -> None:
        self.semaphore.acquire(self._process, request)

    def _process(self, request: Any) -> None:
        if self.capacity.take_process(request.held) and self.capacity.admit_or_queue(request.held):
            self.ran.append(request)
            self.busy.add("first" if self.fcfs else request)
            self.tasks[request] = request

    def end(self, request: Any) -> None:
        """End a body, as billiard does: its process is free before its slot is released, and its task is after that."""
        self.busy.discard("first" if self.fcfs else request)
        self.semaphore.release()
        del self.tasks[request]


@pytest.mark.parametrize("event", ["connection lost", "pool has grown", "pool has shrunk", "process replaced"])
def test_a_slot_without_a_free_process_starts_no_task(reserved: Any, event: str) -> None:
    """
    Celery's semaphore counts busy processes as free after some events. A task waits until a process is free, and the
    semaphore is right from then on.
    """
    prefork = Prefork(4)
    bodies = [prefork.receive() for _ in range(4)]
    processes = 4
    if event == "connection lost":
        prefork.semaphore.clear()
    elif event == "pool has grown":
        processes = prefork.pool.num_processes = 6
        prefork.semaphore.grow(2)
    elif event == "pool has shrunk":
        prefork.end(bodies.pop())
        processes = prefork.pool.num_processes = 3
        prefork.semaphore.shrink()
        prefork.semaphore.release()  # as the process ends
    else:
        prefork.semaphore.release()
    later = [prefork.receive() for _ in range(20)]
    assert len(prefork.busy) == processes
    assert prefork.capacity.count_free(0) == 1, "one woken task at a time waits among the other tasks"
    while prefork.busy:
        prefork.end(next(iter(prefork.busy)))
        if event == "process replaced":
            prefork.semaphore.release()  # again, as its successor starts
        assert len(prefork.busy) <= processes
    assert prefork.ran[4:] == later, "no task has lost its place"
    assert prefork.semaphore.value == prefork.capacity.count_free(0) == processes


def test_processes_that_autoscale_can_start_are_free(reserved: Any) -> None:
    """Held tasks do not count as tasks of the pool, so Celery ends its processes: otherwise none would be woken."""
    prefork = Prefork(0)
    prefork.controller.autoscaler = SimpleNamespace(max_concurrency=3)
    assert (prefork.capacity.count_free(0), prefork.capacity.count_free(1)) == (3, 2)
    prefork.pool.num_processes = 3
    prefork.busy.update(range(3))
    assert prefork.capacity.count_free(0) == 0


def test_a_process_with_several_tasks_leaves_no_other_free(reserved: Any) -> None:
    """
    With `app.Worker(optimization="fcfs")`, Celery may write all tasks to one process, and counts it as free when the
    first of them ends. Each task counts, so no held task is woken that would have to wait for a process.
    """
    prefork = Prefork(4, fcfs=True)
    bodies = [prefork.receive() for _ in range(4)]
    assert prefork.capacity.count_free(0) == 0
    prefork.end(bodies.pop(0))
    assert prefork.capacity.count_free(0) == 1
    bodies += [prefork.receive() for _ in range(8)]
    assert prefork.ran == [*prefork.ran[:1], *bodies[:4]]
    for done in range(1, 9):
        prefork.end(bodies.pop(0))
        assert len(prefork.ran) == min(5 + done, 12)
    assert prefork.capacity.count_free(0) == 1


def test_after_a_lost_connection_at_most_one_task_waits_for_a_process(reserved: Any) -> None:
    """With "fcfs", too, although Celery's record has one busy process."""
    prefork = Prefork(4, fcfs=True)
    bodies = [prefork.receive() for _ in range(4)]
    prefork.semaphore.clear()
    later = [prefork.receive() for _ in range(8)]
    assert prefork.ran[4:] == later[:1]
    assert prefork.capacity.count_free(0) == 1, "one woken task at a time waits among the other tasks"
    for body in bodies:
        prefork.end(body)
    assert prefork.ran[4:] == later[:4]


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
