"""The jobs of a flood that a broker holds, read from its data while no worker runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pika
import redis

from support.servers.flood import Servers

__all__ = ["Contents", "contents", "ready"]

_INDEX = re.compile(rb'"args":\["([^"]+)"|argsrepr\W+?\'([^\']+)\'|^job-(\d+)')
_ENDED = re.compile(rb"rq:(?:job|results|finished|failed|executions|worker)|_kombu|dramatiq:__heart")
_DEAD = re.compile(rb"\.XQ|rq:failed")
_PIECE = 10_000


class Contents(NamedTuple):
    """
    Attributes:
        waiting: How many messages each job has, by its index.
        dead: How many jobs are dead letters.
        stranded: Messages of Dramatiq that are in no list or set of its Redis, so that they will not be delivered.
    """

    waiting: Counter[str]
    dead: int
    stranded: int


def ready(where: Servers, queue: str) -> int:
    """
    Return twice the number of messages that no worker has taken. Messages of a delay queue count half, because they
    have been taken once.
    """
    names = queue, f"{queue}.DQ"
    if where.kind == "rabbitmq":
        main, delayed = (_declared(where.broker_url, name) for name in names)
    else:
        client: Any = redis.Redis.from_url(where.broker_url)
        main = sum(client.llen(name) for name in (queue, f"dramatiq:{queue}", f"rq:queue:{queue}"))
        delayed = client.llen(f"dramatiq:{names[1]}")
        client.close()
    return 2 * main + delayed


def contents(where: Servers, queue: str) -> Contents:
    """Return all that the broker holds. RabbitMQ is empty afterwards."""
    if where.kind == "rabbitmq":
        return Contents(
            Counter(index for name in (queue, f"{queue}.DQ") for index in _consumed(where.broker_url, name)),
            sum(1 for _ in _consumed(where.broker_url, f"{queue}.XQ")),
            0,
        )
    with redis.Redis.from_url(where.broker_url) as client:
        return _in_redis(client)


def _in_redis(client: Any) -> Contents:
    """
    Search all keys, whatever their layout: a message has its job's index, and so have RQ's ids, which may occur several
    times.
    """
    waiting: Counter[str] = Counter()
    ids: set[str] = set()
    fields: set[bytes] = set()
    members: set[bytes] = set()
    dead = 0
    for key in client.scan_iter(count=_PIECE):
        if _DEAD.search(key):
            dead += client.zcard(key) if client.type(key) == b"zset" else 0
            continue
        if _ENDED.match(key):
            continue
        for field, value in _entries(client, key):
            if found := _INDEX.search(value):
                index = found.group(found.lastindex or 1).decode()
                if found.lastindex == 3:
                    ids.add(index)
                else:
                    waiting[index] += 1
                    if key.startswith(b"dramatiq:"):
                        fields.add(field)
            else:
                members.add(value)
    return Contents(waiting + Counter(ids), dead, len(fields - members))


def _entries(client: Any, key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the fields and values of a hash, or b"" and each member of another collection."""
    kind = client.type(key)
    if kind == b"hash":
        yield from client.hscan_iter(key, count=_PIECE)
    elif kind == b"list":
        for start in range(0, client.llen(key), _PIECE):
            yield from ((b"", each) for each in client.lrange(key, start, start + _PIECE - 1))
    elif kind == b"set":
        yield from ((b"", each) for each in client.sscan_iter(key, count=_PIECE))
    elif kind == b"zset":
        yield from ((b"", each) for each, _ in client.zscan_iter(key, count=_PIECE))


def _declared(url: str, queue: str) -> int:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
    except pika.exceptions.ChannelClosedByBroker:
        return 0
    finally:
        connection.close()


def _consumed(url: str, queue: str) -> Iterator[str]:
    if not _declared(url, queue):
        return
    connection = pika.BlockingConnection(pika.URLParameters(url))
    for method, properties, body in connection.channel().consume(queue, auto_ack=True, inactivity_timeout=1.0):
        if method is None:
            break
        headers = properties.headers
        found = _INDEX.search(f"argsrepr: {headers['argsrepr']}".encode() if headers else body)
        assert found is not None
        yield found.group(found.lastindex or 1).decode()
    connection.close()
