"""Tasks that wait long, with their worker, on a Redis of their own: each of them ends as it would have."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError
from kombu.transport.redis import Channel

from support.celery.site import CelerySite, celery_site
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


def all_held(site: CelerySite, count: int) -> None:
    wait_until(lambda: len(site.held()) >= count, description=f"{count} are held", timeout=WITHIN)


def all_ended(site: CelerySite, results: list[Any]) -> None:
    assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(len(results)))
    assert sorted(map(int, site.ran("echo"))) == list(range(len(results))), "each runs once"
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_two_workers_hold_what_waits_and_run_it_in_order(on_own: Any, keys: Any, pool: str) -> None:
    """All are fetched at once, by both, and run in the order in which they were denied, each once."""
    site: CelerySite = on_own(rate="10/s", burst=1, pool=pool)
    results = [site.send("echo", n) for n in range(60)]
    for name in ("one", "two"):
        site.start(name=name)
    wait_until(lambda: keys.llen(site.queue) == 0, description="all have been fetched", timeout=WITHIN)
    all_ended(site, results)
    ran = list(map(int, site.ran("echo")))
    late = sum(after < before for n, before in enumerate(ran) for after in ran[n:])
    assert late <= 0.25 * 60 * 59 / 2, "the workers begin to fetch at different times"


def test_workers_that_are_killed_lose_nothing(on_own: Any, keys: Any) -> None:
    """
    SIGKILL at random, five times: at every instant each task is done, in the queue or unacknowledged.

    Where a worker dies as kombu takes a message off Redis's list that message is lost, with throttlekit or without.
    """
    if not hasattr(Channel, "unacked_restore_interval"):
        pytest.skip("this kombu looks for what a killed worker had once in 100 s")
    kills, jobs, chance = 5, 200, random.Random(21)
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
            pipe.hlen("unacked").llen(site.queue)
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
    """An exchange delivers each message to two queues of one worker: both copies wait, and both run."""
    site: CelerySite = on_own(rate="5/s", exchange="topic")
    site.start()
    for n in range(15):
        site.send_copies("echo", n)
    wait_until(lambda: len(site.ran("echo")) == 30, description="both copies of each task have run", timeout=WITHIN)
    assert Counter(map(int, site.ran("echo"))) == dict.fromkeys(range(15), 2)
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)


def test_a_copy_survives_the_end_of_the_other(on_own: Any, keys: Any) -> None:
    """
    One worker has run and acknowledged its copies of all messages. SIGKILL of the other worker, which holds the other
    copies, loses none of these.
    """
    if not hasattr(Channel, "unacked_restore_interval"):
        pytest.skip("this kombu looks for what a killed worker had once in 100 s")
    install = {"max_hold": 60}
    site: CelerySite = on_own(rate="4/s", exchange="topic", conf=QUICK_RECOVERY, install=install)
    copy = f"{site.queue}-copy"
    for n in range(10):
        site.send_copies("late", str(n))
    site.start("--queues", site.queue, name="one")
    wait_until(lambda: keys.llen(site.queue) == 0, description="the first worker has its copies", timeout=WITHIN)
    other = site.start("--queues", copy, name="two")
    wait_until(lambda: keys.llen(copy) == 0, description="the other worker has the others", timeout=WITHIN)
    # A message that kombu has taken off Redis's list, and not noted yet, is lost with its worker.
    wait_until(lambda: other.log().count(" received") == 10, description="it has noted all of them", timeout=WITHIN)
    wait_until(lambda: len(site.ran("late")) > 10, description="the first worker has run its copies", timeout=WITHIN)
    other.kill()
    site.start("--queues", copy, name="three")

    def done() -> bool:
        runs = Counter(map(int, site.ran("late")))
        return all(runs[n] >= 2 for n in range(10))

    wait_until(done, description="both copies of each task have run", timeout=60)
    wait_until(lambda: site.left() == 0, description="nothing is left", timeout=WITHIN)


def test_tasks_of_a_fanout_queue_are_held(on_own: Any) -> None:
    """There is no list to which they could go back. All run."""
    site: CelerySite = on_own(rate="1/s", burst=1, exchange="fanout")
    site.start()

    def subscribed() -> bool:
        site.send("free")
        return bool(site.ran("free"))

    wait_until(subscribed, description="the worker has subscribed", timeout=WITHIN)
    for n in range(8):
        site.send("echo", n)
    wait_until(lambda: len(site.ran("echo")) == 8, description="all have run", timeout=30)


def test_a_raised_rate_wakes_what_is_held(on_own: Any, server: RedisProcess) -> None:
    """Tasks that would be due in hours run at once."""
    site: CelerySite = on_own(rate="6/h")
    site.start()
    results = [site.send("echo", n) for n in range(40)]
    all_held(site, 39)
    with Control(f"{server.url}/1") as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
        all_ended(site, results)


def test_a_task_that_is_revoked_or_expires_while_it_is_held(on_own: Any) -> None:
    """Both end as REVOKED at once, and never run. Nobody waits for them: the others run as if they had not been."""
    site: CelerySite = on_own(rate="6/h", burst=1)
    site.start()
    runs = [site.send("echo", 0)]
    wait_until(runs[0].ready, description="the burst is used", timeout=WITHIN)
    revoked, expires = site.send("echo", "revoked"), site.send("echo", "expires", expires=4)
    all_held(site, 2)
    runs.append(site.send("echo", 1))
    all_held(site, 3)
    site.app.control.revoke(revoked.id)
    for result in (revoked, expires):
        wait_until(result.ready, description="it has ended", timeout=WITHIN)
        assert isinstance(result.get(propagate=False), TaskRevokedError)
    with Control(site.told["store"]) as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
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
    all_held(site, 2)
    told = context.get(timeout=WITHIN)
    assert (told["priority"], told["headers"]["mine"], told["shadow"], told["argsrepr"]) == (7, 1, "other", "(1)")
    assert chained.get(timeout=WITHIN) == 6
    assert stubborn.get(timeout=WITHIN) == 1
    wait_until(hasty.ready, description="it has waited too long", timeout=WITHIN)
    assert type(hasty.result).__name__ == "WaitedTooLong"
    all_ended(site, filler)


def test_a_store_that_is_away_wakes_nothing(stack: ExitStack, on_own: Any) -> None:
    """Held tasks stay where they are until the limiter answers, and all run then."""
    store = stack.enter_context(closing(RedisProcess("--appendonly", "yes", "--appendfsync", "always")))
    store.start()
    site: CelerySite = on_own(rate="2/s", store=f"{store.url}/1")
    worker = site.start()
    results = [site.send("echo", n) for n in range(60)]
    all_held(site, 50)
    store.kill()
    ran = len(site.ran("echo"))
    wait_until(lambda: "no usable answer" in worker.log(), description="it is noticed", timeout=WITHIN)
    assert len(site.held()) >= 50 - ran - 2
    assert len(site.ran("echo")) <= ran + 2, "none runs but those whose bodies were under way"
    store.start()
    all_ended(site, results)


def test_a_broker_that_is_away_keeps_what_is_held(on_own: Any, server: RedisProcess, redis_base: str) -> None:
    """
    The worker connects again, and receives them again. What moves as the broker dies is for kombu, which may lose it:
    here nothing does.
    """
    store = f"{redis_base}/13"
    site: CelerySite = on_own(rate="6/h", store=patient(store))
    worker = site.start()
    results = [site.send("echo", n) for n in range(40)]
    all_held(site, 39)
    server.kill()
    wait_until(lambda: "Connection to broker lost" in worker.log(), description="it has noticed", timeout=WITHIN)
    server.start()
    with Control(store) as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
        try:
            all_ended(site, results)
        finally:
            control.unset(TokenBucket("one", "6/h"))
    assert worker.running


def test_purge_leaves_what_is_held(on_own: Any, keys: Any) -> None:
    """As it leaves all that workers have."""
    site: CelerySite = on_own(rate="5/s", burst=1)
    site.start()
    results = [site.send("echo", n) for n in range(12)]
    wait_until(lambda: keys.llen(site.queue) == 0, description="all have been fetched", timeout=WITHIN)
    assert site.app.control.purge() == 0
    all_ended(site, results)
