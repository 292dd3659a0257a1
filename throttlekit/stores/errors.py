"""
Map each error of redis-py to one error of throttlekit, with the remedy for the operator. No other file does this.

There are three kinds, and only the first one opens the circuit breaker:

* An outage: no connection, no reply in time, or a server that rejects every call, for example while it loads its data.
  An unknown error of a server also counts as one, because a proxy may have sent it. `StoreUnavailable` with a part.
* A call that a working server rejected: a key of another type, a script that failed. `StoreUnavailable` without a part.
* A call that can never work on any server of that kind: `ConfigurationError`.
"""

from __future__ import annotations

import re

from redis import exceptions

from throttlekit.errors import ConfigurationError, StoreUnavailable
from throttlekit.stores.wire import UnusableReply

__all__ = [
    "STORE_ERRORS",
    "URL_ERRORS",
    "SentinelRefused",
    "UnknownService",
    "is_connection_failure",
    "is_replica",
    "map_error",
    "remedy_of",
]


class UnknownService(exceptions.ConnectionError):
    """None of the Sentinels that answered monitors a service of that name."""


class SentinelRefused(exceptions.ConnectionError):
    """A Sentinel rejected the user or password, and no other Sentinel answered."""


_CLUSTER_ERRORS = (exceptions.AskError, exceptions.ClusterCrossSlotError)  # a MOVED is an AskError too
_CLUSTER_PREFIXES = ("MOVED ", "ASK ", "CROSSSLOT ")  # redis-py 5.0 raises a plain ResponseError with these
# Some errors of redis-py are not RedisErrors: those of its cluster client.
_CLIENT_ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
URL_ERRORS: tuple[type[Exception], ...] = (*_CLIENT_ERRORS, ValueError, TypeError)
STORE_ERRORS: tuple[type[Exception], ...] = (*_CLIENT_ERRORS, OSError, ValueError)
"""The errors of a call to redis-py. A ValueError means a text that cannot be encoded, or a reply not from Redis."""

_OUTAGES = (
    exceptions.ConnectionError,  # also BusyLoadingError, AuthenticationError, MaxClientsError, and those of Sentinels
    exceptions.TimeoutError,
    OSError,
    exceptions.InvalidResponse,  # another program than Redis listens there
    exceptions.RedisClusterException,  # no node of the cluster answered
    exceptions.ClusterError,
)
"""These errors are outages, and so is each error with a row in `_REMEDIES`, except a wrong type: see `_is_outage`."""

_MISSING_FUNCTION = re.compile(
    r"attempt to (?:call|index) (?:a nil value \()?(?:field|global) '(?:sha1hex|cjson|decode)'"
    r"|nonexistent global variable 'cjson'"
)
"""The errors of Lua 5.1 and 5.4 for functions that our scripts call, but an imitation of Redis may lack."""

_OF_ONE_CALL = re.compile(r"user_script|[Ee]rror running script|script: [0-9a-f]|too big (?:mbulk|bulk|inline)")
"""The texts of a script that failed, and of a request that is too long."""

_MISSING_RIGHTS = (
    "its user lacks permissions that the limiter needs: ACL SETUSER … "
    "~tk1:* resetchannels &tk1:* +@read +@write +@connection -@dangerous +select +eval +evalsha +time +publish "
    "+subscribe +unsubscribe, and +cluster on a cluster"
)
_BAD_CREDENTIALS = "its user or password is missing or wrong"
_WRONG_TYPE, _READ_ONLY, _MASTER_DOWN = "WRONGTYPE", "READONLY ", "MASTERDOWN"
# (class, part of the text, remedy). The first match counts. The text matters because before Redis 7 an error inside a
# script is a plain ResponseError.
_REMEDIES: tuple[tuple[type[Exception] | None, str, str], ...] = (
    (UnknownService, "", "the Sentinels do not know the service named in the URL: see SENTINEL MASTERS"),
    (
        SentinelRefused,
        "",
        "the user or password of the Sentinels is missing or wrong: write ?sentinel_password=… into the URL, and "
        "sentinel_username=… if they have users",
    ),
    (exceptions.OutOfMemoryError, "OOM ", "its memory is full and its policy evicts nothing: raise its maxmemory"),
    (
        exceptions.ReadOnlyError,
        _READ_ONLY,
        "it is a replica, which rejects writes: name the master, or write the URL as redis+sentinel://",
    ),
    (exceptions.BusyLoadingError, "LOADING ", "it is still loading its data"),
    (exceptions.NoPermissionError, "ACL failure in script", _MISSING_RIGHTS),
    (None, "user executing the script can't", _MISSING_RIGHTS),
    (exceptions.AuthenticationError, "NOAUTH", _BAD_CREDENTIALS),
    (None, "unauthenticated ", _BAD_CREDENTIALS),  # Redis 7 rejects a command with many arguments before it parses it
    (
        None,
        _WRONG_TYPE,
        "a key of a limit has a wrong type, because another program writes keys that begin with tk1: into this "
        "database. Delete that key, and give the limiter its own database",
    ),
    (
        None,
        "DB index",
        "it has no database with the number in the URL: use a smaller number, or see CONFIG GET databases",
    ),
    (
        None,
        "CERTIFICATE_VERIFY_FAILED",
        "its TLS certificate is not trusted, or not valid for this host name: name the certificate authority with "
        "?ssl_ca_certs=… in the URL, and use a host name that is in the certificate",
    ),
    (
        None,
        "Cluster mode is not enabled",
        "it is not a node of a cluster, or its user may not list the nodes: write its URL as redis://, or allow the "
        "user +cluster",
    ),
    (None, "MISCONF", "it cannot save its data, so it rejects writes: see its log and its disk"),
    (exceptions.MasterDownError, _MASTER_DOWN, "it is a replica that has lost its master"),
    (
        exceptions.ClusterDownError,
        "CLUSTERDOWN",
        "its cluster is down, or no node serves the hash slot: see CLUSTER INFO",
    ),
    (None, "NOREPLICAS", "too few replicas are connected, so it rejects writes: see its min-replicas-to-write"),
    (None, "BUSY ", "it is busy with a slow script of another program"),
    (None, "non deterministic commands", "it is older than Redis 5: use 6.2 or later"),
    (
        None,
        "nknown command",
        "it lacks a command, because it is too old, or because a command is renamed: use Redis 6.2 or later",
    ),
)


def map_error(error: Exception) -> ConfigurationError | StoreUnavailable:
    """
    Return the error of throttlekit for one of `STORE_ERRORS`. The message does not repeat the error's own text, which
    may contain a host, a user or a job's argument.
    """
    if isinstance(error, _CLUSTER_ERRORS) or str(error).startswith(_CLUSTER_PREFIXES):
        return ConfigurationError("the store is a node of a Redis Cluster: write its URL as redis+cluster://host:port")
    if isinstance(error, UnicodeError):  # raised before anything was sent
        return ConfigurationError(
            "a text in the request cannot be sent to the store: it must be text that UTF-8 can encode"
        )
    if isinstance(error, exceptions.ResponseError) and _MISSING_FUNCTION.search(str(error)):
        return ConfigurationError(
            "the store's server lacks a function that Redis has in scripts (redis.sha1hex or cjson.decode), as "
            "fakeredis does: use Redis 6.2 or later, or Valkey; in tests, throttlekit.testing.in_memory"
        )
    message, remedy = f"the store gave no usable answer: {type(error).__name__}", _find_remedy(error)[1]
    return StoreUnavailable(f"{message}: {remedy}" if remedy else message, part="" if _is_outage(error) else None)


def _is_outage(error: Exception) -> bool:
    """Whether *error*, one of `STORE_ERRORS`, means that other calls would fail as well."""
    sign, remedy = _find_remedy(error)
    if isinstance(error, _OUTAGES) or remedy:
        return sign != _WRONG_TYPE
    if isinstance(error, exceptions.ResponseError):
        # A proxy without a connection to its server replies with its own text, so an unknown text is an outage.
        return not isinstance(error, exceptions.TryAgainError) and not _OF_ONE_CALL.search(str(error))
    # A ValueError is a reply that is not from Redis. An UnusableReply is from Redis, and concerns only one call.
    return isinstance(error, ValueError) and not isinstance(error, (UnicodeError, UnusableReply))


def remedy_of(error: StoreUnavailable) -> str:
    """Return the cause and its remedy, as "cause: remedy"; "" if only a missing response is known."""
    return _find_remedy(error.__cause__)[1] if isinstance(error.__cause__, Exception) else ""


def is_connection_failure(error: BaseException | None) -> bool:
    """Whether the connection failed, so that the other connections to the server may be dead as well."""
    return isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError))


def is_replica(error: Exception) -> bool:
    """Whether the server is a replica, so that another server may be the master now."""
    return _find_remedy(error)[0] in (_READ_ONLY, _MASTER_DOWN)


def _find_remedy(error: Exception) -> tuple[str, str]:
    """Return the text by which *error* was recognized, and the remedy; "" and "" if it is not in the table."""
    if isinstance(error, exceptions.RedisClusterException) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # the error of the last node that redis-py tried
    readable = (exceptions.ResponseError, exceptions.ConnectionError, exceptions.RedisClusterException)
    text = str(error) if isinstance(error, readable) else ""
    for kind, sign, remedy in _REMEDIES:
        if (kind is not None and isinstance(error, kind)) or (sign and sign in text):
            return sign, remedy
    return "", ""
