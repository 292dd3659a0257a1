"""A denied job as RQ's data: how it goes back, what it carries, who brings it again, and what its start undoes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from rq.job import Job as RqJob
from rq.queue import Queue
from rq.registry import ScheduledJobRegistry
from rq.scheduler import SCHEDULER_LOCKING_KEY_TEMPLATE
from rq.utils import utcformat

import throttlekit_lua
from throttlekit._engine.ticket import Ticket

__all__ = [
    "Record",
    "Return",
    "admit",
    "announce",
    "deny",
    "deny_in",
    "first_to_tell",
    "look",
    "promote",
    "promoted_by",
    "promoters",
    "read_record",
    "wake",
]

_CARRIED = "throttlekit"
_EXPIRES = "throttlekit_expires"
_VERSION = 1
_PROMOTER = "throttlekit:rq:promoter:"
_PROMOTER_LIVES_MS = 5_000
_AT_ONCE = 20
_GONE_AT_MOST = 5


_DENY = throttlekit_lua.script("rq_deny")
_PROMOTE = throttlekit_lua.script("rq_promote")


@dataclass(frozen=True, slots=True)
class Record:
    """
    What a denied job carries in its hash until it runs.

    Attributes:
        waited: Its place in the line.
        front: The job's own `enqueue_at_front`, which stands at True while it waits.
        expires_ms: When its ttl ends; None: it has none.
    """

    ticket: Mapping[str, Any] | None
    front: bool | None
    expires_ms: int | None = None

    def expired(self, job: Any) -> bool:
        """Whether its ttl is over, by the server's clock: RQ's scheduler gives a job that it promotes a new one."""
        if self.expires_ms is None:
            return False
        seconds, micros = job.connection.time()
        return bool(self.expires_ms < seconds * 1000 + micros / 1000)


def read_record(job: Any) -> Record | None:
    """What *job* carries from earlier denials; None if it has not been denied since it was enqueued."""
    if not job.enqueue_at_front:  # a denial sets it, so that most jobs need not be asked
        return None
    carried, expires = job.connection.hmget(job.key, _CARRIED, _EXPIRES)
    try:
        data = json.loads(carried or b"{}")
        # The fields outlive a job whose id is used again.
        if data["v"] == _VERSION and data["of"] == _born(job):
            return Record(data["waited"], data["front"], int(expires) if expires else None)
    except (KeyError, TypeError, ValueError):
        pass
    return None


@dataclass(frozen=True, slots=True)
class Return:
    """
    How a denied job goes back.

    Attributes:
        waited: Its place in the line.
        delay: Seconds; None: to the end of its queue.
        by_ticks: Whether RQ's scheduler brings it back.
    """

    ticket: Mapping[str, Any] | None
    delay: float | None
    by_ticks: bool = False


def deny(job: Any, record: Record | None, back: Return) -> None:
    """Put *job* back, which a worker has popped and not begun."""
    keys, arguments = _denial(job, record, back, compensate=False)
    job.connection.register_script(_DENY)(keys=keys, args=arguments)


def deny_in(pipeline: Any, job: Any, record: Record | None, back: Return) -> None:
    """The same for a job that has begun, in the transaction with which its worker ends it."""
    keys, arguments = _denial(job, record, back, compensate=True)
    # The whole script: inside a transaction nobody could answer a NOSCRIPT.
    pipeline.eval(_DENY, len(keys), *keys, *arguments)


def _denial(job: Any, record: Record | None, back: Return, *, compensate: bool) -> tuple[list[str], list[Any]]:
    front = job.enqueue_at_front if record is None else record.front
    carried = {"v": _VERSION, "of": _born(job), "front": front, "waited": back.ticket}
    queue = Queue(job.origin, connection=job.connection)
    lane = "" if back.by_ticks else _lane_of(back.ticket)
    keys = [
        job.key,
        _scheduled(job.origin),
        f"{queue.key}:intermediate",
        queue.key,
        Queue.redis_queues_keys,
        f"rq:worker:{job.worker_name or ''}",
        _lane(job.origin, lane),
    ]
    arguments = [
        job.id,
        "" if back.delay is None else round(back.delay * 1_000_000),
        json.dumps(carried),
        "1" if compensate else "0",
        record.expires_ms if record is not None and record.expires_ms is not None else "",
        round(job.enqueued_at.replace(tzinfo=timezone.utc).timestamp() * 1000) if job.enqueued_at else "",
        "1" if back.by_ticks else "0",
        "1" if lane else "0",
        _meta(job, back.ticket),
    ]
    return keys, arguments


def _told_in_meta(job: Any) -> bool:
    return hasattr(job.meta, "items") and _CARRIED in job.meta


def _meta(job: Any, ticket: Mapping[str, Any] | None) -> Any:
    """The job's meta with what it waits for, where every list of jobs shows it; "" leaves it as it is."""
    place, meta = Ticket.read(ticket), job.meta
    if not place.due_us or not hasattr(meta, "items"):
        return ""
    told = {
        "limit": place.limit_ref.partition(":")[2],
        "since": place.since_us / 1_000_000,
        "slot": place.due_us / 1_000_000,
        "deferrals": place.deferrals,
    }
    return job.serializer.dumps({**meta, _CARRIED: told})


def admit(job: Any, record: Record | None) -> None:
    """Undo what denials left on *job*, which runs now; it runs once, even if a kill has doubled it."""
    if record is None:
        return
    job.enqueue_at_front = record.front
    with job.connection.pipeline() as pipeline:
        pipeline.zrem(_scheduled(job.origin), job.id)
        if lane := _lane_of(record.ticket):
            pipeline.zrem(_lane(job.origin, lane), job.id)
        pipeline.hdel(job.key, _CARRIED, _EXPIRES)
        if _told_in_meta(job):
            del job.meta[_CARRIED]
            pipeline.hset(job.key, "meta", job.serializer.dumps(job.meta))
        if record.front is None:
            pipeline.hdel(job.key, "enqueue_at_front")
        else:
            pipeline.hset(job.key, "enqueue_at_front", int(record.front))
        pipeline.execute()


def promoters(job: Any) -> tuple[bool, bool]:
    """Whether one of RQ's schedulers takes due jobs out of the scheduled ones of *job*'s queue; a worker of ours."""
    return promoted_by(job.connection, job.origin)


def promoted_by(connection: Any, name: str) -> tuple[bool, bool]:
    """The same of the queue called *name*."""
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.exists(_lock(name))
        pipeline.exists(f"{_PROMOTER}{name}")
        scheduler, ours = pipeline.execute()
    return bool(scheduler), bool(ours)


def announce(connection: Any, names: Sequence[str]) -> None:
    """Tell stock workers that due jobs of these queues are promoted for the next seconds."""
    with connection.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.set(f"{_PROMOTER}{name}", 1, px=_PROMOTER_LIVES_MS)
        pipeline.execute()


def first_to_tell(connection: Any, what: str, seconds: int) -> bool:
    """Whether nobody of the fleet has told *what* for so long: a work-horse remembers nothing of those before it."""
    return bool(connection.set(f"throttlekit:rq:told:{what}", 1, nx=True, ex=seconds))


@dataclass(frozen=True, slots=True)
class _Look:
    """
    What a look at a queue's scheduled jobs showed.

    Attributes:
        due: Ids of jobs whose instant has come, in order.
        next_in: Seconds until the first that has not; None: there is none.
        scheduler: Whether one of RQ's schedulers has the queue.
    """

    due: list[bytes]
    next_in: float | None
    scheduler: bool


def look(connection: Any, names: Sequence[str]) -> list[_Look]:
    """Look at the scheduled jobs of the queues called *names*, by the server's clock: one round trip."""
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.time()
        for name in names:
            pipeline.exists(_lock(name))
            key = _scheduled(name)
            pipeline.zrange(key, 0, _AT_ONCE - 1, withscores=True)
        (seconds, micros), *found = pipeline.execute()
    now = seconds + micros / 1_000_000
    looks: list[_Look] = []
    for locked, jobs in zip(found[::2], found[1::2], strict=True):
        due = [job_id for job_id, score in jobs if score <= now]
        next_in = next((score - now for _, score in jobs if score > now), None)
        looks.append(_Look(due, next_in, bool(locked)))
    return looks


def promote(connection: Any, name: str, due: Sequence[bytes], *, lane: str = "") -> int:
    """
    Put jobs of *due* into the queue called *name*, up to the first that a limit denied; return how many.

    Args:
        lane: Those that wait in it are put there before they are due, and no others.
    """
    script = connection.register_script(_PROMOTE)
    ids = [job_id.decode() for job_id in due]
    queue_key = Queue(name, connection=connection).key
    keys = [_lock(name), _scheduled(name), queue_key]
    keys += [RqJob.key_for(job_id) for job_id in ids]
    return int(script(keys=keys, args=[utcformat(datetime.now(timezone.utc)), lane, *ids]))


def wake(connection: Any, name: str, lane: str) -> bool:
    """Put the job that waits first in *lane* into the queue called *name* before it is due; return whether one was."""
    for _ in range(_GONE_AT_MOST):
        first = connection.zpopmin(_lane(name, lane))
        if not first:
            return False
        # Whoever dies between the two leaves it to come when it is due.
        if promote(connection, name, [first[0][0]], lane=lane):
            return True
    return False


def _lane_of(ticket: Mapping[str, Any] | None) -> str:
    lane = ticket.get("lane") if ticket is not None else None
    return lane if isinstance(lane, str) else ""


def _lane(name: str, lane: str) -> str:
    return f"throttlekit:rq:lane:{name}:{lane}"


def _lock(name: str) -> str:
    return SCHEDULER_LOCKING_KEY_TEMPLATE % name


def _scheduled(name: str) -> str:
    return ScheduledJobRegistry.key_template.format(name)


def _born(job: Any) -> str:
    return str(utcformat(job.created_at))
