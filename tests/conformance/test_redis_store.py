"""What only the Redis store guarantees: one command per decision, and a defined error for every error of the server."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis import exceptions

from conformance.bench import NOW_US, Bench
from support.servers.processes import free_port
from support.servers.stores import ask
from throttlekit import (
    ConfigurationError,
    FixedWindow,
    Job,
    LeakyBucket,
    Limiter,
    SlidingLog,
    SlidingWindow,
    StoreUnavailable,
    TokenBucket,
)
from throttlekit._core.answer import WITHOUT_JOB, Caller, Requester
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.change import change_rate
from throttlekit._core.storage_keys import bucket_name, wait_names
from throttlekit.stores import Correction, Request, StoreClaim
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner", "10/s", burst=5)
FIVE: Sequence[Limit] = (
    LIMIT,
    LeakyBucket("leaky", "1/m"),
    FixedWindow("window", "5/h", tz="Europe/Berlin"),
    SlidingWindow("counter", "5/h"),
    SlidingLog("log", "5/h"),
)
JOB = Job(id="1", name="call_partner")
BUCKET = bucket_name(LIMIT.name, "", LIMIT.fingerprint)


def _claim(limit: Limit, cost: int = 1) -> StoreClaim:
    bucket = bucket_name(limit.name, "", limit.fingerprint)
    return StoreClaim(bucket, limit.bind(cost, NOW_US), cost, limit.queue)


def _request(*limits: Limit, job: str = "") -> Request:
    """Return the request of a job that waits if it is denied; without an id, of a caller that reserves no position."""
    return Request([_claim(limit) for limit in limits], Requester(Caller.JOB, job, "p") if job else WITHOUT_JOB)


def _calls(client: Any) -> dict[str, int]:
    """Return how often each command was called since CONFIG RESETSTAT, without the commands of this function."""
    stats = client.info("commandstats").items()
    calls = {name.removeprefix("cmdstat_").partition("|")[0]: each["calls"] for name, each in stats}
    return {name: count for name, count in calls.items() if name not in ("config", "info")}


def test_one_evalsha_per_decision(client: Any, store: RedisStore) -> None:
    """A grant, each denial, a peek and a settlement are one command each, for five algorithms at once."""
    limiter = Limiter(store)

    def verbs() -> list[bool]:
        granted = limiter.acquire(*FIVE, cost=1)
        denied = [limiter.acquire(*FIVE, job=JOB) for _ in range(2)]
        looked = limiter.peek(*FIVE)
        limiter.settle(granted, actual=0, limit=FIVE[4])
        return [bool(each) for each in (granted, *denied, looked)]

    verbs()
    limiter.reset(*FIVE)
    client.config_resetstat()
    assert verbs() == [True, False, False, False]
    inner = {"exists", "get", "set", "del", "unlink", "time", "getrange", "setrange", "pexpire"}
    sent = {name: count for name, count in _calls(client).items() if name not in inner and name[0] not in "hz"}
    assert sent == {"evalsha": 5}


@pytest.mark.parametrize("id", [5, None, b"x"])
def test_a_job_whose_id_is_no_text_waits(store: RedisStore, id: Any) -> None:
    """The scripts get a text, whatever type of id the framework gives its jobs."""
    limiter, slow = Limiter(store), TokenBucket("slow", "1/h", burst=1)
    assert limiter.acquire(slow, job=Job(id=id)).allowed
    assert limiter.acquire(slow, job=Job(id=id)).reason == "exhausted"


def test_a_lost_script_is_sent_again(client: Any, store: RedisStore) -> None:
    """After SCRIPT FLUSH or a restart, the next call sends its script again, and a decision charges once."""
    ask(store, _request(LIMIT))
    client.script_flush()
    client.config_resetstat()
    assert ask(store, _request(LIMIT)).allowed
    assert ask(store, _request(LIMIT)).allowed
    calls = _calls(client)
    assert (calls["eval"], calls["evalsha"]) == (1, 2)
    tat = int(client.get(BUCKET))
    now_s, now_us = client.time()
    assert 0 < tat - (now_s * 1_000_000 + now_us) <= 300_000
    client.script_flush()
    assert store.list_waiting(_claim(LIMIT)).jobs == 0


@pytest.mark.parametrize("which", [1, 2], ids=["order", "jobs"])
def test_a_waitlist_of_another_type_is_a_store_failure(client: Any, store: RedisStore, which: int) -> None:
    """A waitlist key of another type raises StoreUnavailable. (For a limit's own key: see test_server_faults.py.)"""
    assert store.decide([_claim(LIMIT, 5)], WITHOUT_JOB).allowed
    assert not ask(store, _request(LIMIT, job="1")).allowed
    name = (BUCKET, *wait_names(BUCKET))[which]
    client.delete(name)
    client.rpush(name, "x")
    client.expire(name, 60)
    with pytest.raises(StoreUnavailable) as caught:
        ask(store, _request(LIMIT, job="1"))
    assert isinstance(caught.value.__cause__, exceptions.ResponseError)


@pytest.mark.parametrize(
    ("limit", "garbage"),
    [
        *((LIMIT, garbage) for garbage in ("", "12 monkeys", "12 3 4 5", "12 3 4 5 6 7", "12 3 x", "\x00\xff")),
        *((limit, garbage) for limit in FIVE[2:4] for garbage in ("", "x", "-1 5", "1e9 5", "1 2 3 4", "garbage")),
        *((FIVE[4], garbage) for garbage in ("", "x", *("\0" * length for length in (6, 7, 13, 14, 50)))),
    ],
    ids=lambda value: value.algorithm if isinstance(value, Limit) else repr(value),
)
def test_a_value_of_another_format_is_a_full_limit(client: Any, store: RedisStore, limit: Limit, garbage: str) -> None:
    """A stored value of another format counts like a limit that was never used."""
    client.set(_claim(limit).bucket, garbage, ex=60)
    assert [ask(store, _request(limit), 10**15).allowed for _ in range(6)] == [True] * 5 + [False]


_GARBAGE = ["", "o p", "w p 151 1 x y", "12 monkeys", "o p x 1 0 - 1 0 0  ", "\x00\xff"]


@pytest.mark.parametrize("garbage", _GARBAGE)
@pytest.mark.parametrize("which", ["numbers", "order", "entries"])
def test_garbage_on_a_waitlist_holds_up_no_job(client: Any, store: RedisStore, which: str, garbage: str) -> None:
    """
    An entry that no script wrote is no job: a waiting job is admitted within seconds, or is denied as for a failed
    store until a reset.
    """
    record, order, entries, _ = wait_names(BUCKET)
    now_us = 10**15
    for _ in range(5):
        assert ask(store, _request(LIMIT), now_us).allowed
    assert not ask(store, _request(LIMIT, job="one"), now_us).allowed
    if which == "numbers":
        client.hset(record, mapping=dict.fromkeys(client.hkeys(record), garbage) | {"pq": garbage, garbage: garbage})
    elif which == "order":
        client.zadd(order, {garbage: 0, f"o{garbage}": 0, f"h{garbage}|x": 0, f"k{garbage}": 0})
    else:
        client.hset(entries, mapping={"one": garbage, "other": garbage})
    with contextlib.suppress(StoreUnavailable):
        for _ in range(40):
            now_us += 250_000
            if ask(store, _request(LIMIT, job="one"), now_us).allowed:
                return
        pytest.fail("the job still waits")
    store.reset([BUCKET])
    assert ask(store, _request(LIMIT, job="one"), now_us).allowed


def _store_with(execute: Callable[..., Any]) -> RedisStore:
    """Return a store without a server, whose commands call *execute*."""
    store = RedisStore("redis://localhost:1/0")
    store._pool.execute = execute  # type: ignore[method-assign]
    return store


OF_A_CLUSTER = (exceptions.AskError, exceptions.MovedError, exceptions.ClusterCrossSlotError)
FAULTS = [
    *(each for each in vars(exceptions).values() if inspect.isclass(each) and issubclass(each, Exception)),
    *(OSError, ConnectionResetError, TimeoutError),
]


@pytest.mark.parametrize("fault", [each for each in FAULTS if each is not exceptions.NoScriptError])
def test_every_error_of_the_client_is_mapped(fault: type[Exception]) -> None:
    """
    Errors become StoreUnavailable, which names the error and not the server. An error of a cluster's node is no outage,
    which would defer jobs without end: the URL is wrong, and the message says what is right.
    """

    def fail(*_: Any, **__: Any) -> None:
        try:
            raise fault("secret.host:6379 default hunter2")
        except (ValueError, IndexError):  # MovedError and similar errors parse their text
            raise fault("1 secret.host:6379") from None

    store = _store_with(fail)
    verbs: list[Callable[[], object]] = [
        lambda: ask(store, _request(LIMIT)),
        lambda: store.settle([Correction(BUCKET, LIMIT.bind(1), NOW_US, 1)]),
        lambda: store.reset([BUCKET]),
    ]
    for verb in verbs:
        with pytest.raises(ConfigurationError if fault in OF_A_CLUSTER else StoreUnavailable) as caught:
            verb()
        assert isinstance(caught.value.__cause__, fault)
        assert "secret" not in str(caught.value)
        remedy = "the store is a node of a Redis Cluster: write its URL as redis+cluster://host:port"
        assert (remedy if fault in OF_A_CLUSTER else fault.__name__) in str(caught.value)


@pytest.mark.parametrize(
    "reply", [None, 7, b"OK", b"", [0, 1, 1], b"0 1", b"-9 1 1 1 1 1 1", b"-1 x 1 1 1 1 1", b"-1 1 1 1 1 1"]
)
def test_a_reply_of_another_shape_is_a_store_failure(reply: Any) -> None:
    """A reply that the script cannot have sent, such as one from a proxy, is StoreUnavailable."""
    with pytest.raises(StoreUnavailable):
        ask(_store_with(lambda _: reply), _request(LIMIT))


def test_an_error_in_the_code_of_the_store_is_not_hidden() -> None:
    """A programming error is raised, and is not an outage."""

    def fail(_: bytes) -> None:
        raise AttributeError("a mistake")

    with pytest.raises(AttributeError):
        ask(_store_with(fail), _request(LIMIT))


@pytest.mark.parametrize("verb", ["peek", "reset", "settle"])
def test_a_store_that_is_down_fails_the_other_methods(verb: str) -> None:
    """Peek, reset and settle have no job to defer, so they raise StoreUnavailable, without the URL."""
    limiter = Limiter(f"redis://user:hunter2@127.0.0.1:{free_port()}/0")
    granted = Limiter().acquire(LIMIT)
    with pytest.raises(StoreUnavailable) as caught:
        limiter.settle(granted, actual=3) if verb == "settle" else getattr(limiter, verb)(LIMIT)
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@localhost:port/0",
        "redis://user:hunter2@localhost/0?socket_timeout=soon",
        "redis://user:hunter2@localhost/0?no_such_option=1",
        "redis://user:hunter2@localhost/0?retry=3",
        "redis+cluster://user:hunter2@localhost?retry=3",
        "redis+sentinel://user:hunter2@localhost/service/0?retry=3",
        "redis://user:hunter2@localhost/0?cache_config=1&protocol=3",
        "redis://user:hunter2@[localhost/0",
        "redis://:12?hunter2@localhost/0",
        "redis://:12#hunter2@localhost/0",
        "redis://user:hunter2@localhost/0#1",
        "redis://user:hunter2@localhost/0?credential_provider=x",
        "redis://user:hunter2@localhost/0?encoding=utf-16",
        "redis://user:hunter2@localhost/0?client_name=two%20words",
        "redis+cluster://user:hunter2@localhost/1",
        "redis+cluster://user:hunter2@localhost?db=1",
        "rediss+cluster://user:hunter2@localhost:port",
        "unix://",
        "unix://tmp/redis.sock",
        *(f"redis://user:hunter2@localhost/0?socket_timeout={value}" for value in ("0", "-1", "nan", "inf", "61")),
        "redis+sentinel://user:hunter2@localhost/service/0?socket_connect_timeout=0",
        "redis+sentinel://user:hunter2@localhost/service/0?decode_responses=1",
    ],
)
def test_an_unusable_url_fails_at_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A URL that can never work raises when the store is created. No message, cause or log line has its password."""
    with pytest.raises(ConfigurationError) as caught:
        Limiter(url)
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}{caplog.text}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("?socket_timeout=0", "socket_timeout in the store's URL must be more than 0 s, and at most 60 s"),
        ("?hunter2=1", "the store's URL may only have the options db, username,"),
        ("?client_name=a%20b", "client_name in the store's URL must be"),
    ],
)
def test_an_option_that_cannot_work_is_a_configuration_error(end: str, message: str) -> None:
    """The message has the option's name only if it is a known one: an unknown name may be a part of a password."""
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        Limiter(f"redis://localhost/0{end}")
    assert "hunter2" not in str(caught.value)


def test_a_decision_uses_the_clock_of_the_server(client: Any, store: RedisStore) -> None:
    """Without a time argument, a decision is made at the server's time."""
    before_s, before_us = client.time()
    now_us = ask(store, _request(LIMIT)).now_us
    after_s, after_us = client.time()
    assert before_s * 1_000_000 + before_us <= now_us <= after_s * 1_000_000 + after_us


# What is written, and when it expires


@pytest.mark.parametrize("limit", FIVE, ids=lambda limit: limit.algorithm)
def test_every_key_of_every_algorithm_expires(client: Any, store: RedisStore, limit: Limit) -> None:
    """After each command, every key has a time to live that fits its limit."""
    inner, seen = store._pool.execute, set[bytes]()

    def execute_and_check(frame: bytes) -> Any:
        answer = inner(frame)
        ttls = {key: client.pttl(key) for key in client.scan_iter("*")}
        assert all(0 < ttl <= 2 * 86_400_000 + 5_000 or ttl == -2 for ttl in ttls.values()), (frame, ttls)
        seen.update(ttls)
        return answer

    store._pool.execute = execute_and_check  # type: ignore[method-assign]
    limiter = Limiter(store)
    decision = limiter.acquire(limit, cost=limit.capacity)
    for job in (JOB, JOB, None, Job(id="2")):
        assert not limiter.acquire(limit, job=job)
    decision = limiter.settle(decision, actual=limit.capacity + 3)
    limiter.settle(decision, actual=1)
    assert {b"wait1", b"order1", b"entries1"} < {name.rpartition(b":")[2] for name in seen}


def test_two_rates_that_fill_in_the_same_time_are_distinguished(store: RedisStore) -> None:
    """After 1 000 of 3 000 units are taken, 1 500 are left at half the rate: the whole burst of that rate."""
    bench, fast = Bench(store), TokenBucket("x", "300000/s", burst=3000)
    assert bench.decide(fast, cost=1000).allowed
    assert bench.units_left(change_rate(fast, "150000/s", 1500)) == 1500
