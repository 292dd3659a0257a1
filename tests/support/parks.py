"""Parked jobs, as workers of earlier releases have left them in Celery's broker."""

from __future__ import annotations

import json
from collections.abc import Sequence

import redis

from throttlekit.adapter.parking import PARKS

__all__ = ["celery_message", "plant", "plant_lines"]


def celery_message(id: str) -> bytes:
    """The message of a task, as kombu keeps it in Redis."""
    return json.dumps({"body": "W10=", "headers": {"id": id, "task": "app.send"}, "properties": {}}).encode()


def plant(url: str, messages: Sequence[bytes], *, limit: str = "api", queue: str = "celery", line: str = "a") -> None:
    """Park *messages* in one line, the first one first."""
    with redis.Redis.from_url(url) as client:
        _plant(client, {f"{line}{n}": message for n, message in enumerate(messages)}, limit, queue, line)


def plant_lines(url: str, lines: int, *, jobs: int, limit: str = "api", queue: str = "celery") -> None:
    """Park so many jobs in each of so many lines."""
    with redis.Redis.from_url(url) as client:
        for line in range(lines):
            ids = [f"{queue}-{line}-{number}" for number in range(jobs)]
            _plant(client, {id: celery_message(id) for id in ids}, limit, queue, f"line-{line}")


def _plant(client: redis.Redis, messages: dict[str, bytes], limit: str, queue: str, line: str) -> None:
    prefix = f"throttlekit:{queue}"
    park = {
        "framework": "celery", "queue": queue, "prefix": prefix, "messages": f"{prefix}:messages",
        "lists": [queue, f"{queue}:9"], "moves": True,
    }  # fmt: skip
    sent = client.pipeline(transaction=False)
    sent.hset(PARKS, prefix, json.dumps(park))
    sent.hset(f"{prefix}:limits", line, f"1 {limit}")
    sent.zadd(f"{prefix}:lanes", {line: 1})
    sent.zadd(f"{prefix}:lane:{line}", {f"{at:016d} {id}": at for at, id in enumerate(messages)})
    sent.hset(f"{prefix}:messages", mapping={id: b"0" + message for id, message in messages.items()})
    sent.execute()
