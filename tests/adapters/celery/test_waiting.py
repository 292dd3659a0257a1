"""Tasks that a worker holds in its main process: their state, Celery's reserved requests, and the prefetch count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from support.celery.site import CelerySite
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_celery._held_task import HeldTask, State
from throttlekit_celery._host import worker_state
from throttlekit_celery._loop_calls import LoopCalls
from throttlekit_celery._pool_capacity import PoolCapacity
from throttlekit_celery._waiting import HeldTasks


class Qos:
    """A prefetch count."""

    def __init__(self) -> None:
        self.value, self.max_prefetch = 4, 0

    def increment_eventually(self) -> None:
        self.value += 1

    def decrement_eventually(self) -> None:
        self.value -= 1


class Consumer:
    """A worker without an event loop. `turn` fires its timer."""

    on_task_message = ()

    def __init__(self, transport: str = "redis") -> None:
        self.hub, self.controller, self.qos = None, SimpleNamespace(), Qos()
        self.pool, self.initial_prefetch_count = SimpleNamespace(limit=2), 4
        self.connection = SimpleNamespace(transport=SimpleNamespace(driver_type=transport))
        self.timer = SimpleNamespace(call_after=self._after)
        self.calls: list[Callable[[], object]] = []
        self.started: list[Any] = []

    def _after(self, _: float, call: Any, arguments: Any = ()) -> None:
        self.calls.append(lambda: call(*arguments))

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def on_task_request(self, request: Any) -> None:
        self.started.append(request)


class Request:
    """A request that can be referenced weakly, like Celery's."""

    acknowledged = False

    def __init__(self, number: int) -> None:
        self.id = str(number)


@pytest.fixture
def make(reserved: Any, limiter: Limiter) -> Iterator[Callable[..., HeldTasks]]:
    """Return a function that makes the held tasks of a consumer."""
    made: list[HeldTasks] = []

    def make(consumer: Any, max_held: int = 100) -> HeldTasks:
        made.append(HeldTasks(consumer, limiter, PoolCapacity(consumer), max_held, lambda held: False))
        made[-1].start()
        return made[-1]

    yield make
    for tasks in made:
        tasks.close()


def received(number: int) -> HeldTask:
    held = HeldTask(Request(number), None, float(number))
    worker_state().task_reserved(held.request)
    return held


def test_celery_counts_a_task_as_reserved_except_while_it_is_held(make: Any, reserved: Any) -> None:
    """The state of a task shows which part of the worker has it."""
    consumer = Consumer()
    tasks, held = make(consumer), received(1)
    assert (held.state, set(reserved)) == (State.RESERVED, {held.request})
    tasks.hold(held, 5.0)
    assert (held.state, set(reserved)) == (State.HELD, set())
    tasks._start(held.id, held)
    consumer.turn()
    assert (held.state, set(reserved)) == (State.RESERVED, {held.request})
    assert consumer.started == [held.request]
    held.set_state(State.RUNNING)
    held.set_state(State.GONE)
    assert set(reserved) == set()
    held.set_state(State.ENDED)
    assert set(reserved) == set(), "a task that has ended is not reserved again"


def test_the_prefetch_count_is_one_higher_for_each_task_up_to_max_held(make: Any) -> None:
    """The count is reduced again when a task is started or removed."""
    consumer = Consumer()
    tasks = make(consumer, max_held=3)
    held = [received(n) for n in range(4)]
    for each in held:
        tasks.hold(each, 5.0)
    assert consumer.qos.value == 4 + 3
    tasks._start(held[0].id, held[0])
    consumer.turn()
    assert consumer.qos.value == 4 + 2
    for each in held[1:]:
        tasks.forget(each)
    assert consumer.qos.value == 4


def test_tasks_that_cannot_be_checked_delay_no_other_check(make: Any) -> None:
    """
    One check ends after 100 errors, and the next one begins with the other tasks. In any order of the tasks, each
    of the 500 that fail has failed once after 5 checks, so the sixth reaches all others.
    """
    consumer, checked = Consumer(), list[int]()
    tasks = make(consumer, max_held=1000)
    fails = {str(number) for number in range(0, 1000, 2)}

    def check(held: HeldTask) -> bool:
        checked.append(int(held.request.id))
        if held.request.id in fails:
            raise OSError("the result backend is away")
        return False

    tasks._check = check
    for number in range(1000):
        tasks.hold(received(number), 5.0)
    for _ in range(6):
        consumer.turn()
        errors = sum(number % 2 == 0 for number in checked)
        assert errors <= 100
        tasks._checked_at = 0.0
        first, checked[:] = {*checked}, []
    assert {each for each in first if each % 2} == {*range(1, 1000, 2)}


def test_a_task_that_is_woken_before_it_is_held_starts_once(make: Any) -> None:
    """The waker has its own thread, and can be faster than the worker's thread."""
    consumer = Consumer()
    tasks, held = make(consumer), received(1)
    tasks._start(held.id, held)
    tasks.hold(held, 5.0)
    assert (list(tasks), consumer.qos.value) == ([], 4)
    consumer.turn()
    consumer.turn()
    assert consumer.started == [held.request]


def test_a_task_that_was_woken_as_the_connection_broke_is_not_started(make: Any) -> None:
    """
    The broker delivers it again. An acknowledged task is delivered to no other worker, and this worker holds it again.
    """
    consumer = Consumer()
    tasks, held = make(consumer), received(1)
    tasks.hold(held, 5.0)
    tasks._start(held.id, held)
    assert tasks.take_all() == [held]
    consumer.turn()
    assert consumer.started == []


def test_free_slots_exclude_those_of_woken_tasks(make: Any, reserved: Any) -> None:
    """The store wakes at most as many tasks as there are free slots."""
    consumer = Consumer()
    tasks = make(consumer)
    assert tasks._free() == 2
    held = received(1)
    tasks._capacity.record_received(held.request)
    assert tasks._free() == 1, "the task is in the pool"
    tasks.hold(held, 5.0)
    assert tasks._free() == 2
    tasks._start(held.id, held)
    assert tasks._free() == 1, "the task was woken"


def test_a_fixed_prefetch_window_grows_with_the_held_tasks(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    RabbitMQ fixes the prefetch count of a consumer. The worker replaces the consumer each time that the number of held
    tasks doubles, and when it shrinks.
    """
    windows: list[int] = []
    monkeypatch.setattr("throttlekit_celery._waiting.consume_again", lambda _, prefetch: windows.append(prefetch))
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    consumer: Any = Consumer("amqp")
    consumer.qos_global = False
    tasks = make(consumer, max_held=1000)
    held = [received(n) for n in range(100)]
    for each in held:
        tasks.hold(each, 5.0)
        consumer.turn()
    assert windows == [6, 10, 18, 34, 66]
    assert consumer.qos.value == 4
    for each in held:
        tasks.forget(each)
    consumer.turn()
    assert windows[5:] == [4]


def test_tasks_that_arrive_while_a_window_grows_widen_it_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ delivers to one queue's consumer while the worker waits for the reply about another's."""
    windows: list[int] = []

    def consume_again(_: Any, prefetch: int) -> None:
        windows.append(prefetch)
        if len(windows) == 1:
            for n in range(1, 13):
                tasks.hold(received(n), 5.0)

    monkeypatch.setattr("throttlekit_celery._waiting.consume_again", consume_again)
    consumer: Any = Consumer("amqp")
    consumer.qos_global = False
    tasks = make(consumer, max_held=1000)
    for n in (0, 13):
        tasks.hold(received(n), 5.0)
        consumer.turn()
    consumer.turn()
    assert windows == [6, 18], "then 14 tasks are held"


def test_calls_of_other_threads_wake_the_event_loop() -> None:
    """
    A pipe that the hub reads wakes the loop. Calls that were made without a connection run when the worker is connected
    again.
    """
    readers: dict[int, Callable[[], object]] = {}
    hub = SimpleNamespace(add_reader=lambda fd, call: readers.update({fd: call}), remove=readers.pop)
    calls, made = LoopCalls(SimpleNamespace(hub=hub)), list[int]()
    calls.call(lambda: made.append(1))
    calls.start()
    ((_, read),) = readers.items()
    read()
    assert made == [1]
    calls.call(lambda: 1 // 0)
    calls.call(lambda: made.append(2))
    read()
    assert made == [1, 2]
    calls.close()
    assert readers == {}
    calls.call(lambda: made.append(3))
    calls.run()
    assert made == [1, 2, 3]


@pytest.mark.workers
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_waiting_tasks_run_if_a_pause_ends_before_its_time(make_site: Any, redis_base: str, kind: str) -> None:
    """
    A pause delays all waiting tasks, and then ends before its time. The tasks run at the limit's rate, on real workers.
    """
    tasks, limit, store = 60, TokenBucket("one", "50/s", burst=1), patient(f"{redis_base}/12")
    site: CelerySite = make_site(kind, pool="threads", store=store, rate="50/s", burst=1)
    with Limiter(store) as limiter:
        limiter.reset(limit)
        site.start()
        limiter.pause(limit, 120.0)
        for number in range(tasks):
            site.send("echo", number, ignore_result=True)
        wait_until(lambda: len(site.held()) == tasks, description="all tasks wait")
        until = datetime.now(timezone.utc) + timedelta(seconds=60)
        assert min(datetime.fromisoformat(each["eta"]) for each in site.held()) > until
        assert not site.ran("echo")
        limiter.resume(limit)
        wait_until(
            lambda: len(site.ran("echo")) == tasks, description="all tasks have run, at the limit's rate", timeout=25
        )


@pytest.mark.workers
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_tasks_without_limits_do_not_stop_those_with_limits(make_site: Any, pool: str) -> None:
    """Tasks that were denied once run long before the last of many tasks without limits."""
    site: CelerySite = make_site(pool=pool, denials=1, delay=0.3)
    site.start()
    for _ in range(20):
        site.send("free_sleep", 0.1, ignore_result=True)
    limited = [site.send("echo", number) for number in range(5)]
    for _ in range(150):
        site.send("free_sleep", 0.1, ignore_result=True)
    assert [result.get(timeout=60) for result in limited] == list(range(5))
    assert len(site.ran("free_sleep")) < 150
