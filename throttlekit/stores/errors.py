"""What goes wrong with a server, in words for who has to mend it: every fault of redis-py by one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from redis import exceptions

from throttlekit.errors import ConfigurationError, StoreUnavailable

__all__ = ["UNREADABLE", "SentinelRefused", "UnknownService", "answered", "lost_touch", "remedy_of"]

_T = TypeVar("_T")


class UnknownService(exceptions.ConnectionError):
    """The Sentinels that answer know no service of that name."""


class SentinelRefused(exceptions.ConnectionError):
    """A Sentinel wants another password, and no other answers."""


_OF_A_CLUSTER = (exceptions.AskError, exceptions.ClusterCrossSlotError)  # a MOVED is an AskError too
_CLUSTER_SIGNS = ("MOVED ", "ASK ", "CROSSSLOT ")  # what redis-py 5.0 leaves of them
# Not every error of redis-py is a RedisError: those of its cluster client are not.
_FAULTS: tuple[type[Exception], ...] = tuple(
    fault for fault in vars(exceptions).values() if isinstance(fault, type) and issubclass(fault, Exception)
)
UNREADABLE: tuple[type[Exception], ...] = (*_FAULTS, ValueError, TypeError)
_NO_ANSWER: tuple[type[Exception], ...] = (*_FAULTS, OSError, ValueError)

_ALLOW = (
    "its user is not allowed what the limiter needs: ACL SETUSER … "
    "~tk1:* +@read +@write +@connection -@dangerous +select +eval +evalsha +time, and +cluster of a cluster"
)
_WHO = "its user or password is missing or wrong"
_OTHER_TYPE = "WRONGTYPE"
# By class, or by what the text holds: before Redis 7, what fails inside a script is a ResponseError of any kind.
_TOLD: tuple[tuple[type[Exception] | None, str, str], ...] = (
    (UnknownService, "", "the Sentinels know no service of the name in the URL: see SENTINEL MASTERS"),
    (
        SentinelRefused,
        "",
        "the user or password of the Sentinels is missing or wrong: write ?sentinel_password=… into the URL, and "
        "sentinel_username=… if they have users",
    ),
    (exceptions.OutOfMemoryError, "OOM ", "its memory is full and its policy evicts nothing: raise its maxmemory"),
    (
        exceptions.ReadOnlyError,
        "READONLY ",
        "it is a replica, which takes no writes: name the master, or write the URL as redis+sentinel://",
    ),
    (exceptions.BusyLoadingError, "LOADING ", "it is still loading its data"),
    (exceptions.NoPermissionError, "ACL failure in script", _ALLOW),
    (None, "user executing the script can't", _ALLOW),
    (exceptions.AuthenticationError, "NOAUTH", _WHO),
    (None, "unauthenticated ", _WHO),  # what Redis 7 says to as many arguments as ours, before it reads them
    (
        None,
        _OTHER_TYPE,
        "a key of a limit holds another type of value, so somebody else writes keys that begin with tk1: into this "
        "database. Delete that key, and give the limiter a database of its own",
    ),
    (
        None,
        "DB index",
        "it has no database of the number in the URL: take a smaller one, or see CONFIG GET databases",
    ),
    (
        None,
        "CERTIFICATE_VERIFY_FAILED",
        "nobody vouches for its TLS certificate, or not under this name: name the authority with ?ssl_ca_certs=… in "
        "the URL, and the server by a name that the certificate holds",
    ),
    (
        None,
        "Cluster mode is not enabled",
        "it is no node of a cluster, or its user may not ask for the others: write its URL as redis://, or allow the "
        "user +cluster",
    ),
    (None, "MISCONF", "it cannot save its data, and so takes no writes: see its log and its disk"),
    (exceptions.MasterDownError, "MASTERDOWN", "it is a replica that has lost its master"),
    (exceptions.ClusterDownError, "CLUSTERDOWN", "its cluster is down, or nobody serves the slot: see CLUSTER INFO"),
    (None, "BUSY ", "a script of somebody else's holds it up"),
    (None, "non deterministic commands", "it is older than Redis 5: take 6.2 or later"),
    (None, "nknown command", "it lacks a command, by its age or its configuration: take Redis 6.2 or later, as it is"),
)


def answered(question: Callable[[], _T]) -> _T:
    """
    Run *question*; whatever goes wrong with the server becomes `StoreUnavailable`. The one place that maps.

    Raises:
        ConfigurationError: The server is a node of a cluster, and was not asked as one.
        StoreUnavailable: Anything else. Of the error's own text nothing is told: it may hold a host or a user.
    """
    try:
        return question()
    except _NO_ANSWER as error:
        if isinstance(error, _OF_A_CLUSTER) or str(error).startswith(_CLUSTER_SIGNS):
            raise ConfigurationError(
                "the store is a node of a Redis Cluster: write its URL as redis+cluster://host:port"
            ) from error
        found, remedy = _told(error)
        said = f"the store gave no usable answer: {type(error).__name__}"
        # The server is well; it is asked on, about everything else.
        part = None if found == _OTHER_TYPE else ""
        raise StoreUnavailable(f"{said}: {remedy}" if remedy else said, part=part) from error


def remedy_of(error: StoreUnavailable) -> str:
    """What was found and what mends it, as "this: that"; "" if only that nothing was heard of the server."""
    return _told(error.__cause__)[1] if isinstance(error.__cause__, Exception) else ""


def lost_touch(error: StoreUnavailable) -> bool:
    """Whether nothing was heard of the server, so that its other connections may be as dead."""
    cause = error.__cause__
    return isinstance(cause, (exceptions.ConnectionError, exceptions.TimeoutError, OSError))


def _told(error: Exception) -> tuple[str, str]:
    if isinstance(error, exceptions.RedisClusterException) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what the last node that was asked for the others said
    ours = (exceptions.ResponseError, exceptions.ConnectionError, exceptions.RedisClusterException)
    text = str(error) if isinstance(error, ours) else ""
    for kind, sign, remedy in _TOLD:
        if (kind is not None and isinstance(error, kind)) or (sign and sign in text):
            return sign, remedy
    return "", ""
