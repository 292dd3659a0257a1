"""Helpers for tests of the Dramatiq adapter: recording stores, brokers of three kinds, workers in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import dramatiq
from dramatiq.common import dq_name, xq_name
from dramatiq.message import Message

from support.servers.stores import DenyBefore, Recording
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle

__all__ = ["DenyBefore", "Recording", "Site", "dead_letters", "left_over", "working"]

_S = TypeVar("_S", bound=Recording)


class Site:
    """A broker with a separate queue, and the jobs that ran."""

    def __init__(self, kind: str, queue: str, broker: Any) -> None:
        self.kind, self.queue, self.broker = kind, queue, broker
        self.ran: list[Any] = []

    def actor(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """`@dramatiq.actor` on this broker and queue."""
        options = {"queue_name": self.queue, "broker": self.broker, **options}
        return dramatiq.actor(**options) if function is None else dramatiq.actor(function, **options)

    def throttle(self, store: _S, **options: Any) -> _S:
        """Add a Throttle whose limiter uses *store*, and return *store*."""
        self.broker.add_middleware(Throttle(Limiter(store), **options))
        return store

    def recorder(self, *, first_error: Exception | None = None, **options: Any) -> Any:
        """Declare an actor that records its argument, or 1 if there is none. Its first run raises *first_error*."""

        def job(n: Any = 1) -> None:
            self.ran.append(n)
            if first_error is not None and len(self.ran) == 1:
                raise first_error

        return self.actor(job, **options)

    def until_ran(self, count: int) -> list[Any]:
        wait_until(lambda: len(self.ran) >= count, description=f"{count} jobs have run")
        return self.ran

    @contextlib.contextmanager
    def working(self, threads: int = 3) -> Iterator[dramatiq.Worker]:
        """
        A worker in this process. At a clean exit, no message may be left.
        """
        with working(self.broker, threads) as worker:
            yield worker
            wait_until(lambda: self.idle(worker), description="the worker holds no message")
        assert left_over(self.broker, self.queue) == 0, "messages are left that the test did not wait for"

    def held(self, worker: dramatiq.Worker) -> int:
        """Return how many messages *worker* holds, which is how many `Worker.join` waits for."""
        return int(worker.consumers[self.queue].delay_queue.unfinished_tasks)

    def until_held(self, worker: dramatiq.Worker, count: int) -> None:
        wait_until(lambda: self.held(worker) == count, description=f"the worker holds {count} messages")

    def send_paused(self, jobs: int) -> tuple[Limiter, TokenBucket]:
        """Send *jobs* messages of a limit that is paused. Return the limiter and the limit."""
        limiter, limit = Limiter(), TokenBucket("paused", "1000/s")
        self.broker.add_middleware(Throttle(limiter))
        job = self.actor(lambda n: self.ran.append(n), actor_name="job", throttle=limit, max_retries=0)
        limiter.pause(limit, 600)
        for n in range(jobs):
            job.send(n)
        return limiter, limit

    def idle(self, worker: dramatiq.Worker) -> bool:
        held = worker.work_queue.unfinished_tasks + sum(
            consumer.delay_queue.unfinished_tasks for consumer in worker.consumers.values()
        )
        return held == 0 and (self.kind == "rabbitmq" or left_over(self.broker, self.queue) == 0)


@contextlib.contextmanager
def working(broker: dramatiq.Broker, threads: int = 3) -> Iterator[dramatiq.Worker]:
    """A worker in this process, which is always stopped."""
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=15_000)


def left_over(broker: Any, queue: str) -> int:
    """
    Return how many messages wait in a queue or its delay queue, including those that workers hold, except for RabbitMQ.
    """
    if hasattr(broker, "get_queue_message_counts"):
        if queue in broker.queues_pending or queue not in broker.queues:
            return 0
        return int(sum(broker.get_queue_message_counts(queue)[:2]))
    if hasattr(broker, "do_qsize"):
        return int(broker.do_qsize(queue))
    return sum(broker.queues[name].unfinished_tasks for name in (queue, dq_name(queue)) if name in broker.queues)


def dead_letters(broker: Any, queue: str) -> list[Any]:
    """Return the dead-lettered messages. RabbitMQ returns each only once."""
    if hasattr(broker, "dead_letters_by_queue"):
        return list(broker.dead_letters_by_queue[queue])
    if hasattr(broker, "do_qsize"):
        return [Message.decode(data) for data in broker.client.hvals(f"{broker.namespace}:{xq_name(queue)}.msgs")]
    found = []
    while True:
        method, _, body = broker.channel.basic_get(xq_name(queue), auto_ack=True)
        if method is None:
            return found
        found.append(Message.decode(body))
