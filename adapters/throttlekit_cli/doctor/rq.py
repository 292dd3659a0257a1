"""Check that RQ's denied jobs are moved back to their queues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import redis
from rq import Queue, Worker

from throttlekit import ConfigurationError, Limiter, StoreUnavailable
from throttlekit._core.storage_keys import fleet_name
from throttlekit.fleet.definitions import definitions_of
from throttlekit.stores.base import is_same_address
from throttlekit.stores.redis_server import address_of
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.doctor.imports import ExaminationError
from throttlekit_cli.doctor.same_store import at_address
from throttlekit_cli.store import open_store
from throttlekit_rq._promoter import look
from throttlekit_rq._waiting import promoted_by
from throttlekit_rq._wire import LATE_IMPORT, logged_key

__all__ = ["examine"]

_MAX_OVERDUE_S = 5.0
_ok, _note, _warning, _fault = findings_about("rq")


def examine(url: str, store_url: str | None) -> Iterator[Finding]:
    """Check the queues in RQ's Redis at *url*, without any change."""
    try:
        connection: Any = redis.Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0)
        queues = Queue.all(connection=connection)
        workers = Worker.all(connection=connection)
    except (redis.RedisError, ValueError, OSError) as error:
        raise ExaminationError(f"RQ's Redis does not answer: {type(error).__name__}") from None
    if not queues:
        yield _note("There is no queue yet: enqueue a job, or start a worker, and run this again.")
    yield from _store(connection, store_url)
    if workers and store_url is not None and not _has_reports(store_url):
        yield _warning(
            f"RQ has {len(workers)} workers, and none has used a limit with the store at --url in the last hour.",
            "if they run throttled jobs, they count elsewhere: call configure(limiter) in the module of `rq worker -c` "
            "or set THROTTLEKIT_URL for them",
        )
    for queue in queues:
        yield from _queue(connection, queue.name, [worker for worker in workers if queue.name in worker.queue_names()])
    connection.close()


def _store(connection: Any, url: str | None) -> Iterator[Finding]:
    """Check whether workers count in RQ's database, as they do if no store is configured for them."""
    if not connection.exists(fleet_name("limits")):
        return
    own, theirs = address_of(connection.connection_pool), "" if url is None else Limiter(url).store_address
    if url is not None and not is_same_address(theirs, own):
        yield _fault(
            f"Workers have counted in RQ's database{at_address(own)} in the last hour, and not in --url"
            f"{at_address(theirs)}: no store is configured for them.",
            "call configure(limiter) in the module of `rq worker -c`, or set THROTTLEKIT_URL for the workers",
        )
    else:
        yield _warning(
            f"Workers count in RQ's database{at_address(own)}: a flush of it deletes all counts.",
            "give the limiter a separate database, with configure(limiter) or THROTTLEKIT_URL",
        )


def _has_reports(url: str) -> bool:
    try:
        with contextlib.closing(open_store(url)) as store:
            return bool(definitions_of(store))
    except (ConfigurationError, StoreUnavailable):  # reported as a finding about the store
        return True


def _queue(connection: Any, name: str, workers: list[Any]) -> Iterator[Finding]:
    scheduler, ours = promoted_by(connection, name)
    scheduled = connection.zcard(f"rq:scheduled:{name}")
    if not workers:
        yield _warning(f"No worker listens to queue {name!r}.", f"start one: rq worker {name}")
    if scheduler and ours:
        yield _warning(
            f"Queue {name!r} has both a scheduler of RQ and workers of throttlekit: the workers leave delayed jobs to "
            "the scheduler, which runs only once a second.",
            "start its workers without --with-scheduler",
        )
    elif scheduler or ours:
        promoter = "RQ's scheduler, once a second" if scheduler else "workers of throttlekit"
        yield _ok(f"Denied jobs of queue {name!r} are moved back to it by {promoter}.")
    elif workers or scheduled:
        yield _fault(
            f"No process moves delayed jobs back to queue {name!r}; {scheduled} are delayed now.",
            "start its workers with --worker-class throttlekit_rq.ThrottledWorker, or one with --with-scheduler",
        )
    if connection.exists(logged_key(f"{LATE_IMPORT}{name}")):
        yield _note(
            f"A stock worker of queue {name!r} imports throttlekit again in the process of each job, which takes "
            "about 0.1 s of CPU per job.",
            "start its workers with --worker-class throttlekit_rq.ThrottledWorker, or with -c and a module that "
            "imports throttlekit_rq and your tasks",
        )
    (seen,) = look(connection, [name])
    if seen.due:
        seconds, micros = connection.time()
        score = connection.zscore(f"rq:scheduled:{name}", seen.due[0])
        late = seconds + micros / 1_000_000 - score if score is not None else 0.0
        if late > _MAX_OVERDUE_S:
            yield _warning(
                f"Delayed jobs of queue {name!r} are overdue by {late:.0f} s.",
                "all workers are busy, or no process moves jobs back to the queue: add workers, or see above",
            )
