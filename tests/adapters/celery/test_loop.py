"""The worker's event loop under many tasks at once: kombu fires ten timers in a turn, and then polls."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous import Hub

from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import keep_loop_running
from throttlekit_celery._requeue import Copies


@pytest.fixture
def pipe() -> Iterator[int]:
    """A file with nothing to read: without a file, the loop does not poll."""
    with ExitStack() as stack:
        ends = os.pipe()
        for end in ends:
            stack.callback(os.close, end)
        yield ends[0]


def test_the_loop_does_not_sleep_while_timers_are_due(pipe: int) -> None:
    """
    The loop does not sleep while timers are due, for any number of them, and after the worker has connected again. Then
    it sleeps until the next one.
    """
    sleeps: list[float] = []
    fired: list[int] = []
    with closing(Hub()) as made:
        hub: Any = made
        hub.poller = SimpleNamespace(
            poll=sleeps.append, register=lambda *_: None, unregister=lambda *_: None, close=lambda: None
        )
        hub.add_reader(pipe, fired.append)
        for _ in range(2):
            keep_loop_running(SimpleNamespace(hub=hub))
        for number in range(25):
            hub.timer.call_after(-1, fired.append, (number,))
        hub.timer.call_after(3600, fired.append, (25,))
        loop = hub.create_loop()
        for _ in range(3):
            next(loop)
    assert (sorted(fired), sleeps[:2]) == (list(range(25)), [0, 0])
    assert sleeps[2] > 0


def test_a_worker_without_an_event_loop_is_not_changed() -> None:
    """Greenlets fire their timers themselves. A loop of another form is not changed either."""
    keep_loop_running(SimpleNamespace(hub=None))
    hub = SimpleNamespace(fire_timers=lambda propagate: 1)
    keep_loop_running(SimpleNamespace(hub=hub))
    assert hub.fire_timers(()) == 1


class Broker:
    """A RabbitMQ, with its channel and its producer. Before each message it reads the confirmations, as amqp does."""

    def __init__(self) -> None:
        self.transport = SimpleNamespace(driver_type="amqp")
        self.hostname, self.port, self.alt, self.transport_options = "localhost", 5672, list[str](), None
        self.events: dict[str, set[Callable[[int, bool], object]]] = defaultdict(set)
        self.default_channel = self.connection = self
        self.sent, self.is_slow = 0, False

    def clone(self, **_: Any) -> Broker:
        return self

    def confirm_select(self) -> None: ...

    def publish(self, *_: Any, **__: Any) -> None:
        if not self.is_slow:
            self.confirm()
        self.sent += 1

    def confirm(self) -> None:
        for callback in self.events["basic_ack"]:
            callback(self.sent, True)

    def drain_events(self, timeout: float) -> None:
        raise TimeoutError


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr("throttlekit_celery._requeue.Producer", lambda channel, **_: channel)
    return broker


class Copying:
    """A worker that puts tasks back, and the checks that it has scheduled."""

    def __init__(self, broker: Broker) -> None:
        self.checks, self.safe = list[Callable[[], object]](), list[bool]()
        app = SimpleNamespace(
            amqp=SimpleNamespace(queues={"jobs": SimpleNamespace(exchange=None)}),
            conf=SimpleNamespace(broker_read_url="amqp://", broker_write_url="amqp://"),
        )
        timer = SimpleNamespace(call_after=lambda _, call: self.checks.append(call))
        self.consumer = SimpleNamespace(app=app, timer=timer, connection=broker)
        self.copies = Copies(self.consumer)
        self.copies.start()

    def put_back(self, count: int) -> None:
        message = SimpleNamespace(
            body=b"", headers={}, properties={}, content_type="", content_encoding="", channel=None
        )
        for _ in range(count):
            held = HeldTask(SimpleNamespace(message=message, expires=None), None, 0.0, queue="jobs")
            self.copies.put_back(held, self.safe.append)


def test_many_copies_are_checked_by_one_timer(broker: Broker) -> None:
    """
    One timer checks all copies, including one whose confirmation is read as the next is sent, and in a worker that
    drops its timers.
    """
    worker = Copying(broker)
    copies, checks, safe = worker.copies, worker.checks, worker.safe
    worker.put_back(50)
    assert (len(safe), len(checks)) == (49, 1)
    copies.start()
    assert len(checks) == 2, "the worker may have dropped the first timer"
    for check in list(checks):
        check()
    assert len(checks) == 3, "one of two timers continues"
    broker.confirm()
    checks[2]()
    assert (len(safe), len(checks)) == (50, 3), "if all copies are confirmed, there is nothing to check"
    copies.start()
    assert len(checks) == 3
    worker.put_back(1)
    broker.confirm()
    copies.start()
    worker.put_back(1)
    assert len(checks) == 5, "the worker may have dropped the timer of a copy that is confirmed by now"


@pytest.mark.parametrize("confirmed_at", [8.0, 60.0])
def test_the_last_copy_has_the_whole_time_to_be_confirmed(
    broker: Broker, confirmed_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that stops waits for each copy equally long, however long it has taken to publish the others."""
    now = [0.0]
    monkeypatch.setattr("throttlekit_celery._requeue.time", SimpleNamespace(monotonic=lambda: now[0]))

    def drain_events(timeout: float) -> None:
        now[0] += timeout
        if now[0] < confirmed_at:
            raise TimeoutError
        broker.confirm()

    monkeypatch.setattr(broker, "drain_events", drain_events)
    worker, broker.is_slow = Copying(broker), True
    worker.put_back(1)
    now[0] = 4.0
    worker.put_back(1)
    worker.copies.wait_for_confirmations(5.0)
    assert now[0] == pytest.approx(min(confirmed_at, 9.0), abs=0.1)
    assert worker.safe == ([True, True] if confirmed_at < 9.0 else [])


def test_one_confirmation_confirms_all_copies_before_it(broker: Broker) -> None:
    """RabbitMQ may confirm several copies at once. A copy that is not confirmed would be sent again."""
    worker, broker.is_slow = Copying(broker), True
    worker.put_back(3)
    assert worker.safe == []
    broker.confirm()
    assert worker.safe == [True, True, True]
