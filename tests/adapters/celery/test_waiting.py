"""Tasks that a worker holds, in its main process: their state, order and timers, and what Celery counts as reserved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from support.celery.site import celery_site
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit._core.line import Place
from throttlekit.adapter import Ticket
from throttlekit_celery._host import worker_state
from throttlekit_celery._waiting import HeldTask, HeldTasks, State


class Consumer:
    """
    Takes up tasks, and fires no timer by itself: in `timers` are those of tasks, with their delays in `delays`, in
    `looks` the others.
    """

    def __init__(self) -> None:
        self.hub: Any = SimpleNamespace()
        self.qos: Any = SimpleNamespace(value=0)
        self.timer: Any = SimpleNamespace(call_after=self._after, cancel=lambda entry: None)
        self.timers: list[Callable[[], object]] = []
        self.delays: list[float] = []
        self.looks: list[Callable[[], object]] = []
        self.taken_up: list[Any] = []

    def _after(self, delay: float, call: Any, arguments: Any, priority: int = 0) -> Any:
        (self.timers if priority else self.looks).append(lambda: call(*arguments))
        if priority:
            self.delays.append(delay)
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that held tasks know."""
    now = [1000.0]
    monkeypatch.setattr("throttlekit_celery._waiting.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def make(consumer: Consumer, number: int, line: str = "", start: int = 0) -> HeldTask:
    """A task that stands in *line* from *start* on."""
    ticket = Ticket(limit_ref="its:limit", line=line, places={"its:limit": Place(1, start, number, 0, "")})
    held = HeldTask(consumer, Request(number), None, 0.0, ticket=ticket.write())
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
def test_a_task_that_has_lost_its_place_is_granted_before_it_was_expected(clock: list[float]) -> None:
    """Also where it was held meanwhile for another reason than its turn; and so is one that keeps its place."""
    consumer, tasks = Consumer(), HeldTasks(10)
    held = make(consumer, 1, "one", start=5)
    tasks.hold(held, 9.0, wakeable=True)
    tasks.wake("one")
    tasks.hold(held, 2.0, wakeable=True)
    assert held.entry is not None
    assert held.entry.expected == clock[0] + 9.0
    tasks.drop(held)
    tasks.hold(held, 1.0)  # the store did not answer
    tasks.drop(held)
    assert held.waited is not None
    assert held.waited.expected == clock[0] + 9.0
    held.ticket = make(consumer, 7, "one", start=8).ticket
    tasks.hold(held, 3.0, wakeable=True)
    assert held.entry.expected == math.inf


@pytest.mark.usefixtures("reserved")
def test_a_free_slot_wakes_the_first_of_its_line_once() -> None:
    """By its place, and not by when it is due. Not a task of another line, nor one that cannot be woken."""
    consumer, tasks = Consumer(), HeldTasks(10)
    late, first = make(consumer, 1, "one", start=9), make(consumer, 2, "one", start=5)
    other, deaf = make(consumer, 3, "two"), make(consumer, 4, "one")
    tasks.hold(late, 5.0, wakeable=True)
    tasks.hold(first, 9.0, wakeable=True)
    tasks.hold(other, 1.0, wakeable=True)
    tasks.hold(deaf, 1.0)
    tasks.wake("one")
    consumer.timers[1]()
    assert consumer.taken_up == [first.request], "its timer does nothing more"
    tasks.wake("one")
    tasks.wake("one")
    assert consumer.taken_up == [first.request, late.request]
    assert tasks.take_all(consumer) == [other, deaf]
    assert other.waited is not None
    assert other.waited.lane.name == "two"


@pytest.mark.usefixtures("reserved")
def test_the_first_of_each_line_asks_twice_a_second_how_far_it_has_moved(clock: list[float]) -> None:
    """Its instant was worked out when it was denied. A task that is due in a moment, or in no line, is left alone."""
    consumer, tasks = Consumer(), HeldTasks(10)
    behind, first = make(consumer, 1, "one", start=9), make(consumer, 2, "one", start=5)
    other, soon, none = make(consumer, 3, "two"), make(consumer, 4, "three"), make(consumer, 5)
    for held, delay in ((behind, 60.0), (first, 50.0), (other, 40.0), (soon, 0.51), (none, 30.0)):
        tasks.hold(held, delay, wakeable=True)
    clock[0] += 0.5
    (look,) = consumer.looks
    look()
    assert consumer.taken_up == [first.request, other.request]


@pytest.mark.usefixtures("reserved")
def test_no_more_ask_while_the_pool_is_busy(clock: list[float]) -> None:
    """Those that were taken up to ask have not asked yet: they wait for a process. The line behind them stays held."""
    consumer, tasks = Consumer(), HeldTasks(10)
    first, second = make(consumer, 1, "one"), make(consumer, 2, "one")
    for held in (first, second):
        tasks.hold(held, 60.0, wakeable=True)
    for _ in range(3):
        clock[0] += 0.5
        consumer.looks.pop()()
    assert consumer.taken_up == [first.request]
    tasks.hold(first, 60.0, wakeable=True)
    clock[0] += 0.5
    consumer.looks.pop()()
    assert consumer.taken_up == [first.request] * 2


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


@pytest.mark.usefixtures("reserved")
def test_a_task_behind_one_that_asked_in_vain_waits_as_much_longer(clock: list[float]) -> None:
    """Its own timer starts anew, and it is not taken up only to be denied."""
    consumer, tasks = Consumer(), HeldTasks(10)
    first, second = make(consumer, 1, "one", start=5), make(consumer, 2, "one", start=9)
    tasks.hold(first, 1.0, wakeable=True)
    tasks.hold(second, 2.0, wakeable=True)
    clock[0] += 1.0
    consumer.timers.pop(0)()
    tasks.hold(first, 3.0, wakeable=True)
    clock[0] += 1.0
    consumer.timers.pop(0)()
    assert consumer.taken_up == [first.request]
    assert second.due == 1005.0
    clock[0] += 2.0
    consumer.timers.pop(0)()
    clock[0] += 1.0
    consumer.timers.pop(0)()
    assert consumer.taken_up == [first.request, first.request, second.request]


@pytest.mark.usefixtures("reserved")
def test_tasks_whose_line_catches_up_are_due_sooner_again_as_each_comes_to_stand_first(clock: list[float]) -> None:
    """A pause of 100 s ends early. Their timers were set for its end: each starts anew, by the line as it is now."""
    consumer, tasks = Consumer(), HeldTasks(10)
    first, *others = (make(consumer, number, "one", start=number) for number in range(4))
    for number, held in enumerate((first, *others)):
        tasks.hold(held, 1.0 + number, wakeable=True)
    clock[0] += 1.0
    consumer.timers.pop(0)()
    tasks.hold(first, 100.0, wakeable=True)
    late = consumer.timers.pop()
    clock[0] += 3.0
    for _ in others:
        consumer.timers.pop(0)()
    assert [held.due for held in others] == [1102.0, 1103.0, 1104.0]
    assert tasks.late(first) == 0.0
    assert [tasks.late(held) for held in others] == [100.0] * 3
    late()
    tasks.hold(first, 1.0, wakeable=True)
    for held, before in zip(others, (first, *others), strict=False):
        consumer.timers.pop()()
        assert consumer.taken_up[-1] is before.request
        assert held.due == pytest.approx(before.due + 1.0, abs=0.05)
        assert consumer.delays[-1] == held.due - clock[0]


@pytest.mark.workers
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_line_that_had_fallen_behind_moves_on_with_the_first_that_is_admitted(
    redis_base: str, request: pytest.FixtureRequest, kind: str
) -> None:
    """A pause makes all that wait later, and ends before its time: they come at the limit's rate, on real workers."""
    tasks, limit, store = 60, TokenBucket("one", "50/s", burst=1), patient(f"{redis_base}/12")
    broker = redis_base if kind == "redis" else request.getfixturevalue("rabbitmq_url")
    told: dict[str, Any] = {"store": store, "rate": "50/s", "burst": 1, "install": {"parking": False}}
    with celery_site(kind, broker, redis_base, pool="threads", **told) as site, Limiter(store) as limiter:
        limiter.reset(limit)
        site.start()
        limiter.pause(limit, 3.0)
        for number in range(tasks):
            site.send("echo", number, ignore_result=True)
        wait_until(lambda: len(site.held()) == tasks, description="all wait")
        limiter.pause(limit, 120.0)

        def all_are_later() -> bool:
            until = datetime.now(timezone.utc) + timedelta(seconds=60)
            held = [datetime.fromisoformat(each["eta"]) for each in site.held()]
            return len(held) == tasks and min(held) > until

        wait_until(all_are_later, description="all are due when the pause is over")
        assert not site.ran("echo")
        limiter.resume(limit)
        wait_until(lambda: len(site.ran("echo")) == tasks, description="all ran, at the limit's rate", timeout=25)


@pytest.mark.usefixtures("reserved")
def test_a_task_that_was_parked_meanwhile_makes_no_other_wait_longer(clock: list[float]) -> None:
    """It is a delivery of its own: those that came since know as well as it how late the line is."""
    consumer, tasks = Consumer(), HeldTasks(10)
    parked, second = make(consumer, 1, "one", start=5), make(consumer, 2, "one", start=9)
    tasks.hold(parked, 1.0, wakeable=True)
    assert tasks.drop(parked)
    tasks.hold(second, 4.5, wakeable=True)
    tasks.hold(make(consumer, 1, "one", start=5), 4.0, wakeable=True)
    assert tasks.late(second) == 0.0


@pytest.mark.usefixtures("reserved")
def test_a_task_is_held_no_longer_than_its_broker_allows(clock: list[float]) -> None:
    """RabbitMQ ends the connection of a worker that holds a message for too long: a late line does not count then."""
    consumer, tasks = Consumer(), HeldTasks(10)
    first, second = make(consumer, 1, "one", start=5), make(consumer, 2, "one", start=9)
    tasks.hold(first, 1.0, wakeable=True, most=2.0)
    tasks.hold(second, 2.0, wakeable=True, most=2.0)
    clock[0] += 1.0
    consumer.timers.pop(0)()
    tasks.hold(first, 3.0, wakeable=True)
    clock[0] += 1.0
    consumer.timers.pop(0)()
    assert consumer.taken_up == [first.request, second.request]
