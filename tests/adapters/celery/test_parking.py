"""Tasks that are due much later wait in the broker's Redis, in no worker; each of them ends as it would have."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError
from kombu.transport.redis import Channel

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.celery.site import CelerySite, celery_site
from support.flood.checks import assert_bound, in_order, starts_of
from support.flood.run import FloodLimit, run
from support.servers.flood import Servers
from support.servers.processes import RedisProcess, patient
from support.waiting import wait_until
from throttlekit import Control, TokenBucket

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the collector to find.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

WITHIN = 120.0
QUICK_RECOVERY = {
    "broker_transport_options": {
        "visibility_timeout": 6,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 5,
    }
}


@pytest.fixture
def server(stack: ExitStack) -> RedisProcess:
    """A Redis of the test's own, that keeps what it has while it is away: 0 is the broker, 1 the limiter's store."""
    server = stack.enter_context(closing(RedisProcess("--appendonly", "yes", "--appendfsync", "always")))
    server.start()
    return server


@pytest.fixture
def on_own(stack: ExitStack, server: RedisProcess, redis_base: str) -> Any:
    """Make a site whose broker and limits are in `server`."""
    store = patient(f"{server.url}/1")
    return lambda **told: stack.enter_context(celery_site("redis", server.url, redis_base, **{"store": store, **told}))


@pytest.fixture
def keys(server: RedisProcess) -> Iterator[Any]:
    """A client of the broker."""
    with closing(redis.Redis.from_url(f"{server.url}/0", decode_responses=True)) as client:
        yield client


def all_parked(site: CelerySite, count: int) -> None:
    wait_until(lambda: site.parked() >= count, description=f"{count} are parked", timeout=WITHIN)


def all_ended(site: CelerySite, results: list[Any]) -> None:
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(len(results)))
    assert sorted(map(int, site.ran("echo"))) == list(range(len(results))), "each runs once"
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_what_waits_for_long_is_in_no_worker(on_own: Any, keys: Any, pool: str) -> None:
    """Two workers hold what is due in three seconds; the rest is parked. All run in their order, and each once."""
    site: CelerySite = on_own(rate="5/s", pool=pool)
    results = [site.send("echo", n) for n in range(60)]
    for name in ("one", "two"):
        site.start(name=name)
    wait_until(lambda: keys.llen(site.queue) == 0, description="all have been fetched", timeout=WITHIN)
    all_parked(site, 10)
    assert keys.hlen("unacked") + keys.hlen(f"throttlekit:{site.queue}:messages") <= 60
    assert keys.hlen("unacked") <= 3 * 5 + 5 + 2
    assert keys.zcard("unacked_index") <= 3 * 5 + 5 + 2
    all_ended(site, results)
    ran = list(map(int, site.ran("echo")))
    assert max(abs(at - n) for at, n in enumerate(ran)) <= 10, "what several processes fetch at once may change places"
    left = set(keys.keys(f"throttlekit:{site.queue}:*"))
    assert left <= {f"throttlekit:{site.queue}:promoter"}


def test_a_flood_with_parked_tasks_keeps_its_bound(on_redis: Servers) -> None:
    """The bound holds exactly, each task runs once, and a task is denied about once."""
    flood = CeleryFlood(limits=(FloodLimit("one", "30/s", 10),), jobs=300)
    told = in_order(run(flood, on_redis, CeleryFlooding))
    assert assert_bound(told, "one", 33_334, 10) == 300
    assert starts_of(told) == {str(n): 1 for n in range(300)}
    assert (told.counts["SUCCESS"], told.left) == (300, 0)


def test_workers_that_are_killed_lose_nothing(on_own: Any, keys: Any) -> None:
    """
    SIGKILL at random, five times: at every instant each task is done, in the queue, unacknowledged or parked.

    Where a worker dies as kombu takes a message off Redis's list that message is lost, with throttlekit or without.
    """
    if not hasattr(Channel, "unacked_restore_interval"):
        pytest.skip("this kombu looks for what a killed worker had once in 100 s")
    kills, jobs, chance = 5, 120, random.Random(21)
    site: CelerySite = on_own(rate="4/s", conf=QUICK_RECOVERY)
    results = [site.send("late", str(n)) for n in range(jobs)]
    workers = [site.start(name=f"w{n}") for n in range(2)]
    for n in range(kills):
        before = len(site.ran("late"))
        wait_until(lambda before=before: len(site.ran("late")) > before, description="it goes on", timeout=WITHIN)
        moment = time.monotonic() + chance.uniform(0.0, 1.0)
        wait_until(lambda moment=moment: time.monotonic() > moment, description="the moment has come")
        workers[n % 2].kill()
        with keys.pipeline() as pipe:
            pipe.hlen("unacked").llen(site.queue).hlen(f"throttlekit:{site.queue}:messages")
            left = sum(pipe.execute())
        hands = n + 1 + 1  # what kombu had in its hands at each kill, and has now
        assert len(set(site.ran("late"))) + left >= jobs - hands
        workers[n % 2] = site.start(name=f"w{n + 2}")

    def done() -> bool:
        missing = jobs - len(set(site.ran("late")))
        return missing == 0 or (missing <= kills and site.left() == 0)

    wait_until(done, description="all have run", timeout=WITHIN)
    assert len(site.ran("late")) <= jobs + 2 * kills
    assert len(results) == jobs


def test_each_copy_of_a_message_runs(on_own: Any) -> None:
    """An exchange delivers each message to two queues of one worker: both copies are parked, and both run."""
    site: CelerySite = on_own(rate="5/s", exchange="topic")
    site.start()
    for n in range(15):
        site.send_copies("echo", n)
    wait_until(lambda: len(site.ran("echo")) == 30, description="both copies of each task have run", timeout=WITHIN)
    assert Counter(map(int, site.ran("echo"))) == dict.fromkeys(range(15), 2)
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)


@pytest.mark.parametrize("parking", [True, False])
def test_a_copy_survives_the_end_of_the_other(on_own: Any, keys: Any, parking: bool) -> None:
    """
    One worker has run and acknowledged its copies of all messages. SIGKILL of the other worker, which holds the other
    copies or has parked them, loses none of these.
    """
    if not hasattr(Channel, "unacked_restore_interval"):
        pytest.skip("this kombu looks for what a killed worker had once in 100 s")
    install = {"parking": parking, "max_hold": 60}
    site: CelerySite = on_own(rate="4/s", exchange="topic", conf=QUICK_RECOVERY, install=install)
    copy = f"{site.queue}-copy"
    for n in range(10):
        site.send_copies("late", str(n))
    site.start("--queues", site.queue, name="one")
    wait_until(lambda: keys.llen(site.queue) == 0, description="the first worker has its copies", timeout=WITHIN)
    other = site.start("--queues", copy, name="two")
    wait_until(lambda: keys.llen(copy) == 0, description="the other worker has the others", timeout=WITHIN)
    wait_until(lambda: len(site.ran("late")) > 10, description="the first worker has run its copies", timeout=WITHIN)
    other.kill()
    site.start("--queues", copy, name="three")

    def done() -> bool:
        runs = Counter(map(int, site.ran("late")))
        return all(runs[n] >= 2 for n in range(10))

    wait_until(done, description="both copies of each task have run", timeout=60)
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)


def test_tasks_of_a_fanout_queue_are_held(on_own: Any) -> None:
    """No worker reads the list of a fanout queue, so its tasks are not parked. All run."""
    site: CelerySite = on_own(rate="1/s", burst=1, exchange="fanout")
    site.start()

    def subscribed() -> bool:
        site.send("free")
        return bool(site.ran("free"))

    wait_until(subscribed, description="the worker has subscribed", timeout=WITHIN)
    for n in range(8):
        site.send("echo", n)
    wait_until(lambda: len(site.ran("echo")) == 8, description="all have run", timeout=30)
    assert site.parked() == 0


def test_a_promoter_that_dies_has_an_heir(on_own: Any, keys: Any) -> None:
    """The worker with the lease is killed: the other takes over once the lease is over, and all tasks run."""
    site: CelerySite = on_own(rate="5/s", conf=QUICK_RECOVERY)
    workers = {worker.pid: worker for worker in (site.start(name="one"), site.start(name="two"))}
    results = [site.send("echo", n) for n in range(60)]
    all_parked(site, 20)
    lease = f"throttlekit:{site.queue}:promoter"
    first = str(keys.get(lease))
    workers[int(first.split("-")[0])].kill()
    wait_until(lambda: keys.get(lease) not in (None, first), description="the other takes over", timeout=WITHIN)
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)
    assert len({*site.ran("echo")}) >= len(results) - 3, "a process of the killed worker may have had one"


def test_a_raised_rate_wakes_what_is_parked(on_own: Any, server: RedisProcess) -> None:
    """Tasks that would be due in hours run at once."""
    site: CelerySite = on_own(rate="6/h")
    site.start()
    results = [site.send("echo", n) for n in range(40)]
    all_parked(site, 39)
    with Control(f"{server.url}/1") as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
        all_ended(site, results)


def test_a_task_that_is_revoked_or_expires_while_it_is_parked(on_own: Any) -> None:
    """Both end as REVOKED and never run: the one when it is due, the other when it expires."""
    site: CelerySite = on_own(rate="1/s")
    site.start()
    runs = [site.send("echo", n) for n in range(8)]
    revoked, expires = site.send("echo", "revoked"), site.send("echo", "expires", expires=6)
    all_parked(site, 2)
    site.app.control.revoke(revoked.id)
    for result in (revoked, expires):
        wait_until(result.ready, description="it has ended", timeout=WITHIN)
        assert isinstance(result.get(propagate=False), TaskRevokedError)
    all_ended(site, runs)


def test_what_a_message_says_is_kept(on_own: Any) -> None:
    """Priority, headers, chains, chords, retries and a max_wait are as they were."""
    site: CelerySite = on_own(rate="1/s")
    site.start()
    filler = [site.send("echo", n) for n in range(5)]
    context = site.send("context", priority=7, headers={"mine": 1}, shadow="other", argsrepr="(1)")
    chained = (site.signature("add", 1, 2) | site.signature("add", 3)).apply_async()
    stubborn = site.send("stubborn", 1)
    hasty = site.send("hasty")
    all_parked(site, 2)
    told = context.get(timeout=WITHIN)
    assert (told["priority"], told["headers"]["mine"], told["shadow"], told["argsrepr"]) == (7, 1, "other", "(1)")
    assert chained.get(timeout=WITHIN) == 6
    assert stubborn.get(timeout=WITHIN) == 1
    wait_until(hasty.ready, description="it has waited too long", timeout=WITHIN)
    assert type(hasty.result).__name__ == "WaitedTooLong"
    all_ended(site, filler)


def test_a_store_that_is_away_wakes_nothing(stack: ExitStack, on_own: Any, keys: Any) -> None:
    """Parked tasks stay where they are until the limiter answers, and all run then."""
    store = stack.enter_context(closing(RedisProcess("--appendonly", "yes", "--appendfsync", "always")))
    store.start()
    site: CelerySite = on_own(rate="2/s", store=f"{store.url}/1")
    worker = site.start()
    results = [site.send("echo", n) for n in range(60)]
    all_parked(site, 20)
    store.kill()
    parked = site.parked()
    wait_until(lambda: "no usable answer" in worker.log(), description="it is noticed", timeout=WITHIN)
    lease = f"throttlekit:{site.queue}:promoter"
    wait_until(lambda: keys.pttl(lease) > 0, description="the promoter goes on", timeout=WITHIN)
    assert parked - site.parked() <= 8, "none is woken but those of a turn that was under way"
    store.start()
    all_ended(site, results)


def test_a_broker_that_is_away_keeps_what_is_parked(on_own: Any, server: RedisProcess, redis_base: str) -> None:
    """
    The worker connects again and its promoter goes on. What moves as the broker dies is for kombu, which may lose it:
    here nothing does.
    """
    store = f"{redis_base}/13"
    site: CelerySite = on_own(rate="6/h", store=patient(store))
    worker = site.start()
    results = [site.send("echo", n) for n in range(40)]
    all_parked(site, 39)
    server.kill()
    wait_until(lambda: "Connection to broker lost" in worker.log(), description="it has noticed", timeout=WITHIN)
    server.start()
    assert site.parked() >= 39
    with Control(store) as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
        try:
            all_ended(site, results)
        finally:
            control.unset(TokenBucket("one", "6/h"))
    assert worker.running


def test_purge_leaves_what_is_parked(on_own: Any, keys: Any) -> None:
    """As it leaves what workers hold. Without their messages, parked tasks are passed over."""
    site: CelerySite = on_own(rate="1/s")
    worker = site.start()
    results = [site.send("echo", n) for n in range(12)]
    all_parked(site, 8)
    assert site.app.control.purge() == 0
    assert site.parked() >= 7
    keys.delete(f"throttlekit:{site.queue}:messages")
    wait_until(lambda: site.left() == 0, description="those that are held have run", timeout=WITHIN)
    lines = f"throttlekit:{site.queue}:lanes"
    wait_until(lambda: not keys.exists(lines), description="the park is empty", timeout=WITHIN)
    assert len(site.ran("echo")) < len(results)
    assert worker.running


def test_a_worker_without_parking_wakes_what_others_have_parked(on_own: Any) -> None:
    """`parking=False` holds tasks as before; those that are parked already run all the same."""
    site: CelerySite = on_own(rate="2/s")
    first = site.start()
    results = [site.send("echo", n) for n in range(20)]
    all_parked(site, 10)
    first.send(signal.SIGTERM)
    first.wait(WITHIN)
    site.told["install"] = {"parking": False}
    site.start(name="two")
    results += [site.send("echo", n) for n in range(20, 24)]
    wait_until(lambda: site.parked() == 0, description="none is parked", timeout=WITHIN)
    all_ended(site, results)
