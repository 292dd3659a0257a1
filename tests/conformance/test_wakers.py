"""Wakers of several processes on a real server: waiting jobs are woken in order, and wake messages are received."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import pytest
import redis

from support.waiting import wait_until
from throttlekit import TokenBucket
from throttlekit._core.answer import Caller, Reason, Requester
from throttlekit._core.claim import StoreClaim
from throttlekit._core.storage_keys import bucket_name, wait_names
from throttlekit._core.waitlist import State, Wake
from throttlekit._engine.waker import Waker
from throttlekit.stores.bells import Listener, client_of_its_own
from throttlekit.stores.redis import RedisStore

LIMIT = TokenBucket("partner", "20/s", burst=1)
CLAIM = StoreClaim(bucket_name(LIMIT.name, "", LIMIT.fingerprint), LIMIT.bind(1))


class Process:
    """A process like a worker's: two threads make requests, run the granted jobs, and keep the denied ones."""

    def __init__(self, url: str, name: str, ran: list[str]) -> None:
        self._ran = ran
        self._store, self._jobs, self._free = RedisStore(url, timeout=5), SimpleQueue[str](), 2
        self._lock = threading.Lock()
        self.waker: Waker[str] = Waker(self._store, lambda: self._free, lambda id, _: self._jobs.put(id))
        self.waker.begin()
        for _ in range(2):
            threading.Thread(target=self._run, daemon=True).start()

    def put(self, id: str) -> None:
        self._jobs.put(id)

    def close(self) -> None:
        self.put("")
        self.put("")
        self.waker.close()
        self._store.close()

    def _run(self) -> None:
        while id := self._jobs.get():
            with self._lock:
                self._free -= 1
            requester, attempt = self.waker.begin_request(id, [CLAIM.bucket])
            answer = self._store.decide([CLAIM], requester, attempt=attempt)
            self.waker.apply_answer(id, id, [CLAIM], answer)
            if answer.reason is Reason.ALLOWED:
                time.sleep((answer.retry_us - answer.now_us) / 1e6)
                self._ran.append(id)
                self.waker.done(id)
            with self._lock:
                self._free += 1


@pytest.fixture
def start(redis_url: str) -> Iterator[Callable[[str, list[str]], Process]]:
    with contextlib.ExitStack() as stack:

        def start_process(name: str, ran: list[str]) -> Process:
            process = Process(redis_url, name, ran)
            stack.callback(process.close)
            return process

        yield start_process


def test_jobs_of_several_processes_run_in_the_order_of_their_requests(
    start: Callable[[str, list[str]], Process], client: Any
) -> None:
    """Each job makes a request, waits, is woken and runs. Then the waitlist is deleted."""
    ran: list[str] = []
    one, two = start("one", ran), start("two", ran)
    for number in range(20):
        (one if number % 3 else two).put(f"job{number:02d}")
        wait_until(
            lambda n=number: client.hlen(f"{CLAIM.bucket}:entries1") + len(ran) > n,
            description="the job has made its request",
        )
    wait_until(lambda: len(ran) == 20, description="all have run", timeout=30)
    assert ran == sorted(ran)
    wait_until(lambda: not client.keys(f"{CLAIM.bucket}:*1"), description="no job is on the waitlist")


def test_jobs_whose_messages_were_requeued_hold_up_no_job(
    start: Callable[[str, list[str]], Process], store: RedisStore
) -> None:
    """
    The other jobs of the process are woken instead. When the requeued messages are delivered again, their jobs are
    first again.
    """
    ran: list[str] = []
    process, requeued = start("first", ran), ["1", "2", "3"]

    def put(ids: Sequence[str]) -> None:
        for id in ids:
            before = len(process.waker)
            process.put(id)
            wait_until(lambda before=before: len(process.waker) > before, description="the job waits")

    store.pause([CLAIM], 60_000_000)
    put([str(number) for number in range(8)])
    for id in requeued:
        process.waker.pass_on(id)
    store.pause([CLAIM], None)
    wait_until(lambda: len(ran) == 5, description="the others have run", timeout=30)
    found = [store.where([CLAIM], id) for id in requeued]
    assert [each and each.state for each in found] == [State.KEPT] * 3, "no job waits for their requests"
    store.pause([CLAIM], 60_000_000)
    put(["new", *reversed(requeued)])
    store.pause([CLAIM], None)
    wait_until(lambda: len(ran) == 9, description="all have run", timeout=30)
    assert ran == ["0", "4", "5", "6", "7", *requeued, "new"]


@pytest.mark.parametrize("part", range(3), ids=["record", "order", "entries"])
def test_a_waitlist_that_was_evicted_in_part_is_rebuilt(
    start: Callable[[str, list[str]], Process], store: RedisStore, client: Any, part: int
) -> None:
    """If the server evicts one key of a waitlist, no request fails, and the waiting jobs make new requests."""
    ran: list[str] = []
    process = start("first", ran)
    store.pause([CLAIM], 60_000_000)
    for number in range(20):
        process.put(str(number))
    wait_until(lambda: len(process.waker) == 20, description="the jobs wait")
    assert client.delete(wait_names(CLAIM.bucket)[part]) == 1
    store.pause([CLAIM], None)
    process.put("new")
    wait_until(lambda: len(ran) == 21, description="all have run", timeout=30)
    wait_until(lambda: not client.keys(f"{CLAIM.bucket}:*1"), description="no job is on the waitlist")


def test_a_listener_receives_wakes_and_reports_a_new_subscription(store: RedisStore, client: Any) -> None:
    """If the server closes its connection, the listener subscribes again, and reports that it may have missed wakes."""
    received, subscriptions = list[tuple[str, list[Wake]]](), list[int]()

    def receive(bucket: str, wakes: Sequence[Wake]) -> None:
        received.append((bucket, list(wakes)))

    listener = Listener(client, "tk1:other", receive, lambda: subscriptions.append(1))
    wait_until(lambda: subscriptions, description="the listener listens")
    store.decide([CLAIM], Requester(Caller.JOB, "one", "me"))
    store.decide([CLAIM], Requester(Caller.JOB, "two\x00 |,", "other"))

    def is_woken() -> bool:
        store.look(CLAIM, "me", 1)
        return bool(received)

    wait_until(is_woken, description="the job of the other owner is woken")
    ((bucket, (wake,)),) = received
    assert (bucket, wake.id) == (CLAIM.bucket, "two\x00 |,")
    assert 0 <= wake.in_us <= 30_000
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    wait_until(lambda: len(subscriptions) == 2, description="the listener subscribes again", timeout=20)
    listener.close()
    assert client.publish("tk1:other", b"") == 0


def test_a_listener_ends_without_a_message(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener ends at once; otherwise a worker that stops would wait for a poll of each of its owners' threads."""
    monkeypatch.setattr("throttlekit.stores.bells._POLL_S", 600.0)
    ends: list[threading.Thread] = []
    for number in range(5):
        listens = threading.Event()
        end = store.listen(f"p{number}", lambda bucket, wakes: None, listens.set)
        assert listens.wait(60)
        ends.append(threading.Thread(target=end, daemon=True))
    for each in ends:
        each.start()
    for each in ends:
        each.join(60)
    assert [each.is_alive() for each in ends] == [False] * 5


@pytest.mark.parametrize("keepalive", [None, False])
def test_a_listener_detects_that_its_connection_is_lost(redis_url: str, keepalive: bool | None) -> None:
    """
    A listener's connection is probed, also if redis-py does not do that by default, but not if the user has forbidden
    it.
    """
    with contextlib.closing(redis.Redis.from_url(redis_url, socket_keepalive=keepalive)) as client:
        own = client_of_its_own(client.connection_pool).connection_pool
        connection = own.connection_class(**own.connection_kwargs)
        connection.connect()
        is_probed = connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert bool(is_probed) is (keepalive is None)
        if keepalive is None and hasattr(socket, "TCP_KEEPIDLE"):
            assert connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        connection.disconnect()


def test_a_listener_on_a_unix_socket_is_not_probed() -> None:
    """Such a connection has no option for that."""
    own = client_of_its_own(redis.Redis(unix_socket_path="/none").connection_pool).connection_pool
    assert own.connection_class(**own.connection_kwargs).path == "/none"
