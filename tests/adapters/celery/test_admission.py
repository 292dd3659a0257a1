"""A throttled task in the worker's main process: how it waits, and how it ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import celery
import pytest

from support.waiting import wait_until
from throttlekit import Job, Limiter, TokenBucket
from throttlekit._engine.call import Call
from throttlekit._wiring import wiring_of
from throttlekit.adapter import WaitRules
from throttlekit_celery._admission import Admission
from throttlekit_celery._body import RunAgain
from throttlekit_celery._host import worker_state
from throttlekit_celery._options import TaskLimits
from throttlekit_celery._worker import Settings

PARTNER = TokenBucket("partner", "2/s", burst=1)


class Pool:
    """Takes any number of tasks, whose bodies end when the test says so."""

    uses_semaphore, limit = False, 100


class Consumer:
    """A worker without an event loop, whose timer fires by `turn`."""

    def __init__(self, app: Any) -> None:
        self.app, self.hub, self.connection_errors, self.controller = app, None, (), SimpleNamespace()
        self.pool, self.initial_prefetch_count = Pool(), 4
        self.timer = SimpleNamespace(call_after=self._after, cancel=lambda entry: None)
        self.qos = SimpleNamespace(value=0)
        self.connection = SimpleNamespace(transport=SimpleNamespace(driver_type="memory"))
        self.task_consumer = SimpleNamespace(queues=[SimpleNamespace(name="celery", queue_arguments=None)])
        self.calls: list[Callable[[], object]] = []

    def _after(self, _: float, call: Any, arguments: Any = (), priority: int = 0) -> None:
        self.calls.append(lambda: call(*arguments))

    def on_task_request(self, request: Any) -> None:
        request.execute_using_pool(self.pool)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def until(self, condition: Callable[[], Any], description: str) -> None:
        def turned() -> Any:
            self.turn()
            return condition()

        wait_until(turned, description=description, timeout=5)


class Request:
    """A task that was received; `ran` when it was given to the pool."""

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
def limiter() -> Iterator[Limiter]:
    with Limiter("memory://") as limiter:
        yield limiter


@pytest.fixture
def admission(limiter: Limiter, reserved: Any) -> Iterator[Admission]:
    app: Any = celery.Celery("admission", set_as_current=False)
    app.task(_nothing, name="call")
    app.finalize()
    admission = Admission(
        app, limiter, TaskLimits(limiter, {"call": PARTNER}), Settings(rules=WaitRules(), max_hold=None, max_held=100)
    )
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


def received(admission: Admission, consumer: Consumer, id: str = "2") -> Request:
    request = Request(admission._app.tasks["call"], id)
    admission.receive(sender=consumer, request=request)
    worker_state().task_reserved(request)
    consumer.on_task_request(request)
    return request


def held_by(admission: Admission, consumer: Consumer) -> list[str]:
    return [held.request.id for held in admission._tasks_of(consumer)]


def waiting(limiter: Limiter) -> list[str]:
    """The ids on the waitlist, in order."""
    (claim,) = limiter.claims(Call([PARTNER], Job()))
    return [id for _, id in wiring_of(limiter).stores.shared.list_waiting(claim.claim, 20).first]


def test_a_denied_task_runs_when_it_is_woken(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """Until then it is held; at the end of a pause the store wakes it."""
    limiter.pause(PARTNER, 3600)
    request = received(admission, consumer)
    assert held_by(admission, consumer) == ["2"]
    assert not request.ran
    limiter.resume(PARTNER)
    consumer.until(lambda: request.ran, "it has run")
    assert held_by(admission, consumer) == []


def test_a_revoked_task_leaves_its_waitlist_at_once(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found among the held ones. The next one runs as if it had not been."""
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    limiter.pause(PARTNER, 3600)
    request = received(admission, consumer)
    behind = received(admission, consumer, "3")
    assert waiting(limiter) == ["2", "3"]
    request.is_revoked = True
    request.expires = datetime.now()
    consumer.until(lambda: held_by(admission, consumer) == ["3"], "it has left")
    assert waiting(limiter) == ["3"]
    limiter.resume(PARTNER)
    consumer.until(lambda: behind.ran, "the next has run")
    assert not request.ran


def test_a_task_that_no_queue_has_survives_a_lost_connection(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged as its body began, which met a 429, and not put back since: the broker does not deliver it again."""
    monkeypatch.setattr(admission._copies, "put_back", lambda *_: False)
    limiter.pause(PARTNER, 3600)
    request, other = received(admission, consumer), received(admission, consumer, "3")
    request.acknowledged = True
    admission.on_disconnect(consumer)
    limiter.resume(PARTNER)
    admission.start(consumer)
    consumer.until(lambda: request.ran, "it has run")
    assert not other.ran, "the broker delivers it again"


def test_a_body_with_a_429_waits_once_more_and_runs_again(
    admission: Admission, limiter: Limiter, consumer: Consumer
) -> None:
    """It is the first of those that wait, and its own error does not end it."""
    request: Any = received(admission, consumer)
    assert request.ran
    behind = received(admission, consumer, "3")
    request.ran = False
    request.on_failure(SimpleNamespace(exception=RunAgain(0.0, True)))
    consumer.turn()
    assert sorted(held_by(admission, consumer)) == ["2", "3"]
    limiter.resume(PARTNER)
    consumer.until(lambda: request.ran, "it has run again")
    assert not behind.ran


def test_two_messages_with_one_id_both_run(admission: Admission, limiter: Limiter, consumer: Consumer) -> None:
    """A sender chooses ids: the first is not lost when the second is denied."""
    limiter.pause(PARTNER, 3600)
    first = received(admission, consumer)
    second = Request(admission._app.tasks["call"], "2")
    second.message.delivery_tag = "another"
    admission.receive(sender=consumer, request=second)
    consumer.on_task_request(second)
    consumer.until(lambda: len(held_by(admission, consumer)) == 2, "both are held")
    limiter.resume(PARTNER)
    consumer.until(lambda: first.ran and second.ran, "both have run")


def test_a_message_that_is_delivered_twice_runs_once(
    admission: Admission, limiter: Limiter, consumer: Consumer
) -> None:
    """Redis delivers what is unacknowledged for too long again, with the same tag: the later copy stands for both."""
    limiter.pause(PARTNER, 3600)
    first, second = received(admission, consumer), received(admission, consumer)
    consumer.until(lambda: len(held_by(admission, consumer)) == 1, "one is held")
    limiter.resume(PARTNER)
    consumer.until(lambda: second.ran, "it has run")
    assert not first.ran


def test_what_is_held_for_too_long_goes_back(
    admission: Admission, limiter: Limiter, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its original is acknowledged once the copy is safe. A copy that is not safe is tried again, and it runs here."""
    monkeypatch.setattr("throttlekit_celery._waiting._CHECK_EVERY", 0.0)
    monkeypatch.setattr(admission, "_longest", 0.0)
    copies: list[Callable[[bool], None]] = []
    monkeypatch.setattr(admission._copies, "put_back", lambda held, done: not copies.append(done))
    limiter.pause(PARTNER, 3600)
    request: Any = received(admission, consumer)
    acknowledged: list[int] = []
    request.message.ack_log_error = lambda *_: acknowledged.append(1)
    consumer.until(lambda: copies, "a copy was sent")
    copies.pop()(False)
    consumer.until(lambda: copies, "another copy was sent")
    assert (acknowledged, held_by(admission, consumer)) == ([], ["2"])
    copies.pop()(True)
    assert (acknowledged, held_by(admission, consumer)) == ([1], [])
    assert waiting(limiter) == ["2"], "it keeps its position"


def test_a_task_that_has_ended_is_gone(
    admission: Admission, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its message and its arguments, at once: it leaves nothing for Python's collector to look for."""
    monkeypatch.setattr(Request, "on_success", lambda *_: None)
    request = received(admission, consumer)
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
