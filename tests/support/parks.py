"""Parked jobs without a worker: messages as Celery's broker has them, put into a park one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence

import redis

from throttlekit._core.line import Place
from throttlekit.adapter import Park, Ticket

__all__ = ["celery_message", "plant", "plant_lines"]


def celery_message(id: str) -> bytes:
    """The message of a task, as kombu keeps it in Redis."""
    return json.dumps({"body": "W10=", "headers": {"id": id, "task": "app.send"}, "properties": {}}).encode()


def plant(
    url: str, messages: Sequence[bytes], *, limit: str = "api", queue: str = "celery", line: str = "a", epoch: int = 1
) -> None:
    """Park *messages*, the first one first, as a worker that has taken them would. A later epoch has lower starts."""
    tag = line if epoch == 1 else f"{line}{epoch}-"
    with redis.Redis.from_url(url) as client:
        park = _park(client, queue)
        park.announce()
        client.hset("unacked", mapping={f"{tag}{n}": message for n, message in enumerate(messages)})
        for n, message in enumerate(messages):
            places = {f"f:{limit}": Place(epoch, 1000 // epoch + n, n, 1, "s")}
            ticket = Ticket(1, f"f:{limit}", line=line, places=places).write()
            park.put(f"{tag}{n}", b"0" + message, ticket, unacked="unacked", beside="unacked_index", delay=600)


def plant_lines(url: str, lines: int, *, jobs: int, limit: str = "api", queue: str = "celery") -> None:
    """Park so many jobs in each of so many lines, fast: what the park's script writes, without the script."""
    with redis.Redis.from_url(url) as client:
        park = _park(client, queue)
        park.announce()
        for line in range(lines):
            ids = [f"{queue}-{line}-{number}" for number in range(jobs)]
            sent = client.pipeline(transaction=False)
            sent.hset(f"{park.prefix}:limits", f"line-{line}", f"1 {limit}")
            sent.zadd(f"{park.prefix}:lane:line-{line}", {f"{at:016d} {id}": at for at, id in enumerate(ids)})
            sent.hset(f"{park.prefix}:messages", mapping={id: b"0" + celery_message(id) for id in ids})
            sent.execute()


def _park(client: redis.Redis, queue: str) -> Park:
    prefix = f"throttlekit:{queue}"
    return Park(client, "celery", queue, prefix, messages=f"{prefix}:messages", lists=[queue, f"{queue}:9"], moves=True)
