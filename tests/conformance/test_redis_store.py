"""What only the Redis store promises: one command per decision, and every error of the server mapped to one."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import exceptions

from conformance.suite.bench import Bench
from support.servers.processes import free_port
from support.servers.stores import Listed, ask
from support.waiting import wait_until
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
from throttlekit._core.answer import WITHOUT_JOB, Asker, Caller, Reason
from throttlekit._core.late import late_owner
from throttlekit._core.limit.base import Limit, altered
from throttlekit._core.storage_keys import bucket_name, wait_names
from throttlekit.stores import Correction, Request, StoreClaim
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner", "10/s", burst=5)
OTHER = TokenBucket("account", "10/s", burst=5)
FIVE: Sequence[Limit] = (
    LIMIT,
    LeakyBucket("leaky", "1/m"),
    FixedWindow("window", "5/h", tz="Europe/Berlin"),
    SlidingWindow("counter", "5/h"),
    SlidingLog("log", "5/h"),
)
JOB = Job(id="1", name="call_partner")
BUCKET = bucket_name(LIMIT.name, "", LIMIT.fingerprint)
NOW_US = 1_800_000_000_000_000


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    store = RedisStore(redis_url, timeout=5)
    yield store
    store.close()


def _claim(limit: Limit, cost: int = 1) -> StoreClaim:
    bucket = bucket_name(limit.name, "", limit.fingerprint)
    return StoreClaim(bucket, limit.bind(cost, NOW_US), cost, limit.max_queue)


def _request(*limits: Limit, job: str = "") -> Request:
    """Of a job that waits if it is denied; without an id, of a caller that keeps no position."""
    return Request([_claim(limit) for limit in limits], Asker(Caller.JOB, job, "p") if job else WITHOUT_JOB)


def _calls(client: Any) -> dict[str, int]:
    """How often each command was called since CONFIG RESETSTAT, without the commands of this function."""
    stats = client.info("commandstats").items()
    calls = {name.removeprefix("cmdstat_").partition("|")[0]: each["calls"] for name, each in stats}
    return {name: count for name, count in calls.items() if name not in ("config", "info")}


def test_one_evalsha_per_decision(client: Any, store: RedisStore) -> None:
    """A decision is one EVALSHA, allowed or denied, for any number of limits."""
    limiter = Limiter(store)
    limiter.acquire(LIMIT, OTHER, job=JOB)
    client.config_resetstat()
    decisions = [limiter.acquire(LIMIT, OTHER, job=JOB) for _ in range(20)]
    calls = _calls(client)
    inner = {"exists", "get", "set", "time", "del", "unlink", "pexpire"}
    assert {decision.allowed for decision in decisions} == {True, False}
    sent = {name: count for name, count in calls.items() if name not in inner and name[0] not in "hz"}
    assert sent == {"evalsha": 20}


def test_denial_charges_nothing(client: Any, store: RedisStore) -> None:
    """Inside the script, a denial over two limits reads the clock and two buckets, and charges none."""
    limiter = Limiter(store)
    assert not limiter.acquire(LIMIT, cost=5).final
    assert not limiter.acquire(LIMIT, OTHER, job=JOB)
    client.config_resetstat()
    assert not limiter.acquire(LIMIT, OTHER, job=Job(id="other"))
    calls = _calls(client)
    assert (calls["time"], calls["get"], calls.get("set", 0)) == (1, 2, 0)


@pytest.mark.parametrize("id", [5, None, b"x"])
def test_job_whose_id_is_no_text_waits(store: RedisStore, id: Any) -> None:
    """The scripts read a text, whatever kind of id the framework gives its jobs."""
    limiter, slow = Limiter(store), TokenBucket("slow", "1/h", burst=1)
    assert limiter.acquire(slow, job=Job(id=id)).allowed
    assert limiter.acquire(slow, job=Job(id=id)).reason == "exhausted"


def test_forgotten_script_is_sent_again(client: Any, store: RedisStore) -> None:
    """After SCRIPT FLUSH or a restart, the next decision sends the script along, and charges once."""
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


def test_every_key_expires(client: Any, store: RedisStore) -> None:
    """Every key has a time to live: a grace time longer than its value counts, and two days where jobs wait."""
    limiter = Limiter(store)
    for _ in range(9):
        limiter.acquire(LIMIT, job=JOB)
        limiter.acquire(LIMIT)
    ttls = {key: client.pttl(key) for key in client.scan_iter("*")}
    bucket = ttls.pop(BUCKET.encode())
    assert 4_000 < bucket <= 7_000
    assert len(ttls) == 3
    assert all(7_000 < ttl <= 172_800_000 for ttl in ttls.values()), ttls


@pytest.mark.parametrize("limit", FIVE, ids=lambda limit: limit.algorithm)
@pytest.mark.parametrize("which", [0, 1, 2], ids=["bucket", "order", "jobs"])
def test_key_of_another_type_is_a_store_failure(client: Any, store: RedisStore, limit: Limit, which: int) -> None:
    """A key of a limit that holds a list is StoreUnavailable, with the server's error as the cause."""
    name = _claim(limit).names[which]
    assert store.ask([_claim(limit, limit.capacity)], Asker(Caller.JOB)).allowed
    assert not ask(store, _request(limit, job="1")).allowed
    client.delete(name)
    client.rpush(name, "x")
    client.expire(name, 60)
    with pytest.raises(StoreUnavailable) as caught:
        ask(store, _request(limit, job="1"))
    assert isinstance(caught.value.__cause__, exceptions.ResponseError)


@pytest.mark.parametrize("garbage", ["", "garbage", "12 monkeys", "12 3 4 5", "12 3 4 5 6 7", "12 3 x", "\x00\xff"])
def test_bucket_that_is_not_a_number_counts_as_full(client: Any, store: RedisStore, garbage: str) -> None:
    """A bucket that holds anything but a number counts as one that was never used."""
    client.set(BUCKET, garbage, ex=60)
    assert [ask(store, _request(LIMIT), 10**15).allowed for _ in range(6)] == [True] * 5 + [False]


@pytest.mark.parametrize(
    ("limit", "garbage"),
    [
        *((limit, garbage) for limit in FIVE[2:4] for garbage in ("", "x", "-1 5", "1e9 5", "1 2 3 4", "garbage")),
        *((FIVE[4], garbage) for garbage in ("", "x", *("\0" * length for length in (6, 7, 13, 14, 50)))),
    ],
    ids=lambda value: value.algorithm if isinstance(value, Limit) else repr(value),
)
def test_window_of_another_format_counts_as_full(client: Any, store: RedisStore, limit: Limit, garbage: str) -> None:
    """A window or log that holds another kind of value counts as one that was never used."""
    client.set(_claim(limit).bucket, garbage, ex=60)
    assert [ask(store, _request(limit), 10**15).allowed for _ in range(6)] == [True] * 5 + [False]


_GARBAGE = ["", "x", "o", "o p", "w p 151 1 x y", "12 monkeys", "o p x 1 0 - 1 0 0  ", "\x00\xff"]


@pytest.mark.parametrize("garbage", _GARBAGE)
@pytest.mark.parametrize("which", ["numbers", "order", "entries"])
def test_garbage_on_a_waitlist_holds_no_job_up(client: Any, store: RedisStore, which: str, garbage: str) -> None:
    """What no script wrote stands for no job: a job beside it passes within seconds, or fails closed until a reset."""
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


@pytest.mark.parametrize(("emptied", "after_us"), [(False, 0), (True, 100_000)], ids=["pause", "429"])
def test_waitlist_that_is_cleared_leaves_its_pause(
    client: Any, store: RedisStore, emptied: bool, after_us: int
) -> None:
    """What is counted stays, and so does a pause: as long as it was to be, also after a clock that steps back."""
    record, order, entries, _ = wait_names(BUCKET)
    now_us = ask(store, _request(LIMIT)).now_us
    for number in range(6):
        ask(store, _request(LIMIT, job=str(number)), now_us)
    store.pause([_claim(LIMIT)], 60_000_000, now_us=now_us, emptied=emptied)
    before = client.get(BUCKET)
    store.clear_waitlists([BUCKET])
    assert (client.get(BUCKET), client.exists(order, entries)) == (before, 0)
    assert client.pttl(record) > 55_000
    paused = ask(store, _request(LIMIT), now_us - 5_000_000)
    assert paused.reason is Reason.PAUSED
    assert paused.retry_us == now_us + 55_000_000 + after_us


@pytest.mark.parametrize("which", [1, 2], ids=["order", "entries"])
def test_full_queue_that_lost_its_jobs_has_room_again(client: Any, store: RedisStore, which: int) -> None:
    """Where a part of the waitlist is gone, its jobs hold up nobody for long: a newcomer waits, and passes."""
    limit = LeakyBucket("leaky", "10/s", queue=2)
    reasons = [ask(store, _request(limit, job=f"old{n}"), 10**15).reason for n in range(4)]
    assert reasons[2:] == [Reason.EXHAUSTED, Reason.FULL]
    client.delete(wait_names(_claim(limit).bucket)[which])
    now_us = 10**15
    for _ in range(40):
        now_us += 250_000
        if ask(store, _request(limit, job="new"), now_us).allowed:
            return
    pytest.fail("the newcomer does not pass")


_OF_A_CLUSTER = (exceptions.AskError, exceptions.MovedError, exceptions.ClusterCrossSlotError)


def _faults() -> list[type[Exception]]:
    return sorted(
        (
            fault
            for fault in vars(exceptions).values()
            if inspect.isclass(fault)
            and issubclass(fault, Exception)
            and fault not in (exceptions.NoScriptError, *_OF_A_CLUSTER)
        ),
        key=lambda fault: fault.__name__,
    )


def _raised(fault: type[Exception]) -> Exception:
    try:
        return fault("secret.host:6379 default hunter2")
    except (ValueError, IndexError):  # MovedError and its kind read their text
        return fault("1 secret.host:6379")


def _ask_of_one_that_fails(monkeypatch: pytest.MonkeyPatch, fault: type[Exception], verb: str) -> None:
    store = RedisStore("redis://localhost:1/0")

    def fail(*_: Any, **__: Any) -> None:
        raise _raised(fault)

    monkeypatch.setattr(store._pool, "execute", fail)
    verbs = {
        "acquire": lambda: ask(store, _request(LIMIT)),
        "settle": lambda: store.settle([Correction(BUCKET, LIMIT.bind(1), NOW_US, 1)]),
        "reset": lambda: store.reset([BUCKET]),
    }
    verbs[verb]()


@pytest.mark.parametrize("fault", [*_faults(), OSError, ConnectionResetError, TimeoutError])
@pytest.mark.parametrize("verb", ["acquire", "settle", "reset"])
def test_every_error_of_the_client_is_a_store_failure(
    monkeypatch: pytest.MonkeyPatch, fault: type[Exception], verb: str
) -> None:
    """Every error of redis-py becomes StoreUnavailable, which names the error and not the server."""
    with pytest.raises(StoreUnavailable) as caught:
        _ask_of_one_that_fails(monkeypatch, fault, verb)
    assert isinstance(caught.value.__cause__, fault)
    assert fault.__name__ in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("fault", _OF_A_CLUSTER)
@pytest.mark.parametrize("verb", ["acquire", "settle", "reset"])
def test_node_of_a_cluster_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, fault: type[Exception], verb: str
) -> None:
    """It is not an outage, which would defer jobs for ever: the URL is wrong, and the message says what is right."""
    with pytest.raises(ConfigurationError) as caught:
        _ask_of_one_that_fails(monkeypatch, fault, verb)
    assert isinstance(caught.value.__cause__, fault)
    assert str(caught.value) == "the store is a node of a Redis Cluster: write its URL as redis+cluster://host:port"


def test_log_is_stored_as_a_ring_behind_a_head(client: Any, store: RedisStore) -> None:
    """
    Numbers of 7 bytes: the position of the oldest and five times how many are in the window, the end of the debt, and
    a ring of the amount's instants.
    """
    limit = SlidingLog("log", "5/h")
    claim = _claim(limit, 2)
    assert store.ask([claim], Asker(Caller.JOB), NOW_US).allowed
    assert _numbers(client.get(claim.bucket)) == [2 + 5 * 2, 0, NOW_US, NOW_US]
    assert store.ask([claim], Asker(Caller.JOB), NOW_US + 7).allowed
    assert _numbers(client.get(claim.bucket)) == [4 + 5 * 4, 0, NOW_US, NOW_US, NOW_US + 7, NOW_US + 7]
    store.settle([Correction(claim.bucket, claim.algorithm, NOW_US + 7, 3)], now_us=NOW_US + 9)
    # The first two instants are pushed out, and owed for until an hour after them.
    ring = [NOW_US + 9, NOW_US + 9, NOW_US + 7, NOW_US + 7, NOW_US + 9]
    assert _numbers(client.get(claim.bucket)) == [2 + 5 * 5, NOW_US + 3_600_000_000, *ring]


def _numbers(stored: bytes) -> list[int]:
    assert len(stored) % 7 == 0
    return [int.from_bytes(stored[at : at + 7], "big") for at in range(0, len(stored), 7)]


@pytest.mark.parametrize(
    "reply", [None, 7, b"OK", b"", [0, 1, 1], b"0 1", b"-9 1 1 1 1 1 1", b"-1 x 1 1 1 1 1", b"-1 1 1 1 1 1"]
)
def test_reply_of_another_shape_is_a_store_failure(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    """A reply that the script cannot have sent (a proxy's, for example) is StoreUnavailable."""
    store = RedisStore("redis://localhost:1/0")
    monkeypatch.setattr(store._pool, "execute", lambda _: reply)
    with pytest.raises(StoreUnavailable):
        ask(store, _request(LIMIT))


def test_error_in_our_own_code_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the code is not taken for an outage."""
    store = RedisStore("redis://localhost:1/0")

    def fail(*_: Any) -> None:
        raise AttributeError("a mistake")

    monkeypatch.setattr(store._pool, "execute", fail)
    with pytest.raises(AttributeError):
        ask(store, _request(LIMIT))


def test_store_that_is_down_denies(caplog: pytest.LogCaptureFixture) -> None:
    """With no server there, a job is denied, and gets a delay of about a second."""
    limiter = Limiter(f"redis://user:hunter2@127.0.0.1:{free_port()}/0")
    with caplog.at_level(logging.DEBUG):
        decision = limiter.acquire(LIMIT, job=Job(id="1"))
    assert not decision
    assert decision.reason == "store unavailable"
    assert 0.5 <= decision.delay <= 1.5
    assert "hunter2" not in caplog.text + repr(decision)


def test_store_that_is_down_denies_callers_without_a_job(caplog: pytest.LogCaptureFixture) -> None:
    """With no server there, a call without a job is denied too, and nothing is raised."""
    decision = Limiter(f"redis://127.0.0.1:{free_port()}/0").acquire(LIMIT)
    assert (decision.allowed, decision.reason) == (False, "store unavailable")


@pytest.mark.parametrize("verb", ["peek", "reset", "settle"])
def test_store_that_is_down_fails_the_other_verbs(verb: str) -> None:
    """Peek, reset and settle have no job to defer: they raise StoreUnavailable, without the URL."""
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
        "unix://",
        "unix://tmp/redis.sock",
        *(f"redis://user:hunter2@localhost/0?socket_timeout={value}" for value in ("0", "-1", "nan", "inf", "61")),
        "redis+sentinel://user:hunter2@localhost/service/0?socket_connect_timeout=0",
        "redis+sentinel://user:hunter2@localhost/service/0?decode_responses=1",
    ],
)
def test_url_that_cannot_be_read_fails_at_once(url: str) -> None:
    """A URL that can never work raises when the store is made, and its password is not repeated."""
    with pytest.raises(ConfigurationError) as caught:
        Limiter(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("?socket_timeout=0", "socket_timeout in the store's URL must be more than 0 s, and at most 60 s"),
        ("?hunter2=1", "the store's URL may have the options db, username,"),
        ("?client_name=a%20b", "client_name in the store's URL must be"),
    ],
)
def test_an_option_that_cannot_work_is_a_configuration_error(end: str, message: str) -> None:
    """With its name, if it is a known one: an unknown name may be a part of a password."""
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        Limiter(f"redis://localhost/0{end}")
    assert "hunter2" not in str(caught.value)


def test_full_server_still_denies(redis_url: str, client: Any, store: RedisStore) -> None:
    """A server without memory grants nothing, charges nothing, and is StoreUnavailable."""
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable) as caught:
            ask(store, _request(LIMIT))
    finally:
        client.config_set("maxmemory", "0")
    # Before Redis 7, what fails inside a script is a ResponseError of any kind.
    assert isinstance(caught.value.__cause__, exceptions.ResponseError)
    assert "OOM" in str(caught.value.__cause__) or isinstance(caught.value.__cause__, exceptions.OutOfMemoryError)
    assert client.dbsize() == 0


def test_server_owns_the_clock(client: Any, store: RedisStore) -> None:
    """Without a time given, a decision is made at the server's time."""
    before_s, before_us = client.time()
    now_us = ask(store, _request(LIMIT)).now_us
    after_s, after_us = client.time()
    assert before_s * 1_000_000 + before_us <= now_us <= after_s * 1_000_000 + after_us


# What is written, and for how long


def _used_in_every_way(limiter: Limiter, limit: Limit) -> None:
    """Allowed, denied with a job and without, denied again, settled up, below empty, and down."""
    decision = limiter.acquire(limit, cost=limit.capacity)
    for job in (JOB, JOB, None, Job(id="2")):
        assert not limiter.acquire(limit, job=job)
    decision = limiter.settle(decision, actual=limit.capacity + 3)
    limiter.settle(decision, actual=1)


@pytest.mark.parametrize("limit", FIVE, ids=lambda limit: limit.algorithm)
def test_every_key_of_every_algorithm_expires(client: Any, limit: Limit, redis_url: str) -> None:
    """After each command, every key has a time to live, and one that its limit explains."""
    store = RedisStore(redis_url, timeout=5)
    longest_ms = 2 * 86_400_000 + 5_000
    inner = store._pool.execute
    seen: set[bytes] = set()

    def checked(frame: bytes) -> Any:
        answer = inner(frame)
        ttls = {key: client.pttl(key) for key in client.scan_iter("*")}
        assert all(0 < ttl <= longest_ms or ttl == -2 for ttl in ttls.values()), (frame, ttls)
        seen.update(ttls)
        return answer

    store._pool.execute = checked  # type: ignore[method-assign]
    _used_in_every_way(Limiter(store), limit)
    assert {b"wait1", b"order1", b"entries1"} < {name.rpartition(b":")[2] for name in seen}
    store.close()


def test_stale_keys_expire_too(client: Any, store: RedisStore) -> None:
    """A value left by a clock that was far ahead gets a time to live by the new clock, with any decision."""
    ahead_us = NOW_US + 40 * 86_400_000_000
    for limit in FIVE:
        request = Request([_claim(limit, limit.capacity)], Asker(Caller.JOB, "1", "p"))
        assert store.ask(request.claims, request.asker, ahead_us, attempt=request.attempt).allowed
        assert not store.ask(request.claims, request.asker, NOW_US, attempt=request.attempt).allowed
        charge = _claim(limit).algorithm
        store.settle([Correction(request.claims[0].bucket, charge, NOW_US, 1)], now_us=NOW_US)
    ttls = {key: client.pttl(key) for key in client.scan_iter("*")}
    assert len(ttls) == 20
    assert all(0 < ttl <= 2 * 86_400_000 for ttl in ttls.values()), ttls


def test_ten_thousand_idle_tenants_leave_no_key(client: Any, store: RedisStore) -> None:
    """Tenants of every algorithm that stay away for their period and the grace time leave no key."""
    for kind in (TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog):
        limit = kind("tenants", (1, 0.2), key="{account}")
        limiter = Limiter(store)  # they share a name, so that nothing but their rules tells them apart
        for account in range(2_000):
            assert limiter.acquire(limit, key=account)
        with client.pipeline(transaction=False) as pipeline:
            for key in client.scan_iter(f"*:{limit.fingerprint}", count=5_000):
                if not key.startswith(b"tk1:{fleet}:"):
                    pipeline.pttl(key)
            ttls = pipeline.execute()
        assert 0 < len(ttls) <= 2_000, "the first may have gone already"
        assert max(ttls) <= 5_000 + 2 * 200, "the grace time, and two periods"
    left = lambda: {key for key in client.scan_iter("*", count=5_000) if not key.startswith(b"tk1:{fleet}:")}  # noqa: E731
    wait_until(lambda: not left(), description="no key is left of 10 000 tenants")


def test_waitlist_whose_jobs_do_not_come_leaves_no_key(client: Any, store: RedisStore) -> None:
    """It outlives its bucket, and expires by itself."""
    for limit in FIVE:
        claim = _claim(limit, limit.capacity)
        store.ask([claim], WITHOUT_JOB, NOW_US)
        for number in range(9):
            assert not ask(store, _request(limit, job=str(number)), NOW_US).allowed
        for name in claim.names[1:4]:
            assert client.pttl(claim.bucket) <= client.pttl(name) <= 2 * 86_400_000 + 5_000, limit


# Exactly one call


def test_five_limits_of_five_algorithms_are_one_evalsha(client: Any, store: RedisStore) -> None:
    """Allowed, denied, denied again, peeked and settled: each is one command, for five algorithms at once."""
    limiter = Limiter(store)
    job = Job(id="1")

    def verbs() -> list[bool]:
        granted = limiter.acquire(*FIVE, cost=1)
        denied = limiter.acquire(*FIVE, job=job)
        again = limiter.acquire(*FIVE, job=job)
        looked = limiter.peek(*FIVE)
        limiter.settle(granted, actual=0, limit=FIVE[4])
        return [bool(granted), bool(denied), bool(again), bool(looked)]

    verbs()
    limiter.reset(*FIVE)
    client.config_resetstat()
    assert verbs() == [True, False, False, False]
    inner = {"exists", "get", "set", "del", "unlink", "time", "getrange", "setrange", "pexpire"}
    sent = {name: count for name, count in _calls(client).items() if name not in inner and name[0] not in "hz"}
    assert sent == {"evalsha": 5}


# Numbers as text

_CHECKED = """
local server = redis
local redis = {sha1hex = redis.sha1hex}
function redis.call(...)
  for i = 1, select('#', ...) do
    local argument = select(i, ...)
    if type(argument) ~= 'string' then error('not text: ' .. type(argument)) end
    -- Names hold letters, and a log's instants are bytes.
    if string.match(argument, '^[%w%s+.-]*$') and argument ~= '-inf' and argument ~= '+inf' then
      -- Lua writes a sign or a point; without both it is the epoch of a list, in hexadecimal digits.
      local exponent = string.match(argument, '%d[eE][+-]%d') or string.match(argument, '%.%d+[eE]%d')
      if exponent then error('an exponent: ' .. argument) end
      if string.match(argument, 'inf') or string.match(argument, 'nan') then error('no number: ' .. argument) end
    end
  end
  return server.call(...)
end
"""


class CheckedStore(Listed):
    """Puts the checker before every script."""

    def _run(self, script: Any, arguments: list[Any]) -> Any:
        return self._command("EVAL", _CHECKED + script.text, *arguments)


@pytest.mark.parametrize("text", ["1e+08", "1.8e15", "-nan", "inf"])
def test_checker_of_numbers_checks(client: Any, text: str) -> None:
    """The checker of the next test rejects what it must reject."""
    with pytest.raises(exceptions.ResponseError):
        client.eval(_CHECKED + f"return redis.call('SET', KEYS[1], '{text}', 'PX', '9')", 1, "key")
    with pytest.raises(exceptions.ResponseError):
        client.eval(_CHECKED + "return redis.call('SET', KEYS[1], 'x', 'PX', 100000000)", 1, "key")
    assert client.eval(_CHECKED + "return redis.call('SET', KEYS[1], '1800000000000000')", 1, "key") == b"OK"


@pytest.mark.parametrize("server", ["redis_url", "redis_6_url", "valkey_url"])
def test_no_number_is_ever_sent_in_exponent_form(request: pytest.FixtureRequest, server: str) -> None:
    """For every algorithm, with the longest periods and round numbers, the scripts pass only text to the server."""
    limits: list[Limit] = []
    for period_s in (100_000, 1_000_000, 10_000_000, 366 * 86_400):
        limits += [
            TokenBucket("partner", (1, period_s), burst=5),
            TokenBucket("partner", (100, period_s), burst=100),
            LeakyBucket("partner", (1, period_s)),
            SlidingWindow("partner", (1, period_s)),
            SlidingWindow("partner", (10**12 - 1, period_s)),
            SlidingLog("partner", (100, period_s)),
        ]
    # A fixed window's period fits into a day.
    limits += [FixedWindow("partner", "1/d", tz="Europe/Berlin"), FixedWindow("partner", "100000000000/d")]
    store = CheckedStore(request.getfixturevalue(server), timeout=5)
    for start_us in (NOW_US, 100_000_000_000_000, 2_000_000_000_000_000, NOW_US + 1):
        for limit in limits:
            claim, one = _claim(limit, limit.capacity), _claim(limit)
            assert store.ask([claim], Asker(Caller.JOB), start_us).allowed, limit
            due_us = store.ask([one], Asker(Caller.JOB, "first", "p"), start_us).retry_us
            for asker in (Asker(Caller.JOB, "second", late_owner(0.05)), WITHOUT_JOB, Asker(Caller.PEEK)):
                assert not store.ask([one], asker, start_us).allowed
            assert not store.ask([one], Asker(Caller.AGAIN, "again", "p"), start_us).allowed
            store.forget([one], ["again", "second"], now_us=start_us)
            store.pause([one], 0, now_us=start_us)
            store.look(one, "p", 1, ["first"], due_us)
            assert store.ask([one], Asker(Caller.JOB, "first", "p", 1), due_us).allowed
            for by in (100_000_000, -100_000_000, 10**12):
                store.settle([Correction(claim.bucket, claim.algorithm, due_us, by)], now_us=due_us)
            store.ask([one], WITHOUT_JOB, start_us)
            store.ask([one], WITHOUT_JOB, start_us - 4 * 366 * 86_400_000_000)
            store.reset([claim.bucket])
    store.close()


def test_rates_that_fill_in_the_same_time_are_two(store: RedisStore) -> None:
    """Of a bucket of 3 000 from which 1 000 were taken, 1 500 are left at half the rate: its whole burst."""
    bench, fast = Bench(store), TokenBucket("x", "300000/s", burst=3000)
    assert bench.ask(fast, cost=1000).allowed
    assert bench.left(altered(fast, "150000/s", 1500)) == 1500
