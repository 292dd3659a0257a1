"""A throttled task in the worker's main process: its wait and its end."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import celery
import celery.signals
import pytest
from celery.exceptions import TaskRevokedError

from support.waiting import wait_until
from throttlekit import Concurrency, Job, Limiter, TokenBucket
from throttlekit._engine.call import Call
from throttlekit._wiring import wiring_of
from throttlekit.adapter import Throttling, WaitRules
from throttlekit.errors import WaitedTooLong
from throttlekit_celery import install
from throttlekit_celery._admission import Admission
from throttlekit_celery._body import RunAgain
from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import worker_state
from throttlekit_celery._installation import installation_of
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._requeue import ASKS_AT

PARTNER = TokenBucket("partner", "2/s", burst=1)


class Pool:
    """A pool that accepts any number of tasks. The test ends their bodies."""

    uses_semaphore, limit, num_processes = False, 100, 100

    def flush(self) -> None: ...


class Controller:
    """Celery's object for a whole worker."""


class Consumer:
    """A worker without an event loop. `turn` fires its timer."""

    on_task_message = ()

    def __init__(self, app: Any) -> None:
        self.app, self.hub, self.connection_errors = app, None, ()
        self.controller: Any = Controller()
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
def consumer() -> Iterator[Consumer]:
    app: Any = celery.Celery("admission", set_as_current=False)
    app.task(_nothing, name="call")
    app.finalize()
    yield Consumer(app)
    app.close()


def _nothing() -> None: ...


@pytest.fixture
def make_admission(limiter: Limiter, reserved: Any) -> Iterator[Callable[..., Admission]]:
    """Return a function that makes and starts the admission of a consumer."""
    made: list[Admission] = []

    def make(consumer: Consumer, rules: WaitRules | None = None) -> Admission:
        rules = rules or WaitRules()
        limits = TaskLimits(limiter, {"call": PARTNER}, rules)
        log = logging.getLogger("throttlekit.celery")
        throttling = Throttling(limiter, limits, rules=rules, log=log, noun="Task")
        made.append(Admission(consumer, throttling, limits, max_hold=None, max_held=100))
        made[-1].start()
        return made[-1]

    yield make
    for admission in made:
        admission._tasks.close()


@pytest.fixture
def admission(make_admission: Callable[..., Admission], consumer: Consumer) -> Admission:
    return make_admission(consumer)


def receive(admission: Admission, consumer: Consumer, id: str = "2") -> Request:
    request = Request(consumer.app.tasks["call"], id)
    admission.receive(request)
    worker_state().task_reserved(request)
    consumer.on_task_request(request)
    return request


def get_429(request: Any, consumer: Consumer) -> None:
    """End the body of *request*, which was acknowledged as the body began, with a 429."""
    assert request.ran
    request.acknowledged, request.ran = True, False
    request.on_failure(SimpleNamespace(exception=RunAgain(0.0, True)))
    consumer.turn()


def ids_of_held(admission: Admission) -> list[str]:
    return [held.request.id for held in admission._tasks]


def ids_on_waitlist(limiter: Limiter) -> list[str]:
    """Return the ids on the waitlist, in order."""
    (claim,) = limiter.claims(Call([PARTNER], Job()))
    return [id for _, id in wiring_of(limiter).stores.shared.list_waiting(claim.claim, 20).first]


def test_a_denied_task_runs_when_it_is_woken(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """The worker holds the task until then. At the end of a pause, the store wakes it."""
    limiter.pause(PARTNER, 3600)
    request = receive(admission, consumer)
    assert ids_of_held(admission) == ["2"]
    assert not request.ran
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: request.ran, "the task has run")
    assert ids_of_held(admission) == []


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
    consumer.turn_until(lambda: ids_of_held(admission) == ["3"], "the task has left the waitlist")
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
    monkeypatch.setattr(admission._copies, "put_back", lambda _, done: done(False))
    request: Any = receive(admission, consumer)
    get_429(request, consumer)
    limiter.pause(PARTNER, 3600)
    other = receive(admission, consumer, "3")
    assert sorted(ids_of_held(admission)) == ["2", "3"]
    admission.on_disconnect()
    limiter.resume(PARTNER)
    admission.start()
    consumer.turn_until(lambda: request.ran, "the task has run")
    assert not other.ran, "the broker delivers this task again"


@pytest.mark.parametrize("scope", ["global", "process"])
def test_a_task_that_its_pool_discards_keeps_no_slot(
    admission: Admission, consumer: Consumer, limiter: Limiter, scope: Any
) -> None:
    """After a lost connection, Celery discards tasks that no process has accepted. Their slots are not renewed."""
    slots = Concurrency(f"slots of {scope}", 1, lease=1, scope=scope)
    consumer.app.task(_nothing, name="holds", throttle=slots, shared=False)
    request = Request(consumer.app.tasks["holds"], "2")
    admission.receive(request)
    consumer.on_task_request(request)
    assert request.ran
    admission.on_disconnect()
    assert limiter.peek(slots).remaining == 0
    assert len(admission._running._tasks) == 1, "a pool of threads discards nothing"
    consumer.pool.uses_semaphore = True
    admission.on_disconnect()
    wait_until(lambda: limiter.peek(slots).remaining == 1, description="the slot is free", timeout=5)
    assert admission._running._tasks == set()


@pytest.mark.parametrize("begun", [False, True])
def test_a_task_that_its_pool_does_not_accept_returns_its_units(
    admission: Admission, consumer: Consumer, limiter: Limiter, begun: bool
) -> None:
    """
    For example, the task has expired since its request for units. The units stay charged if the body has begun: a pool
    without processes or threads runs the body in this call.
    """
    rate, slots = TokenBucket("rate", "1/h", burst=1), Concurrency("slots", 1)
    consumer.app.task(_nothing, name="limited", throttle=[rate, slots], shared=False)
    request: Any = Request(consumer.app.tasks["limited"], "2")

    def execute(*_: Any) -> None:
        request.time_start = time.time() if begun else None
        raise TaskRevokedError

    request.execute_using_pool = execute
    admission.receive(request)
    with pytest.raises(TaskRevokedError):
        consumer.on_task_request(request)
    assert limiter.peek(slots).allowed
    assert limiter.peek(rate).allowed is not begun
    assert admission._running._tasks == set()


def test_an_acknowledged_task_that_its_pool_discards_runs_again(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker no longer has a task that got a 429, so the worker keeps it until it has connected again."""
    consumer.pool.uses_semaphore = True
    monkeypatch.setattr(admission._copies, "put_back", lambda _, done: done(False))
    request = receive(admission, consumer)
    get_429(request, consumer)
    consumer.turn_until(lambda: request.ran, "the task was passed to the pool again")
    request.ran = False
    admission.on_disconnect()
    admission.start()
    consumer.turn_until(lambda: request.ran, "the task has run")


def test_an_acknowledged_task_that_waits_for_a_process_survives_a_lost_connection(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery has the task in its queue for free processes, and clears that queue when the connection is lost."""
    monkeypatch.setattr(admission._copies, "put_back", lambda _, done: done(False))
    request = receive(admission, consumer)
    get_429(request, consumer)
    waiting: list[Any] = []
    with monkeypatch.context() as no_process_is_free:
        no_process_is_free.setattr(consumer, "on_task_request", waiting.append)
        consumer.turn_until(lambda: waiting == [request], "the task waits for a process")
    admission.on_disconnect()
    admission.start()
    consumer.turn_until(lambda: request.ran, "the task has run")


def test_a_lost_connection_of_one_worker_concerns_no_other_worker(
    make_admission: Callable[..., Admission], limiter: Limiter, consumer: Consumer
) -> None:
    """Two workers of an app share a process. The tasks of the second one wait, run and end as before."""
    other = Consumer(consumer.app)
    lost, kept = make_admission(consumer), make_admission(other)
    running: Any = receive(kept, other, "2")
    limiter.pause(PARTNER, 3600)
    held = receive(kept, other, "3")
    lost.on_disconnect()
    assert (running.ran, ids_of_held(kept)) == (True, ["3"])
    running.ran = False
    running.on_failure(SimpleNamespace(exception=RunAgain(0.0, True)))
    other.turn_until(lambda: sorted(ids_of_held(kept)) == ["2", "3"], "the task with a 429 waits again")
    limiter.resume(PARTNER)
    other.turn_until(lambda: running.ran and held.ran, "both tasks have run")


@pytest.mark.usefixtures("restore_signals")
def test_the_end_of_one_worker_is_not_the_end_of_another(consumer: Consumer, limiter: Limiter) -> None:
    """Each worker of a process has its own admission. The exit of the process closes all that are left."""
    install(consumer.app, limiter)
    installed: Any = installation_of(consumer.app)
    other = Consumer(consumer.app)
    for each in (consumer, other):
        installed.admission_of(each).start()
    celery.signals.worker_shutdown.send(sender=consumer.controller)
    assert list(installed.admissions) == [other]
    installed.close(None)
    assert installed.admissions == {}


def test_a_task_with_a_429_waits_and_runs_again(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """The task is the first on the waitlist, and its error does not end it."""
    request: Any = receive(admission, consumer)
    assert request.ran
    behind = receive(admission, consumer, "3")
    request.ran = False
    request.on_failure(SimpleNamespace(exception=RunAgain(0.0, True)))
    consumer.turn()
    assert sorted(ids_of_held(admission)) == ["2", "3"]
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: request.ran, "the task has run again")
    assert not behind.ran


class Copying:
    """Stands in for the publication of copies. The broker confirms the copies only when the test says so."""

    def __init__(self, admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
        self.published: list[str] = []
        self.confirms = False
        self._pending: list[Callable[[bool], None]] = []
        monkeypatch.setattr(admission._copies, "put_back", self._put_back)
        monkeypatch.setattr(admission._copies, "wait_for_confirmations", lambda _: self._end_pending(self.confirms))
        monkeypatch.setattr(admission._copies, "close", lambda: self._end_pending(False))

    def _put_back(self, held: HeldTask, done: Callable[[bool], None]) -> None:
        self.published.append(held.request.id)
        self._pending.append(done)

    def _end_pending(self, stored: bool) -> None:
        pending, self._pending = self._pending, []
        for done in pending:
            done(stored)


@pytest.mark.parametrize("confirms", [True, False])
def test_a_copy_that_is_not_confirmed_as_a_worker_stops_is_published_again(
    admission: Admission,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    confirms: bool,
) -> None:
    """
    The task was acknowledged when its body began, and got a 429. If the second copy is not confirmed either, the task
    is lost, and the log has its id, once.
    """
    copies = Copying(admission, monkeypatch)
    get_429(receive(admission, consumer), consumer)
    assert copies.published == ["2"]
    admission.stop()
    assert "is lost" not in caplog.text
    copies.confirms = confirms
    for _ in range(2):
        admission.close()
    assert copies.published == ["2", "2"]
    lost = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert [line.split(":")[0] for line in lost] == ([] if confirms else ["Task 2 is lost"])


def test_a_429_after_a_worker_has_stopped_loses_no_task(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm shutdown lets the body end. The task is put back when the worker's process ends."""
    copies = Copying(admission, monkeypatch)
    copies.confirms = True
    request = receive(admission, consumer)
    admission.stop()
    get_429(request, consumer)
    assert copies.published == []
    admission.close()
    assert copies.published == ["2"]


def test_two_messages_with_one_id_both_run(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """Senders choose ids. The first task is not lost when the second is denied."""
    limiter.pause(PARTNER, 3600)
    first = receive(admission, consumer)
    second = Request(consumer.app.tasks["call"], "2")
    second.message.delivery_tag = "another"
    admission.receive(second)
    consumer.on_task_request(second)
    consumer.turn_until(lambda: len(ids_of_held(admission)) == 2, "both tasks are held")
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
    consumer.turn_until(lambda: len(ids_of_held(admission)) == 1, "one task is held")
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
    assert (acknowledged, ids_of_held(admission)) == ([], ["2"])
    copies.pop()(True)
    assert (acknowledged, ids_of_held(admission)) == ([1], [])
    assert ids_on_waitlist(limiter) == ["2"], "the task keeps its position"


def test_a_task_whose_first_request_is_late_is_put_back(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a task that got a 429 with a long wait is not held for longer than other tasks."""
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    copies: list[Any] = []
    monkeypatch.setattr(admission._copies, "put_back", lambda held, _: not copies.append(held))
    request = Request(consumer.app.tasks["call"], "2")
    request.message.headers[ASKS_AT] = time.time() + 7200
    admission.receive(request)
    consumer.on_task_request(request)
    (held,) = admission._tasks
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


@pytest.mark.parametrize("is_late", [True, False])
def test_a_failure_that_cannot_be_stored_begins_no_new_wait(
    make_admission: Callable[..., Admission],
    limiter: Limiter,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    """
    The result backend is unavailable as the wait of a task ends. The task fails when the backend is available again,
    although it could run by then, and also if Celery has acknowledged it meanwhile.
    """
    monkeypatch.setattr("throttlekit_celery._admission._TRY_AGAIN_AFTER", 0.0)
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    admission = make_admission(consumer, WaitRules(max_deferrals=0))
    copies = Copying(admission, monkeypatch)
    failures, errors, hooks = list[Any](), [ConnectionError("away")] * 3, list[Any]()
    monkeypatch.setattr(consumer.app.tasks["call"], "on_failure", lambda error, *_: hooks.append(error))

    def on_failure(request: Request, info: Any, return_ok: bool) -> None:
        request.acknowledged = is_late or request.acknowledged
        if errors:
            raise errors.pop()
        request.acknowledged = True
        failures.append(info.exception)

    monkeypatch.setattr(Request, "on_failure", on_failure)
    limiter.pause(PARTNER, 3600)
    request = receive(admission, consumer)
    limiter.resume(PARTNER)
    consumer.turn_until(lambda: failures, "the task has failed")
    assert [type(each) for each in failures] == [WaitedTooLong]
    assert hooks == failures
    assert (request.ran, copies.published, ids_of_held(admission)) == (False, [], [])


def test_a_task_that_cannot_be_checked_stops_no_other_check(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revoked task leaves its waitlist, although the check of the one before it raises an error."""
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    limiter.pause(PARTNER, 3600)
    faulty, revoked = receive(admission, consumer), receive(admission, consumer, "3")
    monkeypatch.setattr(faulty, "revoked", lambda: 1 // 0)
    revoked.is_revoked = True
    consumer.turn_until(lambda: ids_of_held(admission) == ["2"], "the revoked task has left")
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
