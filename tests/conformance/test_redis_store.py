"""What only the Redis store promises: one command a decision, and every fault of the server by one name."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis import exceptions

from support.servers import free_port
from throttlekit import ConfigurationError, Job, Limiter, StoreUnavailable, TokenBucket
from throttlekit._core.acquire import Ask, Caller, Reason
from throttlekit._core.keys import bucket_name, line_name
from throttlekit.stores import Claim, Request
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner", "10/s", burst=5)
OTHER = TokenBucket("account", "10/s", burst=5)
JOB = Job(id="1", name="call_partner")


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_url)
    yield client
    client.close()


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    store = RedisStore(redis_url, timeout=5)
    yield store
    store.close()


def _request(*limits: TokenBucket, caller: Caller = Caller.JOB) -> Request:
    claims = []
    for limit in limits:
        charge = limit.bucket.charge(1)
        claims.append(
            Claim(
                bucket_name(limit.name, "", limit.fingerprint),
                line_name(limit.name, "", limit.fingerprint),
                Ask(charge, 100_000),
            )
        )
    return Request(claims, caller)


def _calls(client: Any) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in client.info("commandstats").items()}


def test_one_evalsha_per_decision(client: Any, store: RedisStore) -> None:
    """A decision is one EVALSHA, granted or denied, however many limits it asks."""
    limiter = Limiter(store)
    limiter.acquire(LIMIT, OTHER, job=JOB)
    client.config_resetstat()
    decisions = [limiter.acquire(LIMIT, OTHER, job=JOB) for _ in range(20)]
    calls = _calls(client)
    inner = {"get", "set", "time"}
    assert {decision.allowed for decision in decisions} == {True, False}
    assert {name: count for name, count in calls.items() if name not in inner | {"config|resetstat", "info"}} == {
        "evalsha": 20
    }


def test_denial_writes_one_line(client: Any, store: RedisStore) -> None:
    """Inside the script, a denial over two limits reads the clock, two buckets and two lines, and writes one line."""
    limiter = Limiter(store)
    for _ in range(6):
        limiter.acquire(LIMIT, OTHER, job=JOB)
    client.config_resetstat()
    assert not limiter.acquire(LIMIT, OTHER, job=JOB)
    calls = _calls(client)
    assert (calls["time"], calls["get"], calls["set"]) == (1, 4, 1)


def test_forgotten_script_is_sent_again(client: Any, store: RedisStore) -> None:
    """After SCRIPT FLUSH or a restart, the next decision sends the script along, and charges once."""
    store.acquire(_request(LIMIT))
    client.script_flush()
    client.config_resetstat()
    assert store.acquire(_request(LIMIT)).allowed
    assert store.acquire(_request(LIMIT)).allowed
    calls = _calls(client)
    assert (calls["eval"], calls["evalsha"]) == (1, 2)
    tat = int(client.get(bucket_name("partner", "", LIMIT.fingerprint)))
    now_s, now_us = client.time()
    assert 0 < tat - (now_s * 1_000_000 + now_us) <= 300_000


def test_every_key_expires(client: Any, store: RedisStore) -> None:
    """Every key has a time to live: until a grace time after it says nothing any more."""
    limiter = Limiter(store)
    for _ in range(9):
        limiter.acquire(LIMIT, job=JOB)
        limiter.acquire(LIMIT)
    ttls = {key: client.pttl(key) for key in client.scan_iter("*")}
    assert len(ttls) == 2
    assert all(4_000 < ttl <= 7_000 for ttl in ttls.values()), ttls


@pytest.mark.parametrize("name_of", [bucket_name, line_name])
def test_key_of_another_type_is_a_store_failure(client: Any, store: RedisStore, name_of: Any) -> None:
    """A key of ours that holds a list is no answer: StoreUnavailable, and the server's error is the cause."""
    which = name_of("partner", "", LIMIT.fingerprint)
    store.acquire(_request(LIMIT))
    client.delete(which)
    client.rpush(which, "x")
    client.expire(which, 60)
    with pytest.raises(StoreUnavailable) as caught:
        store.acquire(_request(LIMIT))
    assert isinstance(caught.value.__cause__, exceptions.ResponseError)


@pytest.mark.parametrize("garbage", ["", "garbage", "12 monkeys", "\x00\xff"])
def test_bucket_that_is_no_number_counts_as_full(client: Any, store: RedisStore, garbage: str) -> None:
    """A bucket that holds something else than a number is taken for one that has never been used."""
    client.set(bucket_name("partner", "", LIMIT.fingerprint), garbage, ex=60)
    assert [store.acquire(_request(LIMIT), now_us=10**15).allowed for _ in range(6)] == [True] * 5 + [False]


@pytest.mark.parametrize("garbage", ["", "1 2", "1 2 3 4", "a b c", "1 2 3\n", "-1 2 3", "1e9 2 3"])
def test_line_that_is_no_line_counts_as_empty(client: Any, store: RedisStore, garbage: str) -> None:
    """A line that holds something else than three instants is taken for an empty one."""
    for _ in range(5):
        store.acquire(_request(LIMIT), now_us=10**15)
    client.set(line_name("partner", "", LIMIT.fingerprint), garbage, ex=60)
    denied = store.acquire(_request(LIMIT), now_us=10**15)
    assert (denied.reason, denied.slot_us) == (Reason.EXHAUSTED, 10**15 + 100_000)


def _faults() -> list[type[Exception]]:
    return sorted(
        (
            fault
            for fault in vars(exceptions).values()
            if inspect.isclass(fault) and issubclass(fault, Exception) and fault is not exceptions.NoScriptError
        ),
        key=lambda fault: fault.__name__,
    )


def _raised(fault: type[Exception]) -> Exception:
    try:
        return fault("secret.host:6379 default hunter2")
    except (ValueError, IndexError):  # MovedError and its kind read their text
        return fault("1 secret.host:6379")


@pytest.mark.parametrize("fault", [*_faults(), OSError, ConnectionResetError, TimeoutError])
@pytest.mark.parametrize("verb", ["acquire", "reset"])
def test_every_fault_of_the_client_is_a_store_failure(
    monkeypatch: pytest.MonkeyPatch, fault: type[Exception], verb: str
) -> None:
    """Whatever redis-py raises becomes StoreUnavailable, which names the fault and not the server."""
    store = RedisStore("redis://localhost:1/0")

    def fail(*_: Any, **__: Any) -> None:
        raise _raised(fault)

    monkeypatch.setattr(store._client, "execute_command", fail)
    with pytest.raises(StoreUnavailable) as caught:
        store.acquire(_request(LIMIT)) if verb == "acquire" else store.reset(["tk1:{a:}:bucket"])
    assert isinstance(caught.value.__cause__, fault)
    assert fault.__name__ in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("reply", [None, 7, b"OK", [], [0, 1], [9, 1, 1, 1, 1, 1], [0, b"1", 1, 1, 1, 1]])
def test_reply_of_another_shape_is_a_store_failure(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    """A reply that our script does not write (a proxy's, say) is no answer."""
    store = RedisStore("redis://localhost:1/0")
    monkeypatch.setattr(store._client, "execute_command", lambda *_: reply)
    with pytest.raises(StoreUnavailable):
        store.acquire(_request(LIMIT))


def test_fault_of_our_own_is_not_disguised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the code is not taken for an outage."""
    store = RedisStore("redis://localhost:1/0")

    def fail(*_: Any) -> None:
        raise AttributeError("a mistake")

    monkeypatch.setattr(store._client, "execute_command", fail)
    with pytest.raises(AttributeError):
        store.acquire(_request(LIMIT))


def test_store_that_is_down_denies(caplog: pytest.LogCaptureFixture) -> None:
    """With no server there, a job is denied, keeps what it carries, and is told to come back in about a second."""
    limiter = Limiter(f"redis://user:hunter2@127.0.0.1:{free_port()}/0")
    carried = {"v": 1, "slot": 5, "ticket": "x", "n": 2, "since": 3}
    with caplog.at_level(logging.DEBUG):
        decision = limiter.acquire(LIMIT, job=Job(id="1", waited=carried))
    assert not decision
    assert decision.reason == "store unavailable"
    assert 0.5 <= decision.delay <= 1.5
    assert decision.waited == carried
    assert "hunter2" not in caplog.text + repr(decision)


def test_store_that_is_down_denies_guests(caplog: pytest.LogCaptureFixture) -> None:
    """With no server there, a caller without a job is denied too, and nothing is raised."""
    decision = Limiter(f"redis://127.0.0.1:{free_port()}/0").acquire(LIMIT)
    assert (decision.allowed, decision.reason, decision.waited) == (False, "store unavailable", None)


@pytest.mark.parametrize("verb", ["peek", "reset"])
def test_store_that_is_down_fails_the_other_verbs(verb: str) -> None:
    """Peek and reset have nobody to defer: they raise StoreUnavailable, without the URL."""
    limiter = Limiter(f"redis://user:hunter2@127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreUnavailable) as caught:
        getattr(limiter, verb)(LIMIT)
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@localhost:port/0",
        "redis://user:hunter2@localhost/0?socket_timeout=soon",
        "redis://user:hunter2@localhost/0?no_such_option=1",
        "redis://user:hunter2@[localhost/0",
    ],
)
def test_url_that_cannot_be_read_fails_at_once(url: str) -> None:
    """A URL that can never work fails when the store is made, and its password is not repeated."""
    with pytest.raises(ConfigurationError) as caught:
        Limiter(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_full_server_still_denies(redis_url: str, client: Any, store: RedisStore) -> None:
    """A server without memory fails the grant, charges nothing, and is told as unavailable."""
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable) as caught:
            store.acquire(_request(LIMIT))
    finally:
        client.config_set("maxmemory", "0")
    assert isinstance(caught.value.__cause__, exceptions.OutOfMemoryError)
    assert client.dbsize() == 0


def test_server_owns_the_clock(client: Any, store: RedisStore) -> None:
    """Without a time given, the decision's time is the server's."""
    before_s, before_us = client.time()
    now_us = store.acquire(_request(LIMIT)).now_us
    after_s, after_us = client.time()
    assert before_s * 1_000_000 + before_us <= now_us <= after_s * 1_000_000 + after_us
