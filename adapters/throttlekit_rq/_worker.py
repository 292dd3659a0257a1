"""Workers that ask before they run a job: a denial costs them one call, and no fork."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rq import SimpleWorker, SpawnWorker, Worker
from rq.exceptions import DequeueTimeout
from rq.worker import BaseWorker, WorkerStatus

from throttlekit import ConfigurationError, Decision
from throttlekit_rq._admission import BY_RQ_SCHEDULER, BY_WORKER, ask, too_long
from throttlekit_rq._body import ADMITTED, GRANT, Grant, admission, granted, held
from throttlekit_rq._deferral import Record, Return, admit, announce, deny, look, promote, read_record, wake
from throttlekit_rq._options import Terms, terms_of
from throttlekit_rq._settings import settings

__all__ = ["ThrottledSimpleWorker", "ThrottledSpawnWorker", "ThrottledWorker", "throttled_worker"]

_LOOK_EVERY = 0.25
_ANNOUNCE_EVERY = 1.0
_POLL_EVERY = 0.02
_SERVER_IS_LATE = 0.11  # a Redis with nothing to do notices every 100 ms that a blocking call has timed out
_log = logging.getLogger("throttlekit.rq")
_W = TypeVar("_W", bound=BaseWorker)


class _Refused:
    """Stands in for a popped job's object, so that the job fails as its function would, with *error*."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


class _Dispatcher:
    """
    Where a worker's popped jobs are asked for, and due jobs of its queues let in.

    Attributes:
        horse_runs: Whether there is a work-horse that has not been seen to end.
        horse_died: Whether the last one came to no good end.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._look_at = 0.0
        self._announce_at = 0.0
        self._ticking: set[str] = set()
        self._freed: tuple[str, tuple[str, ...]] | None = None
        self.horse_runs = self.horse_died = False

    def next_job(self, queues: Sequence[Any], timeout: float | None, pop: Callable[[float | None], Any]) -> Any:
        """
        What *pop* returns, once that is a job that may run; denied ones go back. Raises as *pop*
        does after *timeout* seconds, so that the worker can show that it lives.
        """
        worker = self._worker
        names = [queue.name for queue in queues]
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._let_in(names)
            now = time.monotonic()
            if end is not None and now >= end:
                raise DequeueTimeout(timeout, names)
            left = None if end is None else min(end, self._look_at) - now
            block = None if left is None or left < 2 * _SERVER_IS_LATE else left - _SERVER_IS_LATE
            # A signal that finds a worker idle ends it at once, and strands the job that it is being handed.
            worker._state = WorkerStatus.BUSY
            popped = None
            try:
                popped = pop(block)
                if popped is not None and self._admits(popped[0]):
                    self._release(popped[0], len(names))
                    return popped
            except DequeueTimeout:
                pass
            except BaseException:
                worker._state = WorkerStatus.IDLE
                if popped is not None:
                    self.ended(popped[0])
                raise
            worker._state = WorkerStatus.IDLE
            if worker._stop_requested:
                worker._shutdown()
            if popped is None:
                if left is None:
                    return None
                if block is None:
                    time.sleep(max(0.0, min(left, _POLL_EVERY)))

    def ended(self, job: Any) -> None:
        """*job* is done with. If nothing of it runs any more, what it still holds is free."""
        grant: Grant | None = getattr(job, GRANT, None)
        if grant is None or not grant.lanes or self.horse_runs:
            return
        if self.horse_died:
            self._freed = job.origin, grant.lanes
        grant.give_back()

    def _release(self, job: Any, queues: int) -> None:
        """Take *job* off its queue's intermediate list where RQ would not: from a worker of several queues."""
        if queues > 1:
            job.connection.lrem(f"rq:queue:{job.origin}:intermediate", 1, job.id)

    def _wake(self, names: Sequence[str]) -> None:
        """The slot that a job's estimate is for has come free: it need not wait for its instant."""
        freed, self._freed = self._freed, None
        if freed is not None and freed[0] in names and freed[0] not in self._ticking:
            for lane in freed[1]:
                wake(self._worker.connection, freed[0], lane)

    def _let_in(self, names: Sequence[str]) -> None:
        self._wake(names)
        now = time.monotonic()
        if now < self._look_at:
            return
        connection = self._worker.connection
        if now >= self._announce_at:
            announce(connection, names)
            self._announce_at = now + _ANNOUNCE_EVERY
        next_in = _LOOK_EVERY
        self._ticking.clear()
        for name, seen in zip(names, look(connection, names), strict=True):
            if seen.scheduler:
                self._ticking.add(name)
            elif seen.due and promote(connection, name, seen.due) < len(seen.due):
                next_in = 0.0
            if seen.next_in is not None and not seen.scheduler:
                next_in = min(next_in, seen.next_in)
        self._look_at = now + next_in

    def _admits(self, job: Any) -> bool:
        """Whether the worker is to have *job*: to run it, or to fail it."""
        of_queue = settings().queues.get(job.origin, ())
        try:
            terms = terms_of(job, of_queue)
        except (Exception, SystemExit) as error:
            if of_queue:
                job._instance = _Refused(error)  # a process that is spawned might read it, and does not know these
            return True  # it fails where it runs, with all that RQ does about that
        if terms is None:
            return True
        try:
            return self._asked(job, terms)
        except ConfigurationError as error:
            _log.error("Job %s for %s fails: %s", job.id, job.func_name, error)
            job._instance = _Refused(error)
        except Exception as error:
            # Where it runs it asks again, but for the limits that only this worker knows.
            _log.exception("Job %s could not be decided on before it was begun.", job.id)
            if of_queue:
                job._instance = _Refused(error)
        return True

    def _asked(self, job: Any, terms: Terms) -> bool:
        record = read_record(job)
        ticket = record.ticket if record is not None else None
        if record is not None and record.expired(job):
            deny(job, record, Return(ticket, 0.0))
            return False
        ticking = job.origin in self._ticking
        decision = ask(job, terms, ticket, BY_RQ_SCHEDULER if ticking else BY_WORKER)
        if decision.allowed:
            return self._grant(job, terms, record, decision)
        if decision.final:
            return self._over(job, terms, record, decision)
        deny(job, record, Return(decision.ticket, decision.delay, by_ticks=ticking))
        self._look_at = min(self._look_at, time.monotonic() + decision.delay)
        return False

    def _grant(self, job: Any, terms: Terms, record: Record | None, decision: Decision) -> bool:
        grant = granted(job, terms, record, decision, record.ticket if record is not None else None)
        setattr(job, GRANT, grant)
        # Around all of it, since a queue's limits hold functions as well that know of none.
        job._execute = held(job, grant, job._execute)
        return True

    def _over(self, job: Any, terms: Terms, record: Record | None, decision: Decision) -> bool:
        when_over = settings().rules.when_over
        if when_over == "run":
            return self._grant(job, terms, record, decision)
        admit(job, record)  # whoever requeues it later has it begin anew
        if when_over == "fail":
            job._instance = _Refused(too_long(job, decision))
            return True
        with job.connection.pipeline() as pipeline:
            job.cancel(pipeline=pipeline)
            pipeline.lrem(f"rq:queue:{job.origin}:intermediate", 1, job.id)
            pipeline.execute()
        return False


class _AsksFirst:
    """What `throttled_worker` adds to a class of workers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        untyped: Any = self
        base: Any = untyped.queue_class
        desk = self._desk = _Dispatcher(self)

        class Asking(base):  # type: ignore[misc]
            @classmethod
            def dequeue_any(cls, queues: Any, timeout: Any, *args: Any, **options: Any) -> Any:
                def pop(block: float | None) -> Any:
                    return base.dequeue_any.__func__(cls, queues, block, *args, **options)

                return desk.next_job(list(queues), timeout, pop)

            @classmethod
            def lpop(cls, queue_keys: Any, timeout: Any, connection: Any = None) -> Any:
                # RQ takes a job off one of several queues and keeps it nowhere: a worker that is killed loses it.
                for key in queue_keys:
                    found = base.lmove(connection, key, None)
                    if found is not None:
                        return found
                return base.lpop(queue_keys, timeout, connection=connection)

        # Here, since RQ's command line names a queue class, its pool does not, and both check the queues against it.
        Asking.__name__ = Asking.__qualname__ = base.__name__
        untyped.queue_class = Asking

    def _start_scheduler(self, *args: Any, **options: Any) -> None:
        """Nothing: due jobs are let in while the worker has nothing to do. No process that could outlive it."""

    def fork_work_horse(self, job: Any, queue: Any) -> None:
        # Not `instance`: of a job whose data cannot be read it raises, which is for the work-horse to do.
        if isinstance(job._instance, _Refused) and isinstance(self, SpawnWorker):
            Worker.fork_work_horse(self, job, queue)  # a spawned process would fetch the job anew, and run it
            return
        grant: Grant | None = getattr(job, GRANT, None)
        if isinstance(self, SpawnWorker) and hasattr(job, GRANT):
            os.environ[ADMITTED] = admission(job)
            if grant is not None:
                grant.keep()
        try:
            super_: Any = super()
            super_.fork_work_horse(job, queue)
            self._desk.horse_runs = True
        finally:
            os.environ.pop(ADMITTED, None)

    def wait_for_horse(self) -> Any:
        super_: Any = super()
        ended = super_.wait_for_horse()
        self._desk.horse_runs, self._desk.horse_died = False, ended[1] != 0
        return ended

    def execute_job(self, job: Any, queue: Any) -> None:
        super_: Any = super()
        try:
            super_.execute_job(job, queue)
        finally:
            # However it ended: of a work-horse that was killed nobody else frees what it held.
            self._desk.ended(job)
            setattr(job, GRANT, None)


def throttled_worker(base: type[_W]) -> type[_W]:
    """
    The class of workers *base*, with asking before it runs a job. For classes of your own:

        MyThrottledWorker = throttled_worker(MyWorker)

    Its workers look at what a job is held to, ask, and put it back if it is denied, before they fork,
    spawn or run anything; the limits of `configure(queues=…)` as well. They bring delayed jobs of their
    queues back themselves, in order and to some hundredths of a second, unless one of RQ's schedulers has
    the queue. They start no scheduler, whatever `with_scheduler` says.

    The functions of throttled jobs are imported in the worker itself, not only where they run.

    Raises:
        ConfigurationError: *base* is no class of RQ's workers.
    """
    if not isinstance(base, type) or not issubclass(base, BaseWorker):
        raise ConfigurationError(f"throttled_worker takes a class of RQ workers, not {base!r}")
    bases: Any = (base,) if issubclass(base, _AsksFirst) else (_AsksFirst, base)
    made: Any = type(f"Throttled{base.__name__}", bases, {"__doc__": base.__doc__, "__module__": base.__module__})
    return made  # type: ignore[no-any-return]


class ThrottledWorker(_AsksFirst, Worker):
    """RQ's `Worker`, asking before it forks: `rq worker --worker-class throttlekit_rq.ThrottledWorker`."""


class ThrottledSimpleWorker(_AsksFirst, SimpleWorker):
    """RQ's `SimpleWorker`, asking before it runs a job."""


class ThrottledSpawnWorker(_AsksFirst, SpawnWorker):
    """RQ's `SpawnWorker`, asking before it spawns a process."""
