"""Workers that check the limits of a job before they fork, so that a denial costs one store call and no fork."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar

from rq import SimpleWorker, SpawnWorker, Worker
from rq.exceptions import DequeueTimeout
from rq.worker import BaseWorker, WorkerStatus

from throttlekit import ConfigurationError
from throttlekit.adapter import Deferred, JobOptions, show_log
from throttlekit.errors import WaitedTooLong
from throttlekit_rq._admission import BY_WORKER, Check, Grant
from throttlekit_rq._body import GRANT, running_body, within, write_admission
from throttlekit_rq._holding import Holding, plan_return
from throttlekit_rq._host import UNAVAILABLE, RedisError, Refused, fail_with, intermediate_key, untyped
from throttlekit_rq._options import Declared, options_of
from throttlekit_rq._promoter import Promoter, wake
from throttlekit_rq._received_429 import Received429
from throttlekit_rq._settings import settings
from throttlekit_rq._waiting import deny, put_new_first, return_taken, shown_of
from throttlekit_rq._wire import ADMITTED, idle_key, promoter_key

__all__ = ["ThrottledSimpleWorker", "ThrottledSpawnWorker", "ThrottledWorker", "throttled_worker"]

_LEAST_BLOCK = 0.01
_IDLE = 0.005
_NEW_EVERY = 0.02
_log = logging.getLogger("throttlekit.rq")
_W = TypeVar("_W", bound=BaseWorker)


class _Dispatcher:
    """Takes jobs for a worker, checks the limits of each job before it begins, and enqueues the worker's due jobs."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._holding = Holding(worker.connection, worker.queue_names)
        self._promoter = Promoter(worker.connection, promoter_key, idle_key)
        self._returning_since: float | None = None
        self._in_burst = False
        self._taken: Any = None  # the job that was taken, and has neither begun nor was put back

    def next_job(self, queues: Sequence[Any], timeout: float | None, pop: Callable[[float | None], Any]) -> Any:
        """
        Return the first result of *pop* whose job may run, and put denied jobs back. After *timeout* seconds, raise the
        same error as *pop*, so that the worker can send its heartbeat. After an error of RQ's Redis, the worker calls
        this again, or ends, and the job that it has taken and not begun is returned to its queue.

        Woken jobs are at the front of their queues. After `_NEW_EVERY` seconds with only such jobs, take one job that
        no limit has denied. Otherwise new jobs would never start if workers, and not limits, are the bottleneck.
        """
        names = [queue.name for queue in queues]
        end = None if timeout is None else time.monotonic() + timeout
        self._in_burst = timeout is None
        while True:
            # In an idle worker, a signal raises an error at once. A job that the worker is receiving would be lost, and
            # code that continues after errors would catch the error.
            self._worker._state = WorkerStatus.BUSY
            try:
                popped = self._take(names, end, pop)
                admitted = popped is not None and self._is_admitted(popped[0])
            except Exception:
                if self._taken is not None:
                    self.finish(self._taken)
                self._become_idle()
                raise
            if admitted:
                return popped
            self._taken = None
            self._become_idle()
            if popped is None and end is None:
                return None

    def _become_idle(self) -> None:
        """Let signals end the worker at once. If one has requested its end since it became busy, end it now."""
        self._worker._state = WorkerStatus.IDLE
        if self._worker._stop_requested:
            self._worker._shutdown()

    def _take(self, names: Sequence[str], end: float | None, pop: Callable[[float | None], Any]) -> Any:
        """
        Enqueue due jobs, and return the result of one call of *pop*, or None if there was no job.

        Raises:
            DequeueTimeout: *end* has passed.
        """
        holding = self._holding
        holding.mark_idle()
        self._return_taken()
        now = time.monotonic()
        if self._returning_since is not None and now - self._returning_since > _NEW_EVERY:
            self._returning_since = None
            put_new_first(self._worker.connection, names)
        elif now >= self._promoter.next_check_at:
            show_log("rq.worker")
            holding.drop_late()
            self._promoter.promote_due(names, now)
            now = time.monotonic()
        if end is not None and now >= end:
            raise DequeueTimeout
        try:
            popped = pop(None if end is None else max(_LEAST_BLOCK, min(end, self._promoter.next_check_at) - now))
        except DequeueTimeout:
            return None
        if popped is not None:
            holding.mark_busy()
            self._taken = popped[0]
            self._note_turn(popped[0], time.monotonic() - now)
        return popped

    def begin(self, job: Any) -> None:
        """Record that *job*, which was taken, begins: its execution is stored."""
        if len(self._worker.queue_names()) > 1:  # then RQ does not remove the job from the list
            self._worker.connection.lrem(intermediate_key(job.origin), 1, job.id)
        self._taken = None

    def finish(self, job: Any) -> None:
        """
        Handle the end of *job*'s execution: release its slots, unless its work-horse still runs. If its body raised
        `RateLimited`, the job waits again. If the execution did not begin, the job is refunded.
        """
        grant: Grant | None = getattr(job, GRANT, None)
        after_429 = None
        if grant is not None:
            if job is self._taken:
                grant.cancel()
            elif not self._worker.horse_pid:
                grant.release()
            after_429 = None if grant.received is None else grant.received.take()
        if grant is None or after_429 is None:
            self._holding.finish(job)
        else:
            self._wait_again(job, grant, after_429)

    def close(self) -> None:
        """Return the worker's jobs, because the worker ends."""
        with suppress(Exception):  # otherwise RQ finds the job in the intermediate list
            self._return_taken()
        self._holding.close(in_queue=lambda _: not self._in_burst)

    def _return_taken(self) -> None:
        """Refund the job that was taken, and has neither begun nor was put back, and return it to its queue."""
        if self._taken is not None:
            self.finish(self._taken)
            return_taken(self._taken)
            self._taken = None

    def _note_turn(self, job: Any, waited: float) -> None:
        """Record whether *job*, which was taken after *waited* idle seconds, was denied before."""
        if not job.enqueue_at_front:
            self._returning_since = None
        elif self._returning_since is None or waited > _IDLE:
            self._returning_since = time.monotonic()

    def _is_admitted(self, job: Any) -> bool:
        """Return whether the worker receives *job*, to run or fail it. Otherwise *job* was put back or cancelled."""
        of_queue = settings().queues.get(job.origin, ())
        only_here = bool(of_queue)  # whether the job has limits that its process does not check
        try:
            declared = options_of(job, of_queue)
        except (Exception, SystemExit) as error:
            if of_queue or not settings().own_limits:
                fail_with(job, error)  # a spawned process does not have these settings, and might run the job
            return True  # the job fails in its work-horse, like any job of RQ
        if declared is None:
            limiter = settings().limiter
            if limiter is None or not limiter.events.configures_limits:
                return True
            declared, only_here = Declared(JobOptions()), True  # plug-ins may add limits
        try:
            return self._check(job, declared)
        except RedisError:
            raise
        except WaitedTooLong as error:
            fail_with(job, error)
        except ConfigurationError as error:
            _log.error("Job %s for %s fails: %s", job.id, job.func_name, error)
            fail_with(job, error)
        except Exception as error:
            # The process of a job that names limits checks it again, but without the limits of its queue.
            _log.exception("The limits of job %s could not be checked before it began.", job.id)
            if only_here:
                fail_with(job, error)
        return True

    def _check(self, job: Any, declared: Declared) -> bool:
        check = Check.of(job, declared, BY_WORKER)
        waiting = self._holding.waiting_of(job.id, job.origin, check.limiter)
        outcome = check.admit(waiting)
        if isinstance(outcome, Grant):
            grant, execute, is_last = outcome, job._execute, not isinstance(self._worker, SimpleWorker)
            grant.received = Received429()
            setattr(job, GRANT, grant)
            # Wrap the whole execution: a queue's limits also apply to functions without the decorator.
            job._execute = lambda: within(running_body(job, grant, is_last=is_last), execute)
            return True
        if isinstance(outcome, Deferred):
            delay, waiting.item.grace, _ = plan_return(check, outcome)
            try:
                deny(job, check.record, delay, shown=shown_of(outcome))
            except BaseException:
                waiting.waker.pass_on(job.id)
                raise
            self._holding.on_scheduled(waiting)
        else:
            check.refuse(outcome)()
        return False

    def _wait_again(self, job: Any, grant: Grant, seconds: float) -> None:
        """Hold *job*, whose body received a 429 and which is now a scheduled job."""
        waiting = self._holding.waiting_of(job.id, job.origin, grant.check.limiter)
        outcome = grant.check.throttling.wait_again(job, waiting, seconds, stored=not seconds)
        if isinstance(outcome, Deferred):
            self._holding.on_scheduled(waiting)
        else:  # the pause has ended: check its limits again
            with suppress(*UNAVAILABLE):  # otherwise the job is enqueued at its scheduled time
                wake(job.connection, job.origin, [job.id])


class _ChecksFirst:
    """The methods that `throttled_worker` adds to a class of workers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        base: Any = untyped(self).queue_class
        dispatcher = self._dispatcher = _Dispatcher(self)

        class CheckingQueue(base):  # type: ignore[misc]
            @classmethod
            def dequeue_any(cls, queues: Any, timeout: Any, *args: Any, **options: Any) -> Any:
                def pop(block: float | None) -> Any:
                    return base.dequeue_any.__func__(cls, queues, block, *args, **options)

                return dispatcher.next_job(list(queues), timeout, pop)

            @classmethod
            def lpop(cls, queue_keys: Any, timeout: Any, connection: Any = None) -> Any:
                # RQ's own `lpop` stores the job nowhere: if the worker were killed afterwards, the job would be lost.
                for key in queue_keys:
                    found = base.lmove(connection, key, None)
                    if found is not None:
                        return found
                return base.lpop(queue_keys, timeout, connection=connection)

        # RQ's command line passes a queue class, RQ's pool does not, and both compare the queues with that class.
        CheckingQueue.__name__ = CheckingQueue.__qualname__ = base.__name__
        untyped(self).queue_class = CheckingQueue

    def _start_scheduler(self, *args: Any, **options: Any) -> None:
        """Start no scheduler: a scheduler could outlive the worker, and an idle worker enqueues due jobs itself."""

    def fork_work_horse(self, job: Any, queue: Any) -> None:
        # `job.instance` would raise for a job whose data cannot be read, but that job has to fail in the work-horse.
        if isinstance(job._instance, Refused) and isinstance(self, SpawnWorker):
            Worker.fork_work_horse(self, job, queue)  # a spawned process would fetch the job again, and run it
            return
        grant: Grant | None = getattr(job, GRANT, None)
        if grant is not None and isinstance(self, SpawnWorker):
            os.environ[ADMITTED] = write_admission(job)
            grant.keep()
        try:
            untyped(super()).fork_work_horse(job, queue)
        finally:
            os.environ.pop(ADMITTED, None)

    def _dump_worker_config(self) -> Any:
        # RQ 3 sends names of classes to a spawned process. Send RQ's own: that process takes no job from a queue,
        # and it could not import a class that was made in a function here.
        sent: Any = copy(self)
        sent.__class__ = next(each for each in type(self).__mro__ if issubclass(each, BaseWorker) and _has_name(each))
        sent.queue_class = sent.queue_class.__base__
        of_rq: Any = super(_ChecksFirst, sent) if isinstance(sent, _ChecksFirst) else sent
        return of_rq._dump_worker_config()

    def wait_for_horse(self) -> Any:
        ended = untyped(super()).wait_for_horse()
        self._horse_pid = 0  # RQ does this later, and not at all if the worker must end at once
        return ended

    def teardown(self) -> None:
        try:
            untyped(super()).teardown()
        finally:
            self._dispatcher.close()

    def prepare_execution(self, job: Any) -> Any:
        execution = untyped(super()).prepare_execution(job)
        self._dispatcher.begin(job)
        return execution

    def execute_job(self, job: Any, queue: Any) -> None:
        try:
            untyped(super()).execute_job(job, queue)
        finally:
            # Also after an error: no other process releases the slots of a killed work-horse.
            self._dispatcher.finish(job)


def _has_name(made: type) -> bool:
    return getattr(sys.modules.get(made.__module__), made.__qualname__, None) is made


def throttled_worker(base: type[_W]) -> type[_W]:
    """
    Return a subclass of *base*, a class of RQ workers, that checks limits before it runs a job:

        MyThrottledWorker = throttled_worker(MyWorker)

    Its workers check the limits of a job before they fork, spawn or run anything, and put a denied job back. They also
    apply the limits of `configure(queues=…)`. They enqueue denied jobs at their turn. Unless one of RQ's schedulers
    serves the queue, they also enqueue other due jobs. They start no scheduler, even with `with_scheduler=True`.

    The worker process itself imports the functions of throttled jobs, not only the work-horse that runs them.

    Raises:
        ConfigurationError: *base* is not a class of RQ workers.
    """
    if not isinstance(base, type) or not issubclass(base, BaseWorker):
        raise ConfigurationError(f"throttled_worker takes a class of RQ workers, not {base!r}")
    bases: Any = (base,) if issubclass(base, _ChecksFirst) else (_ChecksFirst, base)
    made: Any = type(f"Throttled{base.__name__}", bases, {"__doc__": base.__doc__, "__module__": base.__module__})
    return made  # type: ignore[no-any-return]


class ThrottledWorker(_ChecksFirst, Worker):
    """An RQ `Worker` that checks limits before it forks: `rq worker --worker-class throttlekit_rq.ThrottledWorker`."""


class ThrottledSimpleWorker(_ChecksFirst, SimpleWorker):
    """An RQ `SimpleWorker` that checks limits before it runs a job."""


class ThrottledSpawnWorker(_ChecksFirst, SpawnWorker):
    """An RQ `SpawnWorker` that checks limits before it spawns a process."""
