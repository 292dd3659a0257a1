"""Celery and kombu as this package uses them. They are untyped, so all is Any; only this module imports them."""

from __future__ import annotations

import importlib
import inspect
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import cache, partial, wraps
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar, cast

from throttlekit import Job

__all__ = [
    "RUN",
    "ExceptionInfo",
    "Ignore",
    "Producer",
    "StartStopStep",
    "VirtualChannel",
    "as_celery",
    "connect_on_app_finalize",
    "consume_again",
    "current_task",
    "expires_in",
    "forget",
    "give_back",
    "guard_close",
    "has_copies",
    "has_delayed_delivery",
    "has_fixed_windows",
    "in_pool_process",
    "is_revoked",
    "job_of",
    "keep_turning",
    "list_as_scheduled",
    "name_deliveries",
    "queue_it_came_from",
    "real_app",
    "signals",
    "whenever_made",
    "worker_state",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_log = logging.getLogger("throttlekit.celery")

_QUEUE = "_throttlekit_queue"
"""The attribute of a message from Redis: the queue that it came from. Kombu records only where it was sent to."""

_REQUESTS = "_throttlekit_requests"
"""The attribute of a worker's consumer: returns the requests that `inspect scheduled` lists besides Celery's own."""

_bootsteps: Any = importlib.import_module("celery.bootsteps")

RUN: Any = _bootsteps.RUN
StartStopStep: Any = _bootsteps.StartStopStep
ExceptionInfo: Any = importlib.import_module("billiard.einfo").ExceptionInfo
Ignore: Any = importlib.import_module("celery.exceptions").Ignore
Producer: Any = importlib.import_module("kombu").Producer
VirtualChannel: Any = importlib.import_module("kombu.transport.virtual").Channel
signals: Any = importlib.import_module("celery.signals")
connect_on_app_finalize: Any = importlib.import_module("celery._state").connect_on_app_finalize
current_task: Any = importlib.import_module("celery._state").get_current_task
"""Calls what it is given with each app of this process that is about to bind its tasks."""


@cache
def worker_state() -> Any:
    """The worker's lists of its requests. Imported late: a process that only sends tasks needs no worker."""
    return importlib.import_module("celery.worker.state")


def is_revoked(request: Any) -> bool:
    """Whether *request* was revoked, or has expired. Celery ends it then."""
    state = worker_state()
    stamps = getattr(state, "revoked_stamps", None)
    if request.expires is None and not stamps and request.id not in state.revoked:
        return False
    return bool(request.revoked())


def list_as_scheduled(consumer: Any, requests: Callable[[], Iterable[Any]]) -> None:
    """Let `celery inspect scheduled` list those *requests* of the worker too, which wait for no timer of its."""
    setattr(consumer, _REQUESTS, requests)
    panel: Any = importlib.import_module("celery.worker.control").Panel.data
    if hasattr(panel["scheduled"], "__wrapped__"):
        return
    original = panel["scheduled"]

    @wraps(original)
    def scheduled(state: Any, **options: Any) -> list[Any]:
        held: Iterable[Any] = getattr(state.consumer, _REQUESTS, tuple)()
        ours = [{"eta": each.eta.isoformat(), "priority": 6, "request": each.info()} for each in held]
        return [*original(state, **options), *ours]

    panel["scheduled"] = panel["dump_schedule"] = scheduled


def expires_in(request: Any) -> float:
    """In how many seconds *request* expires, as Celery reads its `expires`; never: infinity."""
    expires: datetime | None = request.expires
    if expires is None:
        return math.inf
    return (expires - datetime.now(timezone.utc if expires.tzinfo else None)).total_seconds()


@cache
def has_delayed_delivery() -> bool:
    """Whether this Celery has native delayed delivery. It does not import the worker."""
    version: str = importlib.import_module("celery").__version__
    return tuple(map(int, version.split(".")[:2])) >= (5, 5)


def guard_close(consumer: Any) -> set[str]:
    """
    Keep the worker of *consumer* alive when its Redis broker goes away. Call it for each connection.

    As a lost connection is closed, kombu gives back over it what is unacknowledged. Kombu 5.7 no longer knows by then
    which server that was, and its AttributeError ends the worker.

    Returns:
        The delivery tags that kombu has given back, or may have; to read once the connection is closed.
    """
    tried: set[str] = set()
    qos = _on_redis(consumer)
    if qos is None:
        return tried
    restore, by_tag = qos.restore_unacked_once, qos.restore_by_tag

    def noted(tag: str, client: Any = None, **options: Any) -> None:
        def transaction(change: Callable[[Any], None], *watched: str) -> None:
            def noted_change(pipe: Any) -> None:
                tried.discard(tag)  # it is called again after a transaction that was in vain
                change(pipe)
                tried.add(tag)  # an error from here on leaves it open: the broker may be done, and its answer lost

            connected.transaction(noted_change, *watched)

        with qos.channel.conn_or_acquire(client) as connected:
            by_tag(tag, SimpleNamespace(transaction=transaction), **options)

    @wraps(restore)
    def guarded(*args: Any, **options: Any) -> None:
        qos.restore_by_tag = noted
        try:
            restore(*args, **options)
        except Exception as error:
            _log.info("Tasks cannot be put back while the broker is unavailable: %s", type(error).__name__)

    qos.restore_unacked_once = guarded
    return tried


def name_deliveries(consumer: Any) -> None:
    """
    Give each copy of a message that *consumer* receives from Redis a delivery tag of its own: the tag of the message
    and the name of the queue. Call it for each connection.

    Kombu records what is unacknowledged by a tag that it makes when a message is sent. An exchange that routes one
    message to two queues puts copies with the same tag into them, so both copies share one record. If one copy is
    acknowledged, the record of the other is removed, which is then lost if its worker is killed. If the
    record is restored, both queues get a message. With a tag of its own each copy has a record of its own, which names
    the one queue that the copy came from.

    A copy that is delivered again keeps its tag: the worker that had it first may still acknowledge it, and with
    another tag the record would stay, and be restored again after each visibility time-out.
    """
    qos = _on_redis(consumer)
    if qos is None:
        return
    transport: Any = qos.channel.connection
    append, deliver, source = qos.append, transport._deliver, ""

    def deliver_from(message: Any, queue: str) -> None:
        nonlocal source
        source = queue
        deliver(message, queue)

    def append_by_own_tag(message: Any, tag: str) -> None:
        nonlocal source
        queue, source = source, ""
        if not queue:
            append(message, tag)  # it was not delivered, but fetched by a call
            return
        message.delivery_tag = f"{tag}.{queue}"
        setattr(message, _QUEUE, queue)
        sent_to = message.delivery_info
        message.delivery_info = {"exchange": "", "routing_key": queue}  # where kombu will restore it
        try:
            append(message, message.delivery_tag)
        finally:
            message.delivery_info = sent_to

    transport._deliver, qos.append = deliver_from, append_by_own_tag


def queue_it_came_from(message: Any) -> str | None:
    """The queue that *message* came from, if `name_deliveries` has seen it."""
    name: str | None = getattr(message, _QUEUE, None)
    return name


def forget(message: Any) -> None:
    """
    Keep kombu from giving *message* back, whose connection is lost, when this process ends.

    Where kombu could not close the channel, it tries again at the end. The message may be another worker's by then, by
    the same tag, and would run twice.
    """
    qos = _redis_qos(message.channel)
    if qos is not None:
        qos._delivered.pop(message.delivery_tag, None)


def keep_turning(consumer: Any) -> None:
    """
    Let the worker's loop go on at once while timers are due. Call it before the loop begins, for each connection.

    Kombu's loop fires ten timers a turn. After ten it then sleeps for a second, or until a message comes, whatever else
    is due: with some tens of timers a second it falls behind and never catches up.
    """
    hub = consumer.hub
    if hub is not None and "min_delay" in inspect.signature(hub.fire_timers).parameters:
        hub.fire_timers = partial(hub.fire_timers, min_delay=0)


def has_fixed_windows(consumer: Any) -> bool:
    """Whether a consumer's prefetch count cannot change while it consumes, as with quorum queues of RabbitMQ."""
    per_consumer = getattr(consumer, "qos_global", None) is False
    return per_consumer and consumer.connection.transport.driver_type == "amqp"


def consume_again(consumer: Any, prefetch: int) -> None:
    """
    End the consumers of a worker's queues, and begin others, which may fetch *prefetch* messages each besides those
    that were fetched before. What was fetched stays with the worker.
    """
    tasks: Any = consumer.task_consumer
    tasks.channel.basic_qos(0, prefetch, False)
    for queue in list(tasks.queues):
        tag = tasks._active_tags.get(queue.name)
        if tag is not None:
            tasks.channel.basic_cancel(tag)  # until RabbitMQ confirms it, messages are delivered by that tag
            tasks._active_tags.pop(queue.name, None)
            tasks._basic_consume(queue, no_ack=tasks.no_ack)


def give_back(consumer: Any, tags: Sequence[str], until: float) -> None:
    """
    Put messages back that came over a connection to Redis that is lost, the first of *tags* in front.

    What is left over comes back after the visibility time-out, as what a killed worker held. A message keeps its tag
    without end: one that may be back in its queue must not be among *tags*, or another worker's delivery goes back too.

    Args:
        until: By the monotonic clock: stop then.
    """
    qos = _on_redis(consumer)
    if qos is None:
        return
    try:
        for tag in reversed(tags):
            if time.monotonic() > until:
                return
            qos.restore_by_tag(tag)
    except Exception as error:
        _log.info("Tasks return after the visibility time-out of their broker: %s", type(error).__name__)


def _on_redis(consumer: Any) -> Any:
    """Where kombu keeps the unacknowledged messages of *consumer*, if its broker is Redis."""
    return _redis_qos(getattr(consumer.task_consumer, "channel", None))


def _redis_qos(channel: Any) -> Any:
    qos: Any = channel.qos if isinstance(channel, VirtualChannel) else None
    return qos if hasattr(qos, "restore_by_tag") else None


def in_pool_process() -> bool:
    """Whether this is a process of a prefork pool that has its tasks already. No task is admitted in such a process."""
    fresh = _was_spawned() and importlib.import_module("celery._state").get_current_task() is None
    return bool(_process().daemon and not fresh)


def has_copies() -> bool:
    """Whether this is a pool process that was spawned: it runs its tasks with a copy of the app, of the same name."""
    return bool(_process().daemon and _was_spawned())


def job_of(task: Any, request: Any, *, queue: str = "") -> Job:
    """One *request* for *task*, as limits see it. Both of Celery's kinds of request will do."""
    return Job(
        id=request.id,
        name=task.name,
        queue=queue,
        args=tuple(request.args or ()),
        kwargs=request.kwargs or {},
        function=task.run,
    )


def real_app(app: Any) -> Any:
    """The app itself, where *app* is a proxy such as `current_app`; None if it is not a Celery app."""
    get = getattr(app, "_get_current_object", None)
    real = get() if callable(get) else app
    kind: Any = getattr(real, "__class__", None)  # to read the `tasks` of an app itself binds them all
    return real if hasattr(real, "steps") and hasattr(kind, "tasks") else None


def as_celery(function: _F) -> _F:
    """
    *function*, with frames that Celery takes for its own.

    Celery 5.7 gives its warnings about a task the line of the first frame that is outside of Celery, by the name of
    the frame's module. That line has to be the user's.
    """
    ours: Any = function
    seen_as = FunctionType(
        ours.__code__, {**ours.__globals__, "__name__": "celery"}, ours.__name__, ours.__defaults__, ours.__closure__
    )
    return cast(_F, seen_as)


def whenever_made(app: Any, call: Callable[[Any], None]) -> None:
    """Call *call* with each task that *app* makes from a function from now on."""
    make = app._task_from_fun

    @wraps(make)
    @as_celery
    def made(*args: Any, **options: Any) -> Any:
        task = make(*args, **options)
        call(task)
        return task

    app._task_from_fun = made


def _process() -> Any:
    return importlib.import_module("billiard.process").current_process()


def _was_spawned() -> bool:
    """Whether pool processes are spawned, and so import the app and its tasks themselves."""
    return bool(importlib.import_module("billiard").get_start_method() != "fork")
