"""Which errors are an outage of the store, and which concern one call."""

from __future__ import annotations

import re
import ssl
from importlib import resources

import pytest
from redis import exceptions

import throttlekit_lua
from throttlekit import ConfigurationError, StoreUnavailable
from throttlekit.stores.errors import SentinelRefused, UnknownService, map_error
from throttlekit.stores.wire import UnusableReply

OUTAGES: list[Exception] = [
    exceptions.ConnectionError("Error 111 connecting to limits:6379. Connection refused."),
    exceptions.TimeoutError("Timeout reading from socket"),
    exceptions.MaxConnectionsError("Too many connections"),
    ConnectionResetError(104, "Connection reset by peer"),
    ssl.SSLError("CERTIFICATE_VERIFY_FAILED"),
    exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    exceptions.AuthenticationError("Authentication required."),
    exceptions.ResponseError("NOAUTH Authentication required."),
    exceptions.ResponseError("unauthenticated multibulk length"),
    exceptions.NoPermissionError("this user has no permissions to run the 'evalsha' command"),
    exceptions.ResponseError("ERR ACL failure in script: this user has no permissions to run the 'set' command"),
    exceptions.ResponseError("The user executing the script can't access at least one of the keys"),
    exceptions.ReadOnlyError("You can't write against a read only replica."),
    exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist on disk"),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    exceptions.MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
    exceptions.ResponseError("BUSY Redis is busy running a script."),
    exceptions.ClusterDownError("The cluster is down"),
    exceptions.ClusterError("TTL exhausted."),
    exceptions.RedisClusterException("Redis Cluster cannot be connected."),
    exceptions.SlotNotCoveredError('Slot "1" not covered by the cluster.'),
    UnknownService("main is not a service of the Sentinels"),
    SentinelRefused("the Sentinels rejected the user or password"),
    exceptions.ResponseError("DB index is out of range"),
    exceptions.ResponseError("unknown command 'EVALSHA', with args beginning with: "),
    exceptions.ResponseError("Write commands not allowed after non deterministic commands."),
    exceptions.ResponseError("upstream failure"),
    exceptions.ResponseError("Connection timed out"),
    exceptions.ResponseError("Out of memory"),
    exceptions.InvalidResponse("Protocol Error: b'HTTP/1.1 400 Bad Request'"),
    ValueError("invalid literal for int() with base 10: b'TTP/1.1 400 Bad Request'"),
]
REJECTED: list[Exception] = [
    exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    exceptions.ResponseError("ERR user_script:40: attempt to compare nil with number"),
    exceptions.ResponseError("ERR user_script:40: attempt to call field 'use' (a nil value)"),
    exceptions.ResponseError("Protocol error: too big bulk count string"),
    exceptions.DataError("Invalid input of type: 'NoneType'."),
    exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
    UnusableReply("not a reply of the script: b'?'"),
]
IMPOSSIBLE: list[Exception] = [
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    exceptions.MovedError("1 127.0.0.1:7001"),
    exceptions.AskError("1 127.0.0.1:7001"),
    exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"),
    exceptions.ResponseError("MOVED 1 127.0.0.1:7001"),
    exceptions.ResponseError("user_script:136: attempt to call field 'sha1hex' (a nil value) script: 7d2f"),
    exceptions.ResponseError("user_script:136: attempt to call a nil value (field 'sha1hex') script: 7d2f"),
    exceptions.ResponseError("user_script:20: attempt to index global 'cjson' (a nil value)"),
    exceptions.ResponseError("Script attempted to access nonexistent global variable 'cjson'"),
]


def _id(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:24]}"


@pytest.mark.parametrize("error", OUTAGES, ids=_id)
def test_outage_concerns_every_call(error: Exception) -> None:
    """The breaker opens if there is no connection, no reply in time, or a server that rejects every call."""
    raised = map_error(error)
    assert isinstance(raised, StoreUnavailable)
    assert raised.part == ""


@pytest.mark.parametrize("error", REJECTED, ids=_id)
def test_rejected_call_concerns_no_other(error: Exception) -> None:
    """If the server rejects one call, the breaker stays closed, because the server is up."""
    raised = map_error(error)
    assert isinstance(raised, StoreUnavailable)
    assert raised.part is None


@pytest.mark.parametrize("error", IMPOSSIBLE, ids=_id)
def test_impossible_call_is_a_configuration_error(error: Exception) -> None:
    """A job with such a call fails at once; it is not deferred every second."""
    assert isinstance(map_error(error), ConfigurationError)


@pytest.mark.parametrize("error", [*OUTAGES, *REJECTED, *IMPOSSIBLE], ids=_id)
def test_error_does_not_repeat_the_text_of_its_cause(error: Exception) -> None:
    """The error does not repeat the text of its cause, which may contain a host, a user or an argument."""
    assert str(error) not in str(map_error(error))


def test_functions_that_a_server_may_lack_are_those_that_the_scripts_call() -> None:
    """An imitation of Redis may lack all but redis.call; each has an error that says so."""
    names = [file.name for file in resources.files(throttlekit_lua).iterdir()]
    text = "".join(throttlekit_lua.script(name.removesuffix(".lua")) for name in names if name.endswith(".lua"))
    called = set(re.findall(r"\b(?:redis|cjson|struct|cmsgpack|bit)\.\w+", text)) - {"redis.call"}
    assert called == {"redis.sha1hex", "cjson.decode"}
