"""Is the server fit to keep limits?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import redis

from throttlekit import Limiter, StoreUnavailable, TokenBucket
from throttlekit_cli.doctor.findings import Finding

__all__ = ["examine_store"]

_OLDEST = (6, 2)
_SLOW_MS = 5.0
_CLOCK_OFF = 1.0
_PINGS = 20
_PROBE = TokenBucket("throttlekit-doctor", "1000/s", burst=1000)


def examine_store(url: str) -> Iterator[Finding]:
    """Look at the server of the limiter's *url*. Writes one key, and deletes it again."""
    if url.startswith("memory:"):
        yield _fault(
            "memory:// keeps limits in each process by itself: a fleet of n processes lets n times as much pass.",
            "name a Redis or Valkey that all workers reach",
        )
        return
    limiter = Limiter(url)
    try:
        limiter.peek(_PROBE)
        limiter.pause(_PROBE, 0.001)
        limiter.reset(_PROBE)
    except StoreUnavailable as error:
        yield from _unavailable(error)
        return
    finally:
        limiter.close()
    yield Finding("ok", "store", "A limit was read, written and forgotten again, by scripts.")
    try:
        yield from _server(url)
    except redis.RedisError as error:
        yield _warning(
            f"The server cannot be asked about itself ({type(error).__name__}).",
            "let this user run INFO, TIME and PING for the doctor; limits themselves work without",
        )


def _unavailable(error: StoreUnavailable) -> Iterator[Finding]:
    cause: BaseException = error.__cause__ or error
    text = str(cause)
    if isinstance(cause, redis.exceptions.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        yield _fault("The server wants another password or user.", "write redis://user:password@host:port/0")
    elif isinstance(cause, redis.exceptions.NoPermissionError) or "NOPERM" in text:
        yield _fault(
            "The user may not do what a limit needs.",
            "allow it the keys ~tk1:* and the commands +@string +@sortedset +@keyspace +@scripting +select +time +ping",
        )
    elif isinstance(cause, redis.exceptions.ReadOnlyError) or "READONLY" in text:
        yield _fault("The server is a replica: it takes no writes.", "name the primary, or the Sentinels")
    elif isinstance(cause, redis.exceptions.ClusterDownError):
        yield _fault("The server is a node of a cluster that is down, or has no slots yet.", "see CLUSTER INFO")
    elif isinstance(cause, redis.exceptions.OutOfMemoryError) or "OOM" in text:
        yield _fault("The server is out of memory, and takes no writes.", "raise its maxmemory, or free some")
    elif isinstance(cause, redis.exceptions.BusyLoadingError):
        yield _fault("The server is still loading its data.", "wait until it is done, and ask again")
    else:
        yield _fault(
            f"The server gives no usable answer within 0.25 s ({type(cause).__name__}).",
            "see that it runs, and can be reached from here",
        )


def _server(url: str) -> Iterator[Finding]:
    scheme, _, rest = url.partition("://")
    cluster = "+cluster" in scheme
    if "+sentinel" in scheme:
        yield Finding("note", "store", "Behind Sentinels the primary's settings are not looked at: ask it directly.")
        return
    plain = scheme.removesuffix("+cluster").replace("valkey", "redis")
    if plain not in ("redis", "rediss", "unix"):
        yield Finding("note", "store", "It is a plugin's store: its server's settings are not looked at.")
        return
    if cluster:
        yield Finding("note", "store", "Of the cluster only the node in the URL is looked at: name each in turn.")
    client: Any = redis.Redis.from_url(f"{plain}://{rest}", socket_timeout=2.0, socket_connect_timeout=2.0)
    try:
        info: Mapping[str, Any] = client.info()
        yield _version(info)
        yield from _memory(info)
        yield _persistence(info)
        yield from _role(info, cluster=cluster)
        yield from _load(info)
        yield from _times(client)
    finally:
        client.close()


def _version(info: Mapping[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0"))
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name == "Redis" and known < _OLDEST:
        return _fault(f"Redis {version} is older than {_OLDEST[0]}.{_OLDEST[1]}.", "update it: nothing older is tested")
    return Finding("ok", "store", f"{name} {version}.")


def _memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    policy, most = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    if policy == "noeviction" or most == 0:
        yield Finding("ok", "store", f"No key is evicted ({policy}, maxmemory {most or 'unlimited'}).")
    else:
        yield _fault(
            f"Under memory pressure the server evicts keys ({policy}): it forgets limits, and lets a full burst pass.",
            "set maxmemory-policy noeviction, or give limits a server of their own",
        )
    if most and used > 0.8 * most:
        yield _warning(
            f"{used / most:.0%} of maxmemory is used.",
            "raise it: a server that is full takes no writes, and then no job runs",
        )


def _persistence(info: Mapping[str, Any]) -> Finding:
    if int(info.get("loading", 0)):
        return _warning("The server is still loading its data.", "ask again when it is done")
    if int(info.get("aof_enabled", 0)):
        return Finding("ok", "store", "What is counted survives a restart, but for its last second (appendonly).")
    return Finding(
        "note",
        "store",
        "Without appendonly a restart forgets what was counted since the last snapshot: at most one burst more for "
        "each key, once, and each concurrency limit once over.",
        "set appendonly yes if that is too much",
    )


def _role(info: Mapping[str, Any], *, cluster: bool) -> Iterator[Finding]:
    if info.get("role") == "slave" and not cluster:
        yield _fault("The server is a replica: it may lag, and takes no writes.", "name the primary, or the Sentinels")
    elif int(info.get("connected_slaves", 0)):
        yield Finding(
            "note",
            "store",
            "Replication is asynchronous: a fail-over may let pass again what was granted in its lag, at most "
            "burst + rate × lag, once for each key.",
        )
    if int(info.get("cluster_enabled", 0)) and not cluster:
        yield _fault("The server is a node of a cluster.", "write its URL as redis+cluster://host:port")


def _load(info: Mapping[str, Any]) -> Iterator[Finding]:
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if most and clients > 0.8 * most:
        yield _warning(f"{clients} of {most} connections are taken.", "raise maxclients: workers hold one a thread")


def _times(client: Any) -> Iterator[Finding]:
    took: list[float] = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        client.ping()
        took.append(time.perf_counter() - began)
    round_trip = statistics.median(took) * 1000
    told = f"A round trip takes {round_trip:.2f} ms (median of {_PINGS}); each decision costs one."
    if round_trip > _SLOW_MS:
        yield _warning(told, "bring the server nearer: workers wait for it before each job")
    else:
        yield Finding("ok", "store", told)
    before = time.time()
    seconds, micros = client.time()
    off = seconds + micros / 1_000_000 - (before + time.time()) / 2
    if abs(off) > _CLOCK_OFF:
        yield _warning(
            f"The server's clock is {off:+.1f} s off this machine's. Bounds go by the server's alone; but frameworks "
            "deliver delayed jobs by the workers' clocks, so these come that much early or late.",
            "run an NTP client on both",
        )
    else:
        yield Finding("ok", "store", f"Its clock is {off * 1000:+.0f} ms off this machine's.")


def _fault(what: str, remedy: str) -> Finding:
    return Finding("fault", "store", what, remedy)


def _warning(what: str, remedy: str) -> Finding:
    return Finding("warning", "store", what, remedy)
