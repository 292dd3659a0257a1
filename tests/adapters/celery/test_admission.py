"""A throttled task in the worker's main process: its wait and its end."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import celery
import pytest

from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit._engine.call import Call
from throttlekit._wiring import wiring_of
from throttlekit.adapter import WaitRules
from throttlekit_celery._admission import Admission
from throttlekit_celery._body import RunAgain
from throttlekit_celery._host import worker_state
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._requeue import ASKS_AT

PARTNER = TokenBucket("partner", "2/s", burst=1)


class Pool:
    """A pool that accepts any number of tasks. The test ends their bodies."""

    uses_semaphore, limit = False, 100

    def flush(self) -> None: ...


class Consumer:
    """A worker without an event loop. `turn` fires its timer."""

    def __init__(self, app: Any) -> None:
        self.app, self.hub, self.connection_errors, self.controller = app, None, (), SimpleNamespace()
        self.pool, self.initial_prefetch_count = Pool(), 4
        self.timer = SimpleNamespace(call_after=self._after, cancel=lambda entry: None)
        self.qos = SimpleNamespace(value=0)
        self.connection = SimpleNamespace(transport=SimpleNamespace(driver_type="memory"))
        queues = [SimpleNamespace(name="celery", queue_arguments=None)]
        self.task_consumer = SimpleNamespace(queues=queues, _active_tags={})
        self.calls: list[Callable[[], object]] = []

    def _after(self, _: float, call: Any, arguments: Any = (), priority: int = 0) -> None:
        self.calls.append(lambda: call(*arguments))

    def on_task_request(self, request: Any) -> None:
        request.execute_using_pool(self.pool)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def turn_until(self, condition: Callable[[], Any], description: str) -> None:
        def turn_and_check() -> Any:
            self.turn()
            return condition()

        wait_until(turn_and_check, description=description, timeout=5)


class Request:
    """A received task. `ran` is true after it was passed to the pool."""

    acknowledged = is_revoked = False
    expires: datetime | None = None
    worker_pid = None
    time_start = _apply_result = None
    on_accepted = on_success = on_timeout = None

    def __init__(self, task: Any, id: str) -> None:
        self.id, self.name, self.task = id, task.name, task
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.request_dict: dict[str, Any] = {}
        self.message = SimpleNamespace(headers={}, delivery_info={}, delivery_tag=id, channel=None)
        self.ran = False

    def revoked(self) -> bool:
        return self.is_revoked

    def send_event(self, *_: Any, **__: Any) -> None: ...

    def on_failure(self, *_: Any, **__: Any) -> None: ...

    def execute_using_pool(self, pool: Any, **_: Any) -> None:
        self.ran = True


@pytest.fixture
def admission(limiter: Limiter, reserved: Any) -> Iterator[Admission]:
    app: Any = celery.Celery("admission", set_as_current=False)
    app.task(_nothing, name="call")
    app.finalize()
    limits = TaskLimits(limiter, {"call": PARTNER})
    admission = Admission(app, limiter, limits, rules=WaitRules(), max_hold=None, max_held=100)
    yield admission
    for tasks in admission._held.values():
        tasks.close()
    app.close()


def _nothing() -> None: ...


@pytest.fixture
def consumer(admission: Admission) -> Consumer:
    consumer = Consumer(admission._app)
    admission.start(consumer)
    return consumer


def receive(admission: Admission, consumer: Consumer, id: str = "2") -> Request:
    request = Request(admission._app.tasks["call"], id)
    admission.receive(consumer, request)
    worker_state().task_reserved(request)
    consumer.on_task_request(request)
    return request


def ids_of_held(admission: Admission, consumer: Consumer) -> list[str]:
    return [held.request.id for held in admission._tasks_of(consumer)]


def ids_on_waitlist(limiter: Limiter) -> list[str]:
    """Return the ids on the waitlist, in order."""
    (claim,) = limiter.claims(Call([PARTNER], Job()))
    return [id for _, id in wiring_of(limiter).stores.shared.list_waiting(claim.claim, 20).first]


def test_a_denied_task_runs_when_it_is_woken(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """The worker holds the task until then. At the end of a pause, the store wakes it."""
    limiter.pause(PARTNER, 3600)
    request = receive(admission, consumer)
    assert ids_of_held(admission, consumer) == ["2"]
    assert not request.ran
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: request.ran, "the task has run")
    assert ids_of_held(admission, consumer) == []


def test_a_revoked_task_leaves_its_waitlist_at_once(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The worker finds the task among those that it holds. The next task runs as if the revoked one had never waited.
    """
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    limiter.pause(PARTNER, 3600)
    request = receive(admission, consumer)
    behind = receive(admission, consumer, "3")
    assert ids_on_waitlist(limiter) == ["2", "3"]
    request.is_revoked = True
    consumer.turn_until(lambda: ids_of_held(admission, consumer) == ["3"], "the task has left the waitlist")
    assert ids_on_waitlist(limiter) == ["3"]
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: behind.ran, "the next task has run")
    assert not request.ran


def test_an_acknowledged_task_that_waits_survives_a_lost_connection(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The task was acknowledged when its body began, got a 429, and was not put back yet. The broker does not deliver it
    again.
    """
    monkeypatch.setattr(admission._copies, "put_back", lambda *_: False)
    limiter.pause(PARTNER, 3600)
    request, other = receive(admission, consumer), receive(admission, consumer, "3")
    request.acknowledged = True
    admission.on_disconnect(consumer)
    limiter.resume(PARTNER)
    admission.start(consumer)
    consumer.turn_until(lambda: request.ran, "the task has run")
    assert not other.ran, "the broker delivers this task again"


@pytest.mark.parametrize("scope", ["global", "process"])
def test_a_task_that_its_pool_discards_keeps_no_slot(admission: Admission, limiter: Limiter, scope: Any) -> None:
    """After a lost connection, Celery discards tasks that no process has accepted. Their slots are not renewed."""
    slots, consumer = Concurrency(f"slots of {scope}", 1, lease=1, scope=scope), Consumer(admission._app)
    admission._app.task(_nothing, name="holds", throttle=slots, shared=False)
    admission.start(consumer)
    request = Request(admission._app.tasks["holds"], "2")
    admission.receive(consumer, request)
    consumer.on_task_request(request)
    assert request.ran
    admission.on_disconnect(consumer)
    assert limiter.peek(slots).remaining == 0
    assert len(admission._running._grants) == 1, "a pool of threads discards nothing"
    consumer.pool.uses_semaphore = True
    admission.on_disconnect(consumer)
    wait_until(lambda: limiter.peek(slots).remaining == 1, description="the slot is free", timeout=5)
    assert admission._running._grants == {}


def test_an_acknowledged_task_that_its_pool_discards_runs_again(admission: Admission, consumer: Consumer) -> None:
    """The broker no longer has a task that got a 429, so the worker keeps it until it has connected again."""
    consumer.pool.uses_semaphore = True
    request = receive(admission, consumer)
    request.acknowledged, request.ran = True, False
    admission.on_disconnect(consumer)
    admission.start(consumer)
    consumer.turn_until(lambda: request.ran, "the task has run")


def test_a_task_with_a_429_waits_and_runs_again(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """The task is the first on the waitlist, and its error does not end it."""
    request: Any = receive(admission, consumer)
    assert request.ran
    behind = receive(admission, consumer, "3")
    request.ran = False
    request.on_failure(SimpleNamespace(exception=RunAgain(0.0, True)))
    consumer.turn()
    assert sorted(ids_of_held(admission, consumer)) == ["2", "3"]
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: request.ran, "the task has run again")
    assert not behind.ran


def test_two_messages_with_one_id_both_run(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """Senders choose ids. The first task is not lost when the second is denied."""
    limiter.pause(PARTNER, 3600)
    first = receive(admission, consumer)
    second = Request(admission._app.tasks["call"], "2")
    second.message.delivery_tag = "another"
    admission.receive(consumer, second)
    consumer.on_task_request(second)
    consumer.turn_until(lambda: len(ids_of_held(admission, consumer)) == 2, "both tasks are held")
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: first.ran and second.ran, "both tasks have run")


def test_a_message_that_is_delivered_twice_runs_once(
    admission: Admission, limiter: Limiter, consumer: Consumer
) -> None:
    """
    After the visibility time-out, Redis delivers an unacknowledged message again, with the same tag. The later copy
    replaces the earlier one.
    """
    limiter.pause(PARTNER, 3600)
    first, second = receive(admission, consumer), receive(admission, consumer)
    consumer.turn_until(lambda: len(ids_of_held(admission, consumer)) == 1, "one task is held")
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: second.ran, "the task has run")
    assert not first.ran


def test_a_task_that_is_held_for_too_long_is_put_back(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The original is acknowledged after its copy is safe. If the copy is not safe, the worker keeps the task, and sends
    another copy.
    """
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    monkeypatch.setattr(admission, "_longest", 0.0)
    copies: list[Callable[[bool], None]] = []
    monkeypatch.setattr(admission._copies, "put_back", lambda held, done: not copies.append(done))
    limiter.pause(PARTNER, 3600)
    request: Any = receive(admission, consumer)
    acknowledged: list[int] = []
    request.message.ack_log_error = lambda *_: acknowledged.append(1)
    consumer.turn_until(lambda: copies, "a copy was sent")
    copies.pop()(False)
    consumer.turn_until(lambda: copies, "another copy was sent")
    assert (acknowledged, ids_of_held(admission, consumer)) == ([], ["2"])
    copies.pop()(True)
    assert (acknowledged, ids_of_held(admission, consumer)) == ([1], [])
    assert ids_on_waitlist(limiter) == ["2"], "the task keeps its position"


def test_a_task_whose_first_request_is_late_is_put_back(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a task that got a 429 with a long wait is not held for longer than other tasks."""
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    copies: list[Any] = []
    monkeypatch.setattr(admission._copies, "put_back", lambda held, _: not copies.append(held))
    request = Request(admission._app.tasks["call"], "2")
    request.message.headers[ASKS_AT] = time.time() + 7200
    admission.receive(consumer, request)
    consumer.on_task_request(request)
    (held,) = admission._tasks_of(consumer)
    held.received_at -= admission._longest + 1
    consumer.turn_until(lambda: copies == [held], "a copy was sent")


def test_an_error_of_celery_keeps_no_pool_slot_and_no_task(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, the result backend is unavailable as it stores that a task has expired. The task is tried again."""
    monkeypatch.setattr("throttlekit_celery._admission._TRY_AGAIN_AFTER", 0.0)
    released: list[str] = []
    consumer.controller._quick_release = lambda: released.append("slot")
    errors = [ConnectionError("away")]

    def revoked(request: Request) -> bool:
        if errors:
            raise errors.pop()
        return request.is_revoked

    monkeypatch.setattr(Request, "revoked", revoked)
    request = receive(admission, consumer)
    assert not request.ran
    assert "could not be ended" in caplog.text
    consumer.turn_until(lambda: request.ran, "the task has run")
    assert released == ["slot"]


def test_a_task_that_cannot_be_checked_stops_no_other_check(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revoked task leaves its waitlist, although the check of the one before it raises an error."""
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    limiter.pause(PARTNER, 3600)
    faulty, revoked = receive(admission, consumer), receive(admission, consumer, "3")
    monkeypatch.setattr(faulty, "revoked", lambda: 1 // 0)
    revoked.is_revoked = True
    consumer.turn_until(lambda: ids_of_held(admission, consumer) == ["2"], "the revoked task has left")
    assert ids_on_waitlist(limiter) == ["2"]


def test_a_task_that_has_ended_is_freed(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The message and the arguments of a task that has ended are freed at once. Python's garbage collector has nothing to
    find.
    """
    monkeypatch.setattr(Request, "on_success", lambda *_: None)
    request = receive(admission, consumer)
    assert request.ran
    gone = weakref.ref(request)
    ended: Any = request.on_success
    worker_state().task_ready(request)
    gc.disable()
    try:
        ended((False, None, 0.0))
        del request, ended
        assert gone() is None
    finally:
        gc.enable()
