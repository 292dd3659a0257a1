"""What is parked in the Redis of a broker, read without any code of the application."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from throttlekit import ConfigurationError, StoreUnavailable
from throttlekit.adapter import Park, ParkedLine
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.errors import STORE_ERRORS, mapped
from throttlekit.stores.redis import RedisStore
from throttlekit_cli.store import open_store

__all__ = ["ParkedJob", "ParkedJobs", "asking", "can_park", "check_broker", "find_parked", "open_broker", "read_job"]

_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://", "valkey")
_NO_PARK = (
    "jobs are parked only where the broker is a Redis, and not a cluster: name it as redis://host:port/0, rediss://…, "
    "unix:///path?db=0 or redis+sentinel://host:port/service/0"
)
_BATCH = 500
_LONGEST = 300
"""Characters of an id or a function; an id that is longer is not one of a framework."""


@dataclass(frozen=True, slots=True)
class ParkedJob:
    """One parked job: its framework's id for it, or where that cannot be read the park's; and its function."""

    id: str
    function: str | None


@dataclass(frozen=True, slots=True)
class ParkedJobs:
    """What is parked for one limit in one queue, by line."""

    limit: str
    park: Park
    lines: Sequence[ParkedLine]

    @property
    def jobs(self) -> int:
        return sum(line.jobs for line in self.lines)

    def first(self, most: int) -> list[ParkedJob]:
        """The first jobs of the first line, then of the next; so many at most."""
        return [read_job(job, message) for _, job, message in self._each(most)]

    def release(self, most: int) -> int:
        """Wake so many at most, line by line, and return how many."""
        woken = 0
        for line in self.lines:
            woken += self.park.release(line.lane, min(line.jobs, most))
            most -= min(line.jobs, most)
        return woken

    def release_job(self, id: str, most: int | None = None) -> bool:
        """Wake the job that has this id; return False if it is not parked, or not among the first *most*."""
        own = id.encode("utf-8", "surrogatepass")
        written = json.dumps(id).encode()  # to read every message as JSON takes longer
        for lane, job, message in self._each(most):
            if job[17:] == own or (written in message and read_job(job, message).id == id):
                return self.park.release_job(lane, job)
        return False

    def _each(self, most: int | None) -> Iterator[tuple[str, bytes, bytes]]:
        """The line, the job and its message, of the first *most* jobs or of all."""
        batch = _BATCH if most is None else max(1, min(most, _BATCH))
        found = ((line.lane, *each) for line in self.lines for each in self.park.parked(line.lane, batch))
        return islice(found, most)


def can_park(store: object) -> bool:
    """Whether *store* is a Redis in which a framework may park jobs."""
    return isinstance(store, RedisStore) and not isinstance(store, RedisClusterStore)


def open_broker(url: str) -> RedisStore:
    """
    The broker's Redis, to be closed. It is not asked yet.

    Raises:
        ConfigurationError: It is not a Redis that can have parked jobs.
    """
    if not url.startswith(_SCHEMES) or "cluster" in url.partition("://")[0]:
        raise ConfigurationError(_NO_PARK)
    try:
        store = open_store(url)
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("the store", "the broker")) from None
    if not isinstance(store, RedisStore):
        raise ConfigurationError(_NO_PARK)
    return store


@contextmanager
def asking(broker: RedisStore) -> Generator[Any, None, None]:
    """
    A client of the broker's Redis.

    Raises:
        ConfigurationError: It is a node of a cluster, or a name there, or one that was given, is not text in UTF-8.
        StoreUnavailable: It does not answer.
    """
    try:
        yield broker.servers()[0]
    except UnicodeError:
        raise ConfigurationError("a name in the broker, or one that was given, is not text in UTF-8") from None
    except STORE_ERRORS as error:
        reason = mapped(error)
        if not isinstance(reason, StoreUnavailable):
            raise ConfigurationError(_NO_PARK) from None
        away = StoreUnavailable(str(reason).replace("the store", "the broker"))
        away.server = broker.address
        raise away from None


def check_broker(url: str) -> None:
    """
    Ask the broker once. One that does not answer may do so later.

    Raises:
        ConfigurationError: It is not a Redis that can have parked jobs, or a node of a cluster.
    """
    with closing(open_broker(url)) as broker, suppress(StoreUnavailable), asking(broker) as client:
        Park.all_of(client)


def find_parked(client: Any, most: int = sys.maxsize) -> tuple[list[ParkedJobs], int]:
    """
    What is parked in the Redis of *client*, sorted by limit, framework and queue; and how many lines were not counted.

    Args:
        most: So many lines are counted at most. Each queue gets its part of them, and what others do not need.
    """
    found: dict[tuple[str, str, str, str], tuple[Park, list[ParkedLine]]] = {}
    parks = sorted(((park.lines_known(), park) for park in Park.all_of(client)), key=lambda each: each[0])
    not_counted = 0
    for at, (known, park) in enumerate(parks):
        part = most // (len(parks) - at)
        most -= min(known, part)
        not_counted += max(0, known - part)
        for line in park.lines(part) if known else ():
            if line.jobs:
                key = (line.limit, park.framework, park.queue, park.prefix)
                found.setdefault(key, (park, []))[1].append(line)
    rows = sorted(found.items(), key=lambda each: each[0])
    return [ParkedJobs(key[0], park, lines) for key, (park, lines) in rows], not_counted


def read_job(job: bytes, message: bytes) -> ParkedJob:
    """A job as `Park.parked` yields it: its id and function as Dramatiq and Celery write them by default, in JSON."""
    try:
        read = json.loads(message)
        headers = read.get("headers") or {}
        id = read.get("message_id") or headers.get("id") or read["properties"]["correlation_id"]
        function = read.get("actor_name") or headers.get("task")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # by another encoder, or purged
        id = function = None
    if not isinstance(id, str) or len(id) > _LONGEST:
        return ParkedJob(job[17:].decode("utf-8", "replace"), None)
    return ParkedJob(id, function[:_LONGEST] if isinstance(function, str) else None)
