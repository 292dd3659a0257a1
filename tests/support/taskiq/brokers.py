"""Brokers of each kind, with a separate queue and results in a Redis."""

from __future__ import annotations

from typing import Any, Literal

from taskiq import AsyncBroker
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

__all__ = ["KINDS", "Kind", "make_broker"]

Kind = Literal["list", "stream", "rabbitmq"]
KINDS: tuple[Kind, ...] = ("list", "stream", "rabbitmq")


def make_broker(kind: Kind, url: str, results: str | None, queue: str, **options: Any) -> AsyncBroker:
    """
    Return a broker as a user would create it.

    Args:
        url: The URL of the broker. *results* is that of a Redis; None: results are dropped.
        options: Options of the broker.
    """
    if kind == "list":
        # From redis-py 8 on, a read waits for at most 5 s, which ends a worker process of taskiq-redis 1.2.
        broker: AsyncBroker = ListQueueBroker(url, queue_name=queue, socket_timeout=None, **options)
    elif kind == "stream":
        broker = RedisStreamBroker(url, queue_name=queue, consumer_id="0", **options)
    else:
        own = [Queue(name=queue), Queue(name=f"{queue}.dead")]
        broker = AioPikaBroker(
            url, exchange=Exchange(name=queue), task_queues=own[:1], dead_letter_queue=own[1], **options
        )
    return broker if results is None else broker.with_result_backend(RedisAsyncResultBackend(results))
