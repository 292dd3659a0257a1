"""A copy that comes back with its ticket, in the worker's main process: how long it is held without asking."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import celery
import pytest

from throttlekit import Delivery, Job, Limiter, TokenBucket
from throttlekit.adapter import Run, Ticket, WaitRules
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock
from throttlekit_celery._admission import Gate
from throttlekit_celery._body import receipt_of
from throttlekit_celery._host import worker_state
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._worker import Settings

PARTNER = TokenBucket("partner", "1/h", burst=1)
OTHER = TokenBucket("other", "1/h", burst=1)
POOL: Any = SimpleNamespace(uses_semaphore=True)


class Consumer:
    """Holds the tasks that it is given to hold, in `held`; `turn` is the end of all that time."""

    def __init__(self, app: Any) -> None:
        self.app, self.hub, self.connection_errors, self.controller = app, None, (), SimpleNamespace()
        self.timer = SimpleNamespace(call_after=self._after, cancel=lambda entry: None)
        self.qos = SimpleNamespace(value=0)
        self.connection = SimpleNamespace(transport=SimpleNamespace(driver_type="memory"))
        self.task_consumer = SimpleNamespace(queues=[SimpleNamespace(name="celery", queue_arguments=None)])
        self.held: list[tuple[float, Callable[[], object]]] = []
        self.others: list[Callable[[], object]] = []

    def _after(self, delay: float, call: Any, arguments: Any = (), priority: int = 0) -> Any:
        if priority:
            self.held.append((delay, lambda: call(*arguments)))
        else:  # the look at the lines, and the turn of those that are to be put back
            self.others.append(lambda: call(*arguments))
        return SimpleNamespace()

    def on_task_request(self, request: Any) -> None:
        request.execute_using_pool(POOL)

    def turn(self) -> None:
        held, self.held = self.held, []
        for _, wake in held:
            wake()


class Request:
    """A task that was received with *ticket*; `ran` when it was given to the pool."""

    acknowledged = known_revoked = False
    expires: datetime | None = None
    on_accepted = on_success = on_failure = on_timeout = None

    def __init__(self, task: Any, ticket: Any) -> None:
        self.id, self.name, self.task = "2", task.name, task
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.request_dict: dict[str, Any] = {}
        self.message = SimpleNamespace(headers={"throttlekit": ticket}, delivery_info={})
        self.ran = False

    def revoked(self) -> bool:
        return False

    def send_event(self, *_: Any, **__: Any) -> None: ...

    def execute_using_pool(self, pool: Any, **_: Any) -> None:
        self.ran = True


@pytest.fixture
def reserved() -> Iterator[None]:
    """What Celery counts as reserved is the process's own."""
    known: Any = worker_state().reserved_requests
    before = list(known)
    yield
    known.clear()
    known.update(before)


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(MemoryStore(clock_us=FakeClock()))


@pytest.fixture
def gate(limiter: Limiter) -> Iterator[Gate]:
    app: Any = celery.Celery("rest", set_as_current=False)
    app.task(_nothing, name="call")
    limits = TaskLimits(limiter, {"call": PARTNER})
    yield Gate(app, limiter, limits, Settings(rules=WaitRules(), max_hold=None, max_held=100))
    app.close()


def _nothing() -> None: ...


def denied(limiter: Limiter, limit: TokenBucket) -> dict[str, Any]:
    """What the second of two jobs carries."""
    assert limiter.acquire(limit, job=Job(id="1", name="call"))
    ticket = limiter.acquire(limit, job=Job(id="2", name="call")).ticket
    assert ticket is not None
    return dict(ticket)


def received(gate: Gate, ticket: dict[str, Any] | None, *, expires: datetime | None = None) -> tuple[Consumer, Request]:
    app = gate._app
    app.finalize()
    consumer, request = Consumer(app), Request(app.tasks["call"], ticket)
    request.expires = expires
    gate.receive(sender=consumer, request=request)
    consumer.on_task_request(request)
    return consumer, request


@pytest.mark.usefixtures("reserved")
def test_a_copy_is_held_once_and_then_it_asks(gate: Gate, limiter: Limiter) -> None:
    """
    The store may have lost its line since, or use another clock: a task that asks passes, and one that does not would
    wait for a place that the store does not keep. So a task is held unasked once, for as long as a task may be held.
    """
    ticket = denied(limiter, PARTNER)
    limiter.reset(PARTNER)
    consumer, request = received(gate, ticket)
    assert [delay for delay, _ in consumer.held] == [pytest.approx(600.0, abs=1.0)]
    assert not request.ran
    denied(limiter, OTHER)  # so that the store's clock is known still
    consumer.turn()
    assert request.ran


@pytest.mark.usefixtures("reserved")
def test_a_place_that_is_kept_is_told_again(gate: Gate, limiter: Limiter) -> None:
    """It asks in between, and goes back to where it was."""
    consumer, request = received(gate, denied(limiter, PARTNER))
    consumer.turn()
    assert len(consumer.held) == 1
    assert not request.ran


@pytest.mark.usefixtures("reserved")
def test_a_copy_that_carries_its_place_is_not_put_back_for_a_later_instant(
    gate: Gate, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instant is another each time that it asks: as a copy for each it would go round and round."""
    put_back: list[Any] = []
    monkeypatch.setattr(gate._copies, "put_back", lambda held, *_: not put_back.append(held))
    consumer, _ = received(gate, denied(limiter, PARTNER))
    limiter.pause(PARTNER, 36_000)
    consumer.turn()
    (held,) = consumer.held
    assert held[0] == pytest.approx(600.0, abs=1.0)
    assert put_back == []
    monkeypatch.setattr(gate._unsaved, "_in_queue", lambda _: 0)
    consumer, _ = received(gate, None)
    for call in list(consumer.others):
        call()
    assert len(put_back) == 1, "one that carries no place is"


@pytest.mark.usefixtures("reserved")
def test_a_task_that_is_taken_up_meanwhile_is_not_put_back(
    gate: Gate, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gevent, other timers fire while the broker is asked how long the queue is: it would run twice."""
    limiter.acquire(PARTNER, job=Job(id="1", name="call"))
    consumer, request = received(gate, None)
    put_back: list[Any] = []

    def taken_up(_: str) -> int:
        limiter.reset(PARTNER)
        consumer.turn()
        return 0

    monkeypatch.setattr(gate._copies, "put_back", lambda held, *_: not put_back.append(held))
    monkeypatch.setattr(gate._unsaved, "_in_queue", taken_up)
    for call in list(consumer.others):
        call()
    assert request.ran
    assert put_back == []


@pytest.mark.usefixtures("reserved")
def test_a_place_that_the_worker_has_no_room_for_is_put_back_at_once(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fetches nothing past what it holds: to hold that too would keep all that come from being asked for."""
    put_back: list[Any] = []
    monkeypatch.setattr(gate._copies, "put_back", lambda held, *_: not put_back.append(held))
    ticket = denied(gate.limiter, PARTNER)
    received(gate, None)
    assert put_back == []
    monkeypatch.setattr(gate._held, "_max_held", 0)
    received(gate, ticket)
    received(gate, None)
    assert len(put_back) == 1, "one that carries its place is held"


@pytest.mark.usefixtures("reserved")
def test_a_task_with_a_max_wait_is_put_back_at_once(
    limiter: Limiter, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy asks when it comes: later its line may be late, and the task would end as one that waited too long."""
    limits = TaskLimits(limiter, {"call": PARTNER})
    patient = Gate(gate._app, limiter, limits, Settings(rules=WaitRules(max_wait=36_000), max_hold=None, max_held=100))
    put_back: list[Any] = []
    monkeypatch.setattr(patient._copies, "put_back", lambda held, *_: not put_back.append(held))
    limiter.acquire(PARTNER, job=Job(id="1", name="call"))
    received(patient, None)
    assert len(put_back) == 1


@pytest.mark.usefixtures("reserved")
def test_a_copy_says_how_late_its_line_is(gate: Gate, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the worker knows that puts it back, the one that receives it may not know. Its place stays as it is."""
    tickets: list[Any] = []
    monkeypatch.setattr(gate._copies, "put_back", lambda held, *_: not tickets.append(held.ticket))
    monkeypatch.setattr(gate._unsaved, "_in_queue", lambda _: 0)
    monkeypatch.setattr(gate._held, "late", lambda held: 5.0)
    limiter.acquire(PARTNER, job=Job(id="1", name="call"))
    consumer, _ = received(gate, None)
    for call in list(consumer.others):
        call()
    (ticket,) = map(Ticket.read, tickets)
    (place,) = ticket.places.values()
    assert ticket.due_us - place.due_us == 5_000_000


@pytest.mark.usefixtures("reserved")
def test_a_line_that_is_none_is_not_believed(
    gate: Gate, limiter: Limiter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender can write anything into a header: the task waits all the same."""
    monkeypatch.setattr("throttlekit_celery._saving._DURABLE_AFTER", 3600.0)  # the copy, without it, is not for here
    consumer, request = received(gate, {**denied(limiter, PARTNER), "line": ["none"]})
    assert [delay for delay, _ in consumer.held] == [pytest.approx(600.0, abs=1.0)]
    assert not request.ran
    assert not caplog.records


@pytest.mark.usefixtures("reserved")
def test_what_the_broker_delays_asks_when_it_comes(
    gate: Gate, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go back unasked, and come back, for as long as its ticket says."""
    monkeypatch.setattr(gate._host, "delays_natively", lambda held: True)
    ticket = denied(limiter, PARTNER)
    limiter.reset(PARTNER)
    denied(limiter, OTHER)
    gate.start(Consumer(gate._app))  # it knows the queue
    _, request = received(gate, ticket)
    assert request.ran


@pytest.mark.usefixtures("reserved")
def test_a_revoked_task_leaves_its_line_at_once(gate: Gate, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is due an hour after the first, and not two."""
    monkeypatch.setattr(gate._copies, "put_back", lambda *_: False)
    monkeypatch.setattr(Request, "revoked", lambda request: request.id == "2" and request.known_revoked)
    consumer, request = received(gate, denied(limiter, PARTNER))
    consumer.turn()
    behind = limiter.peek(PARTNER, job=Job(id="3", name="call"))
    assert round(behind.retry_after, -2) == 7200
    request.known_revoked = True
    consumer.turn()
    behind = limiter.peek(PARTNER, job=Job(id="3", name="call"))
    assert round(behind.retry_after, -2) == 3600


@pytest.mark.usefixtures("reserved")
def test_a_task_that_no_queue_has_survives_a_lost_connection(
    gate: Gate, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged as its body began, which met a 429, and not put back since: the broker does not deliver it again."""
    monkeypatch.setattr(gate._copies, "put_back", lambda *_: False)
    ticket = denied(limiter, PARTNER)
    consumer, request = received(gate, ticket)
    request.acknowledged = True
    consumer.turn()
    assert len(consumer.held) == 1
    consumer.held.clear()
    gate.disconnected(consumer)
    assert consumer.held == []
    gate.start(consumer)
    limiter.reset(PARTNER)
    consumer.turn()
    assert request.ran


@pytest.mark.usefixtures("reserved")
@pytest.mark.parametrize("aware", [True, False])
def test_a_task_that_expires_before_its_turn_takes_no_slot(gate: Gate, limiter: Limiter, aware: bool) -> None:
    """It is held until it expires, for Celery to end it, and the next task gets the slot."""
    first = denied(limiter, PARTNER)
    expires = datetime.now(timezone.utc if aware else None) + timedelta(seconds=100)
    consumer, _ = received(gate, None, expires=expires)
    assert [delay for delay, _ in consumer.held] == [pytest.approx(100.0, abs=1.0)]
    after = limiter.acquire(PARTNER, job=Job(id="3", name="call")).ticket
    assert after is not None
    assert after["slot"] - first["slot"] == pytest.approx(3_600_000_000, rel=0.01), "the next slot"


@pytest.mark.usefixtures("reserved")
def test_a_copy_that_expires_before_its_slot_asks_when_it_comes(gate: Gate, limiter: Limiter) -> None:
    """To be held unasked would keep it past its end."""
    ticket = denied(limiter, PARTNER)
    limiter.reset(PARTNER)
    denied(limiter, OTHER)
    _, request = received(gate, ticket, expires=datetime.now(timezone.utc) + timedelta(seconds=100))
    assert request.ran


@pytest.mark.usefixtures("reserved")
def test_a_task_that_has_ended_is_gone(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its message and its arguments, at once: it leaves nothing for Python's collector to look for."""
    monkeypatch.setattr(Request, "on_success", lambda *_: None)
    _, request = received(gate, None)
    assert request.ran
    gone = weakref.ref(request)
    ended: Any = request.on_success
    gc.disable()
    try:
        ended((False, None, 0.0))
        del request, ended
        assert gone() is None
    finally:
        gc.enable()


def test_a_body_with_a_429_is_deferred_within_its_expiry() -> None:
    """The pool knows when its task expires, and books nothing behind that."""
    run = Run(Job(id="1"), (PARTNER,), None, Delivery(expires_in=50.0))
    *_, expires = receipt_of(run)["delivery"]
    assert expires - time.time() == pytest.approx(50.0, abs=1.0)
    *_, never = receipt_of(Run(Job(id="1"), (PARTNER,), None, Delivery()))["delivery"]
    assert never == math.inf
