"""Store waiting jobs in RQ's own Redis data: put a job back, enqueue it again, and clean up when it starts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timezone
from typing import Any

from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.queue import Queue
from rq.utils import utcformat

import throttlekit_lua
from throttlekit.adapter import Deferred
from throttlekit_rq._host import (
    UNAVAILABLE,
    cancel_in,
    created_at,
    executions_key,
    give_slot_back,
    has_rq_limit,
    intermediate_key,
    lock_key,
    now_text,
    queue_key,
    scheduled_key,
    started_key,
    worker_key,
)
from throttlekit_rq._wire import EXPIRES, FIELD, Record, idle_key, logged_key, promoter_key

__all__ = [
    "cancel",
    "clear_deferral",
    "deny",
    "is_first_to_log",
    "others_are_idle",
    "promoted_by",
    "put_new_first",
    "read_expiry",
    "read_record",
    "return_taken",
    "schedule_sooner",
    "shown_of",
]

_DENY = throttlekit_lua.script("rq_deny")
_NEW_FIRST = throttlekit_lua.script("rq_new_first")
_RETURN = throttlekit_lua.script("rq_return")


def read_record(job: Any) -> Record:
    """Read the data that denials have stored in *job* since it was enqueued."""
    record = None
    if job.enqueue_at_front:  # each denial sets it, so for most jobs this needs no round trip
        text, expires = job.connection.hmget(job.key, FIELD, EXPIRES)
        record = Record.read(text, expires, created_at(job))
    return record or Record(job.enqueue_at_front, is_denied=False)


def read_expiry(job: Any, record: Record) -> tuple[Record, float]:
    """
    Return the *record* of *job* with the time at which its ttl ends, and the seconds until then, by the server's clock.
    They are infinite for a job without a ttl, and negative if the ttl has ended. For a job with a ttl, the call takes
    one round trip.

    A denied job has stored this time, because RQ's scheduler restarts the ttl when it enqueues the job.
    """
    if record.expires_ms is None and not job.ttl:
        return record, math.inf
    with job.connection.pipeline(transaction=False) as pipeline:
        pipeline.time()
        pipeline.pttl(job.key)
        (seconds, micros), left_ms = pipeline.execute()
    now_ms = seconds * 1000 + micros / 1000
    expires_ms = record.expires_ms
    if expires_ms is None:
        ttl_ms = job.ttl * 1000
        if left_ms <= 0 and job.enqueued_at:  # running a job removes its key's expiry
            left_ms = job.enqueued_at.replace(tzinfo=timezone.utc).timestamp() * 1000 + ttl_ms - now_ms
        expires_ms = round(now_ms + (left_ms if 0 < left_ms <= ttl_ms else ttl_ms))
    return replace(record, expires_ms=expires_ms), (expires_ms - now_ms) / 1000


def deny(
    job: Any,
    record: Record,
    delay: float | None,
    *,
    by_ticks: bool = False,
    shown: Mapping[str, Any] | None = None,
    pipeline: Any = None,
) -> None:
    """
    Put *job* back.

    Args:
        delay: The seconds until the job is enqueued. If None, it is put at the end of its queue at once.
        by_ticks: Whether one of RQ's schedulers, which check once a second, enqueues the job again.
        shown: The entry `FIELD` for the job's meta, for tools that list jobs. If None, the meta is not changed.
        pipeline: The transaction with which the worker ends a job that has begun. If None, the job has not begun, and
            is put back at once.
    """
    has_meta = shown is not None and hasattr(job.meta, "items")
    keys = [
        job.key,
        scheduled_key(job.origin),
        intermediate_key(job.origin),
        queue_key(job.origin),
        Queue.redis_queues_keys,
        worker_key(job.worker_name),
    ]
    arguments = [
        job.id,
        "" if delay is None else round(delay * 1_000_000),
        record.write(created_at(job)),
        "0" if pipeline is None else "1",
        "" if record.expires_ms is None else record.expires_ms,
        "1" if by_ticks else "0",
        job.serializer.dumps({**job.meta, FIELD: shown}) if has_meta else "",
    ]
    has_rq_slot = has_rq_limit(job)
    if pipeline is None and not has_rq_slot:
        job.connection.register_script(_DENY)(keys=keys, args=arguments)
        return
    with job.connection.pipeline() if pipeline is None else nullcontext(pipeline) as together:
        together.eval(_DENY, len(keys), *keys, *arguments)  # with its text: a transaction cannot retry after NOSCRIPT
        if has_rq_slot and delay is not None:
            give_slot_back(job, together)
        if pipeline is None:
            together.execute()
    # With the status "queued", RQ does not release the slot of its own limit after the transaction: by then the job may
    # be in its queue again, with a new slot.
    job._status = JobStatus.QUEUED if delay is None or has_rq_slot else JobStatus.SCHEDULED


def shown_of(outcome: Deferred) -> dict[str, Any] | None:
    """Return the entry `FIELD` for the meta of a job that waits, or None if the store has not decided."""
    decision, now = outcome.decision, time.time()
    if decision is None or decision.reason == "store unavailable":
        return None
    limit, since, slot = decision.limit.name, now - decision.waited, now + outcome.delay
    return {"limit": limit, "since": since, "slot": slot, "deferrals": decision.deferrals}


def cancel(job: Any, *, pipeline: Any = None) -> None:
    """Cancel *job*. The argument *pipeline* is the same as that of `deny`."""
    if pipeline is not None:
        cancel_in(job, pipeline)
        pipeline.hincrby(worker_key(job.worker_name), "failed_job_count", -1)  # the worker has just added it
        return
    with job.connection.pipeline() as at_once:
        cancel_in(job, at_once)
        at_once.lrem(intermediate_key(job.origin), 1, job.id)
        at_once.execute()


def clear_deferral(job: Any, record: Record) -> None:
    """Remove the data of denials from *job*, which runs or ends now, and a copy that a killed worker scheduled."""
    if not job.enqueue_at_front:  # no denial has stored anything, as in `read_record`
        return
    job.enqueue_at_front = record.front
    with job.connection.pipeline() as pipeline:
        pipeline.zrem(scheduled_key(job.origin), job.id)
        pipeline.hdel(job.key, FIELD, EXPIRES)
        if hasattr(job.meta, "items") and FIELD in job.meta:
            del job.meta[FIELD]
            pipeline.hset(job.key, "meta", job.serializer.dumps(job.meta))
        if record.front is None:
            pipeline.hdel(job.key, "enqueue_at_front")
        else:
            pipeline.hset(job.key, "enqueue_at_front", int(record.front))
        pipeline.execute()


def promoted_by(connection: Any, queue: str) -> tuple[bool, bool]:
    """Return two booleans: whether an RQ scheduler, and whether a throttlekit worker, enqueues due jobs of *queue*."""
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.exists(lock_key(queue))
        pipeline.exists(promoter_key(queue))
        scheduler, ours = pipeline.execute()
    return bool(scheduler), bool(ours)


def others_are_idle(connection: Any, queues: Sequence[str]) -> bool:
    """Return whether each of *queues* had an idle worker of throttlekit in the last 0.6 s."""
    return int(connection.exists(*map(idle_key, queues))) == len(queues)


def is_first_to_log(connection: Any, what: str, seconds: int) -> bool:
    """
    Return whether no process has logged *what* for *seconds*, and record in Redis that this process logs it. If Redis
    does not answer, nothing is logged.
    """
    with suppress(*UNAVAILABLE):
        return bool(connection.set(logged_key(what), 1, nx=True, ex=seconds))
    return False


def put_new_first(connection: Any, queues: Sequence[str]) -> None:
    """Move one job that no limit has denied to the front of its queue, in the first of *queues* with such a job."""
    script = connection.register_script(_NEW_FIRST)
    for queue in queues:
        if script(keys=[queue_key(queue)], args=[RqJob.key_for("")]):
            return


def return_taken(job: Any) -> None:
    """
    Return *job*, which a worker has taken and whose body has not begun, to the front of its queue, unless it has
    changed. Its executions are removed.
    """
    enqueued_at = utcformat(job.enqueued_at) if job.enqueued_at else ""
    keys = [
        job.key,
        intermediate_key(job.origin),
        queue_key(job.origin),
        executions_key(job.id),
        started_key(job.origin),
    ]
    job.connection.register_script(_RETURN)(keys=keys, args=[job.id, enqueued_at, now_text()])


def schedule_sooner(connection: Any, queue: str, by: Mapping[str, float]) -> None:
    """Schedule each job of *queue* in *by* earlier, by its number of seconds."""
    with connection.pipeline(transaction=False) as pipeline:
        for job_id, seconds in by.items():
            pipeline.zadd(scheduled_key(queue), {job_id: -seconds}, xx=True, incr=True)
        pipeline.execute()
