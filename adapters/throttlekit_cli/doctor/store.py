"""Check that the server can keep limits safely."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import redis

from throttlekit import Limiter, StoreUnavailable, TokenBucket
from throttlekit._engine.plugins import BuiltInStores
from throttlekit.stores.cluster import RedisClusterStore
from throttlekit.stores.errors import remedy_of
from throttlekit.stores.redis import RedisStore
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.doctor.imports import ExaminationError

__all__ = ["examine_store"]

_MIN_REDIS_VERSION = (6, 2)
_MAX_ROUND_TRIP_MS = 5.0
_MAX_CLOCK_DIFFERENCE_S = 1.0
_MAX_SHARE = 0.8  # of memory and of connections
_PINGS = 20
_TEST_LIMIT = TokenBucket("throttlekit-doctor", "1000/s", burst=1000)
_ok, _note, _warning, _fault = findings_about("store")


def examine_store(url: str) -> Iterator[Finding]:
    """
    Check the servers of the limiter's *url*: each master of a cluster, or the master that the Sentinels name.

    The check writes one key, and deletes it again.

    Raises:
        ExaminationError: No server answers at *url*.
        ConfigurationError: *url* is not valid.
    """
    if url.startswith("memory:"):
        yield _fault(
            "memory:// keeps limits in each process separately: a fleet of n processes admits n times the limit.",
            "use a Redis or Valkey that all workers can reach",
        )
        return
    limiter = Limiter(url)
    try:
        limiter.peek(_TEST_LIMIT)
        limiter.pause(_TEST_LIMIT, 0.001)
        limiter.reset(_TEST_LIMIT)
    except StoreUnavailable as error:
        yield _unavailable(error)
        return
    finally:
        limiter.close()
    yield _ok("Scripts can read, write and delete a limit.")
    yield from _servers(url)


def _unavailable(error: StoreUnavailable) -> Finding:
    what, _, remedy = remedy_of(error).partition(": ")
    if not what:
        at = f" (server {error.server})" if error.server else ""
        raise ExaminationError(f"{error}{at}: check that it runs, and is reachable from here")
    return _fault(f"The store cannot decide: {what}.", remedy or "wait until that is over, and run this again")


def _servers(url: str) -> Iterator[Finding]:
    store = BuiltInStores().throttlekit_make_store(url)
    if not isinstance(store, RedisStore):
        yield _note("The store comes from a plugin: its server's settings are not checked.")
        return
    found: dict[Finding, list[int]] = {}
    try:
        servers = store.servers()
        for number, client in enumerate(servers, 1):
            for finding in _server(client, cluster=isinstance(store, RedisClusterStore)):
                found.setdefault(finding, []).append(number)
    finally:
        store.close()
    for finding, numbers in found.items():
        some = "" if len(numbers) == len(servers) else f"Master {', '.join(map(str, numbers))} of {len(servers)}: "
        yield replace(finding, what=some + finding.what)


def _server(client: Any, *, cluster: bool) -> Iterator[Finding]:
    try:
        info: Mapping[str, Any] = client.info()
        yield _version(info)
        yield from _memory(info)
        yield _persistence(info)
        yield from _role(info, cluster=cluster)
        yield from _load(info)
        yield from _times(client)
    except redis.RedisError as error:
        yield _warning(
            f"The server's settings cannot be read ({type(error).__name__}).",
            "allow this user INFO, TIME and PING for the doctor; limits work without them",
        )


def _version(info: Mapping[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0"))
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name == "Redis" and known < _MIN_REDIS_VERSION:
        oldest = ".".join(map(str, _MIN_REDIS_VERSION))
        return _fault(f"Redis {version} is older than {oldest}.", "update it: older versions are not tested")
    return _ok(f"{name} {version}.")


def _memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    policy, most = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    if policy == "noeviction" or most == 0:
        yield _ok(f"No key is evicted ({policy}, maxmemory {most or 'unlimited'}).")
    else:
        yield _fault(
            f"When memory is short, the server evicts keys ({policy}): an evicted limit admits a full burst.",
            "set maxmemory-policy noeviction, or give the limiter a separate server",
        )
    if most and used > _MAX_SHARE * most:
        yield _warning(
            f"{used / most:.0%} of maxmemory is used.",
            "raise it: a full server rejects writes, and then no job runs",
        )


def _persistence(info: Mapping[str, Any]) -> Finding:
    if int(info.get("loading", 0)):
        return _warning("The server is still loading its data.", "run this again when it has finished")
    if int(info.get("aof_enabled", 0)):
        return _ok("Counts survive a restart, except those of the last second (appendonly).")
    return _note(
        "Without appendonly, a restart loses the counts since the last snapshot: each key may admit one extra burst, "
        "and each concurrency limit may admit its amount again.",
        "set appendonly yes if that is too much",
    )


def _role(info: Mapping[str, Any], *, cluster: bool) -> Iterator[Finding]:
    if info.get("role") == "slave" and not cluster:
        yield _fault(
            "The server is a replica: it may lag, and rejects writes.", "name the master, or the Sentinels, in the URL"
        )
    elif int(info.get("connected_slaves", 0)):
        yield _note(
            "Replication is asynchronous: after a fail-over, each key may once admit at most burst + rate × lag extra "
            "units.",
        )
    if int(info.get("cluster_enabled", 0)) and not cluster:
        yield _fault("The server is a node of a cluster.", "write its URL as redis+cluster://host:port")


def _load(info: Mapping[str, Any]) -> Iterator[Finding]:
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if most and clients > _MAX_SHARE * most:
        yield _warning(f"{clients} of {most} connections are used.", "raise maxclients: each worker thread needs one")


def _times(client: Any) -> Iterator[Finding]:
    took: list[float] = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        client.ping()
        took.append(time.perf_counter() - began)
    round_trip = statistics.median(took) * 1000
    text = f"A round trip takes {round_trip:.2f} ms (median of {_PINGS}); each decision costs one."
    if round_trip > _MAX_ROUND_TRIP_MS:
        yield _warning(text, "use a server that is nearer: workers wait for it before each job")
    else:
        yield _ok(text)
    before = time.time()
    seconds, micros = client.time()
    off = seconds + micros / 1_000_000 - (before + time.time()) / 2
    if abs(off) > _MAX_CLOCK_DIFFERENCE_S:
        yield _warning(
            f"The server's clock is {off:+.1f} s off this machine's. Limits use only the server's clock. But "
            "frameworks deliver delayed jobs by the workers' clocks, so those are early or late by as much.",
            "run an NTP client on both",
        )
    else:
        yield _ok(f"The server's clock is {off * 1000:+.0f} ms off this machine's.")
