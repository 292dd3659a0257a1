"""The only module that imports Celery and kombu. Their objects have the type Any here, because they are untyped."""

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
    "attribute_to_celery",
    "connect_on_app_finalize",
    "consume_again",
    "count_free_processes",
    "count_startable_processes",
    "current_task",
    "expires_in",
    "forget",
    "give_back",
    "guard_close",
    "has_copies",
    "has_fixed_windows",
    "is_pool_process",
    "job_of",
    "keep_accepted_jobs",
    "keep_loop_running",
    "list_as_scheduled",
    "longest_hold",
    "name_deliveries",
    "on_each_task",
    "read_pending_replies",
    "real_app",
    "signals",
    "source_queue",
    "worker_state",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_log = logging.getLogger("throttlekit.celery")

_QUEUE = "_throttlekit_queue"
"""The attribute of a message from Redis that names the queue that delivered it. Kombu records only the target."""

_REQUESTS = "_throttlekit_requests"
"""The attribute of a worker's consumer that holds a function, which returns more requests for `inspect scheduled`."""

_LONGEST_HOLD = 600.0  # RabbitMQ closes a channel that holds a message for 30 minutes, and the body needs time
_SHARE = 1 / 3
"""The fraction of the broker's time-out for unacknowledged messages that a task may spend on waiting."""

_bootsteps: Any = importlib.import_module("celery.bootsteps")

RUN: Any = _bootsteps.RUN
StartStopStep: Any = _bootsteps.StartStopStep
ExceptionInfo: Any = importlib.import_module("billiard.einfo").ExceptionInfo
Ignore: Any = importlib.import_module("celery.exceptions").Ignore
Producer: Any = importlib.import_module("kombu").Producer
VirtualChannel: Any = importlib.import_module("kombu.transport.virtual").Channel
signals: Any = importlib.import_module("celery.signals")
connect_on_app_finalize: Any = importlib.import_module("celery._state").connect_on_app_finalize
"""Register a function that is called with each app of this process before the app binds its tasks."""
current_task: Any = importlib.import_module("celery._state").get_current_task


@cache
def worker_state() -> Any:
    """Return the module with the worker's lists of requests. A process that only sends tasks does not import it."""
    return importlib.import_module("celery.worker.state")


def list_as_scheduled(consumer: Any, requests: Callable[[], Iterable[Any]]) -> None:
    """Make `celery inspect scheduled` also list *requests* of the worker, for which Celery has no timer."""
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
    """Return the seconds until *request* expires, as Celery reads its `expires`, or infinity if it never expires."""
    expires: datetime | None = request.expires
    if expires is None:
        return math.inf
    return (expires - datetime.now(timezone.utc if expires.tzinfo else None)).total_seconds()


def longest_hold(consumer: Any, wanted: float | None) -> float:
    """Return the seconds for which a task may be held: a third of the broker's time-out for unacknowledged messages."""
    if wanted is not None:
        return wanted
    allowed = [_LONGEST_HOLD / _SHARE]
    if visibility := consumer.app.conf.broker_transport_options.get("visibility_timeout"):
        allowed.append(visibility)
    for queue in consumer.task_consumer.queues:
        arguments: dict[str, Any] = queue.queue_arguments or {}
        if timeout_ms := arguments.get("x-consumer-timeout"):
            allowed.append(timeout_ms / 1000)
    return float(min(allowed)) * _SHARE


def guard_close(consumer: Any) -> set[str]:
    """
    Keep the worker of *consumer* alive when the connection to its Redis broker is lost. Call it for each connection.

    While kombu closes a lost connection, it tries to return the unacknowledged messages. Kombu 5.7 no longer has the
    address of the server then, and its AttributeError ends the worker.

    Returns:
        The delivery tags of the messages that kombu has returned, or may have returned. Read the set after the
        connection is closed.
    """
    tried: set[str] = set()
    qos = _on_redis(consumer)
    if qos is None:
        return tried
    restore, by_tag = qos.restore_unacked_once, qos.restore_by_tag

    def restore_and_record(tag: str, client: Any = None, **options: Any) -> None:
        def transaction(change: Callable[[Any], None], *watched: str) -> None:
            def change_and_record(pipe: Any) -> None:
                tried.discard(tag)  # this function is called again if the transaction was not executed
                change(pipe)
                tried.add(tag)  # if an error follows, the broker may have executed it: only the response is lost

            connected.transaction(change_and_record, *watched)

        with qos.channel.conn_or_acquire(client) as connected:
            by_tag(tag, SimpleNamespace(transaction=transaction), **options)

    @wraps(restore)
    def restore_if_available(*args: Any, **options: Any) -> None:
        qos.restore_by_tag = restore_and_record
        try:
            restore(*args, **options)
        except Exception as error:
            _log.info("Tasks cannot be put back while the broker is unavailable: %s", type(error).__name__)

    qos.restore_unacked_once = restore_if_available
    return tried


def name_deliveries(consumer: Any) -> None:
    """
    Give each copy of a message that *consumer* receives from Redis a separate delivery tag: the tag of the message and
    the name of the queue. Call this function for each connection.

    Kombu records unacknowledged messages by a tag that is set when a message is sent. If an exchange routes one
    message to two queues, both copies have the same tag, and share one record. When a worker acknowledges one copy,
    the record is removed, and the other copy is lost if its worker is killed. When the record is restored, both queues
    get a message. With separate tags, each copy has its own record, which names the one queue that delivered the copy.

    A redelivered copy keeps its tag. The first worker may still acknowledge it, and with another tag the record would
    remain, and be restored again after each visibility time-out.
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
            append(message, tag)  # a program fetched the message with `get`, without a consumer
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


def read_pending_replies(consumer: Any) -> None:
    """
    Make kombu read the reply to each BRPOP that it has sent to Redis, also if the prefetch count was lowered in the
    meantime. Call this function for each connection.

    Redis has then removed the message from its queue, and kombu records it when it reads the reply. Kombu alone reads
    the reply only while the prefetch count allows another message. Until then, a SIGKILL loses the message. Example: a
    worker holds 8 tasks with a prefetch count of 9. A message arrives, but one of the tasks is woken before the reply
    is read, and lowers the count to 8. With late acknowledgement, the next message is acknowledged when a body ends.

    The worker has at most one message more than the count allows. Messages of fanout queues wait for the count.
    """
    qos = _on_redis(consumer)
    if qos is None:
        return
    channel, can_consume = qos.channel, qos.can_consume
    receive = channel.handlers["LISTEN"]
    qos.can_consume = lambda: bool(channel._in_poll) or can_consume()
    channel.handlers["LISTEN"] = lambda: can_consume() and receive()


def source_queue(message: Any) -> str | None:
    """Return the queue that delivered *message*, or None if `name_deliveries` has not recorded it."""
    name: str | None = getattr(message, _QUEUE, None)
    return name


def forget(message: Any) -> None:
    """
    Prevent kombu from returning *message*, whose connection is lost, when this process ends.

    If kombu could not close the channel, it tries to return the message again when the process ends. By then another
    worker may have the message, with the same tag, and the task would run twice.
    """
    qos = _redis_qos(message.channel)
    if qos is not None:
        qos._delivered.pop(message.delivery_tag, None)


def keep_accepted_jobs(consumer: Any) -> None:
    """
    Make a prefork pool keep the jobs whose bodies run when the connection to the broker is lost, as Celery 5.7 does.

    Before 5.7, `flush` clears them: the pool drops their results, and counts their processes as free. A task that was
    acknowledged as its body began would be lost if the body raises `RateLimited` afterwards.
    """
    flush: Any = getattr(consumer.pool, "flush", None)
    pool: Any = getattr(consumer.pool, "_pool", None)
    if hasattr(flush, "__wrapped__") or not hasattr(pool, "_busy_workers") or _version() >= (5, 7):
        return  # an earlier connection changed it, the pool has no processes, or Celery keeps the jobs

    @wraps(flush)
    def flush_and_restore() -> None:
        accepted, busy = [job for job in pool._cache.values() if job._accepted], set(pool._busy_workers)
        flush()
        running = [job for job in accepted if not job.ready()]
        pool._cache.update((job._job, job) for job in running)
        pool._busy_workers |= busy & {job._write_to.inqW_fd for job in running if job._write_to._is_alive()}

    consumer.pool.flush = flush_and_restore


def keep_loop_running(consumer: Any) -> None:
    """
    Make the worker's loop continue at once while timers are due. Call this for each connection, before the loop begins.

    Kombu's loop fires at most ten timers per iteration. After ten timers, it sleeps for a second or until a message
    arrives, even if other timers are due. With some tens of timers per second, the loop never catches up.
    """
    hub = consumer.hub
    if hub is not None and "min_delay" in inspect.signature(hub.fire_timers).parameters:
        hub.fire_timers = partial(hub.fire_timers, min_delay=0)


def has_fixed_windows(consumer: Any) -> bool:
    """Return whether a consumer's prefetch count is fixed while it consumes, as with quorum queues of RabbitMQ."""
    per_consumer = getattr(consumer, "qos_global", None) is False
    return per_consumer and consumer.connection.transport.driver_type == "amqp"


def consume_again(consumer: Any, prefetch: int) -> None:
    """
    Replace the consumers of a worker's queues. Each new consumer may fetch *prefetch* messages in addition to the
    messages that the worker has already fetched, and keeps.
    """
    tasks: Any = consumer.task_consumer
    tasks.channel.basic_qos(0, prefetch, False)
    for queue in list(tasks.queues):
        tag = tasks._active_tags.get(queue.name)
        if tag is not None:
            tasks.channel.basic_cancel(tag)  # RabbitMQ delivers messages with this tag until it confirms
            tasks._active_tags.pop(queue.name, None)
            tasks._basic_consume(queue, no_ack=tasks.no_ack)


def count_free_processes(consumer: Any, *, ending: int = 0) -> int | None:
    """
    Return the number of processes of a worker's prefork pool that have no task. Return None for other pools.

    With `app.Worker(optimization="fcfs")`, the pool may write several tasks to one process, and records it as free when
    the first one ends. So the tasks of this pool are counted, too.

    Args:
        ending: The number of tasks that are counted although they end now: 1 while Celery releases the slot of a task.
    """
    pool: Any = getattr(consumer.pool, "_pool", None)
    busy = getattr(pool, "_busy_workers", None)
    if busy is None or not consumer.controller.pool_putlocks:
        return None
    is_fair = pool.sched_strategy == importlib.import_module("celery.concurrency.asynpool").SCHED_STRATEGY_FAIR
    tasks = 0 if is_fair else len(pool._cache) - ending
    return int(consumer.pool.num_processes - max(len(busy) + len(pool.outbound_buffer), tasks))


def count_startable_processes(consumer: Any) -> int:
    """Return how many more processes the worker starts when it has more tasks: some with `--autoscale`, otherwise 0."""
    autoscaler = getattr(consumer.controller, "autoscaler", None)
    return 0 if autoscaler is None else max(0, autoscaler.max_concurrency - consumer.pool.num_processes)


def give_back(consumer: Any, tags: Sequence[str], until: float) -> None:
    """
    Put the messages of a lost connection to Redis back into their queues, with the first of *tags* at the front.

    If there is not enough time for all messages, the broker redelivers the others after the visibility time-out, as
    after the kill of a worker. *tags* must not contain a message that may already be in its queue again: it has the
    same tag there, so it would be put back although another worker may be running it.

    Args:
        until: The time at which to stop, by the monotonic clock.
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
        _log.info("The broker redelivers tasks after its visibility time-out: %s", type(error).__name__)


def _on_redis(consumer: Any) -> Any:
    """Return kombu's object with the unacknowledged messages of *consumer*, or None if its broker is not Redis."""
    return _redis_qos(getattr(consumer.task_consumer, "channel", None))


def _redis_qos(channel: Any) -> Any:
    qos: Any = channel.qos if isinstance(channel, VirtualChannel) else None
    return qos if hasattr(qos, "restore_by_tag") else None


def is_pool_process() -> bool:
    """Return whether this is a process of a prefork pool that already has its tasks. It must not admit tasks."""
    fresh = _was_spawned() and current_task() is None
    return bool(_process().daemon and not fresh)


def has_copies() -> bool:
    """Return whether this is a spawned pool process, which runs its tasks with a copy of the app of the same name."""
    return bool(_process().daemon and _was_spawned())


def job_of(task: Any, request: Any, *, queue: str = "") -> Job:
    """Return the `Job` of one *request* of *task*, from which limits compute keys. Accept both request classes."""
    return Job(
        id=request.id,
        name=task.name,
        queue=queue,
        args=tuple(request.args or ()),
        kwargs=request.kwargs or {},
        function=task.run,
    )


def real_app(app: Any) -> Any:
    """Return the app itself, even if *app* is a proxy such as `current_app`, or None if it is not a Celery app."""
    get = getattr(app, "_get_current_object", None)
    real = get() if callable(get) else app
    kind: Any = getattr(real, "__class__", None)  # reading `tasks` of the app itself would bind all its tasks
    return real if hasattr(real, "steps") and hasattr(kind, "tasks") else None


def attribute_to_celery(function: _F) -> _F:
    """
    Return a copy of *function* whose frames appear to be Celery's own.

    Celery 5.7 warns about a task with the line of the first frame whose module is not Celery's. This line has to be a
    line of the user's code.
    """
    ours: Any = function
    seen_as = FunctionType(
        ours.__code__, {**ours.__globals__, "__name__": "celery"}, ours.__name__, ours.__defaults__, ours.__closure__
    )
    return cast(_F, seen_as)


def on_each_task(app: Any, call: Callable[[Any], None]) -> None:
    """Call *call* with each task that *app* makes from a function from now on."""
    make = app._task_from_fun

    @wraps(make)
    @attribute_to_celery
    def make_and_call(*args: Any, **options: Any) -> Any:
        task = make(*args, **options)
        call(task)
        return task

    app._task_from_fun = make_and_call


def _version() -> tuple[int, ...]:
    return tuple(map(int, importlib.import_module("celery").__version__.split(".")[:2]))


def _process() -> Any:
    return importlib.import_module("billiard.process").current_process()


def _was_spawned() -> bool:
    """Return whether pool processes are spawned, and so import the app and its tasks themselves."""
    return bool(importlib.import_module("billiard").get_start_method() != "fork")
