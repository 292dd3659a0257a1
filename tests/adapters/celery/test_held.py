"""Tasks that wait for a long time in their worker, on a Redis of their own: each of them ends as without a wait."""

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

from support.celery.quiet import QUIET
from support.celery.site import QUICK_RECOVERY, WITHIN, CelerySite, celery_site
from support.servers.processes import RedisProcess, patient
from support.waiting import wait_until
from throttlekit import Control, TokenBucket

pytestmark = [pytest.mark.workers, *QUIET]


@pytest.fixture
def server(stack: ExitStack) -> RedisProcess:
    """
    A Redis of the test's own, which keeps its data while it is stopped. Database 0 is the broker, 1 the limiter's
    store.
    """
    server = stack.enter_context(closing(RedisProcess("--appendonly", "yes", "--appendfsync", "always")))
    server.start()
    return server


@pytest.fixture
def make_own_site(stack: ExitStack, server: RedisProcess, redis_base: str) -> Any:
    """Return a function that makes a site whose broker and limits are in `server`."""
    store = patient(f"{server.url}/1")
    return lambda **options: stack.enter_context(
        celery_site("redis", server.url, redis_base, **{"store": store, **options})
    )


@pytest.fixture
def keys(server: RedisProcess) -> Iterator[Any]:
    """A client of the broker."""
    with closing(redis.Redis.from_url(f"{server.url}/0", decode_responses=True)) as client:
        yield client


def wait_until_held(site: CelerySite, count: int) -> None:
    wait_until(lambda: len(site.held()) >= count, description=f"{count} tasks are held")


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_two_workers_hold_waiting_tasks_and_run_them_in_order(make_own_site: Any, keys: Any, pool: str) -> None:
    """Both workers together fetch all tasks at once, and run each of them once, in the order of the denials."""
    site: CelerySite = make_own_site(rate="10/s", burst=1, pool=pool)
    results = [site.send("echo", n) for n in range(60)]
    for name in ("one", "two"):
        site.start(name=name)
    wait_until(lambda: keys.llen(site.queue) == 0, description="all tasks have been fetched")
    site.assert_each_runs_once(results)
    ran = list(map(int, site.ran("echo")))
    late = sum(after < before for n, before in enumerate(ran) for after in ran[n:])
    assert late <= 0.25 * 60 * 59 / 2, "the workers begin to fetch at different times"


def test_workers_that_are_killed_lose_no_task(make_own_site: Any, keys: Any) -> None:
    """
    After each of five SIGKILLs at random times, every task has run, is in the queue or is unacknowledged.

    If a worker dies while kombu removes a message from Redis's list, that message is lost, with or without throttlekit.
    """
    if not hasattr(Channel, "unacked_restore_interval"):
        pytest.skip("this kombu restores the messages of a killed worker only every 100 s")
    kills, jobs, randomness = 5, 200, random.Random(21)
    site: CelerySite = make_own_site(rate="4/s", conf=QUICK_RECOVERY)
    results = [site.send("late", str(n)) for n in range(jobs)]
    workers = [site.start(name=f"w{n}") for n in range(2)]
    for n in range(kills):
        before = len(site.ran("late"))
        wait_until(lambda before=before: len(site.ran("late")) > before, description="another task has run")
        moment = time.monotonic() + randomness.uniform(0.0, 1.0)
        wait_until(lambda moment=moment: time.monotonic() > moment, description="the random delay is over")
        workers[n % 2].kill()
        with keys.pipeline() as pipe:
            pipe.hlen("unacked").llen(site.queue)
            left = sum(pipe.execute())
        in_transfer = n + 1 + 1  # messages that kombu was transferring at each kill, and is transferring now
        assert len(set(site.ran("late"))) + left >= jobs - in_transfer
        workers[n % 2] = site.start(name=f"w{n + 2}")

    def done() -> bool:
        missing = jobs - len(set(site.ran("late")))
        return missing == 0 or (missing <= kills and site.left() == 0)

    wait_until(done, description="all tasks have run")
    assert len(site.ran("late")) <= jobs + 2 * kills
    assert len(results) == jobs


def test_each_message_is_recorded_while_a_body_runs(make_own_site: Any) -> None:
    """
    A task is woken while the worker waits for the next message, which Redis then removes from its list. The worker
    records this message at once, although the woken task, with late acknowledgement, uses the whole prefetch count.
    """
    conf = {"worker_prefetch_multiplier": 1, "task_acks_late": True}
    site: CelerySite = make_own_site(rate="6/h", burst=1, conf=conf)
    site.start("--concurrency", "1")
    site.send("echo", 0).get(timeout=WITHIN)
    for seconds in (10, 0):
        site.send("sleep", seconds)
    wait_until_held(site, 2)
    with Control(site.settings["store"]) as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
        wait_until(lambda: site.ran("sleep"), description="a body runs", every=0.005)
        for n in range(1, 4):
            site.send("free", str(n))
            wait_until(lambda n=n: site.left() == 2 + n, description="each message is recorded", timeout=5)
        assert len(site.ran("sleep")) == 1
        wait_until(lambda: site.left() == 0, description="all tasks have run")
    assert len(site.ran("free")) == 3


def test_each_copy_of_a_message_runs(make_own_site: Any) -> None:
    """An exchange delivers each message to two queues of one worker. Both copies wait, and both run."""
    site: CelerySite = make_own_site(rate="5/s", exchange="topic")
    site.start()
    for n in range(15):
        site.send_copies("echo", n)
    wait_until(lambda: len(site.ran("echo")) == 30, description="both copies of each task have run")
    assert Counter(map(int, site.ran("echo"))) == dict.fromkeys(range(15), 2)
    wait_until(lambda: site.left() == 0, description="no message is left")


def test_a_copy_survives_the_end_of_the_other_copy(make_own_site: Any, keys: Any) -> None:
    """
    One worker has run and acknowledged its copies of all messages. SIGKILL of the worker that holds the other copies
    loses none of these.
    """
    if not hasattr(Channel, "unacked_restore_interval"):
        pytest.skip("this kombu restores the messages of a killed worker only every 100 s")
    install = {"max_hold": 60}
    site: CelerySite = make_own_site(rate="4/s", exchange="topic", conf=QUICK_RECOVERY, install=install)
    copy = f"{site.queue}-copy"
    for n in range(10):
        site.send_copies("late", str(n))
    site.start("--queues", site.queue, name="one")
    wait_until(lambda: keys.llen(site.queue) == 0, description="the first worker has its copies")
    other = site.start("--queues", copy, name="two")
    wait_until(lambda: keys.llen(copy) == 0, description="the other worker has the other copies")
    # A message that kombu has removed from Redis's list, but not recorded yet, is lost with its worker.
    wait_until(lambda: other.log().count(" received") == 10, description="the other worker has recorded all copies")
    wait_until(lambda: len(site.ran("late")) > 10, description="the first worker has run its copies")
    other.kill()
    site.start("--queues", copy, name="three")

    def done() -> bool:
        runs = Counter(map(int, site.ran("late")))
        return all(runs[n] >= 2 for n in range(10))

    wait_until(done, description="both copies of each task have run", timeout=60)
    wait_until(lambda: site.left() == 0, description="no message is left")


def test_tasks_of_a_fanout_queue_are_held(make_own_site: Any) -> None:
    """A fanout queue has no list into which they could be put back. All of them run."""
    site: CelerySite = make_own_site(rate="1/s", burst=1, exchange="fanout")
    site.start()

    def subscribed() -> bool:
        site.send("free")
        return bool(site.ran("free"))

    wait_until(subscribed, description="the worker has subscribed")
    for n in range(8):
        site.send("echo", n)
    wait_until(lambda: len(site.ran("echo")) == 8, description="all tasks have run")


def test_a_task_that_is_revoked_or_expires_while_held_never_runs(make_own_site: Any) -> None:
    """
    A held task that is revoked or expires ends as REVOKED at once, and never runs. The other tasks run as if it had
    never waited.
    """
    site: CelerySite = make_own_site(rate="6/h", burst=1)
    site.start()
    runs = [site.send("echo", 0)]
    wait_until(runs[0].ready, description="the burst is used")
    revoked, expires = site.send("echo", "revoked"), site.send("echo", "expires", expires=4)
    wait_until_held(site, 2)
    runs.append(site.send("echo", 1))
    wait_until_held(site, 3)
    site.app.control.revoke(revoked.id)
    for result in (revoked, expires):
        wait_until(result.ready, description="the task has ended")
        assert isinstance(result.get(propagate=False), TaskRevokedError)
    with Control(site.settings["store"]) as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
        site.assert_each_runs_once(runs)


def test_no_task_is_woken_while_the_store_is_unavailable(stack: ExitStack, make_own_site: Any) -> None:
    """The worker holds the tasks until the store answers again. Then all of them run."""
    store = stack.enter_context(closing(RedisProcess("--appendonly", "yes", "--appendfsync", "always")))
    store.start()
    site: CelerySite = make_own_site(rate="2/s", store=f"{store.url}/1")
    worker = site.start()
    results = [site.send("echo", n) for n in range(60)]
    wait_until_held(site, 50)
    store.kill()
    ran = len(site.ran("echo"))
    wait_until(lambda: "no usable answer" in worker.log(), description="the worker has logged the outage")
    assert len(site.held()) >= 50 - ran - 2
    assert len(site.ran("echo")) <= ran + 2, "only bodies that had begun are completed"
    store.start()
    site.assert_each_runs_once(results)


def test_held_tasks_survive_an_outage_of_the_broker(make_own_site: Any, server: RedisProcess, redis_base: str) -> None:
    """
    The worker connects again, and receives the tasks again. Kombu can lose messages that it is transferring as the
    broker stops; here no message is in transfer.
    """
    store = f"{redis_base}/13"
    site: CelerySite = make_own_site(rate="6/h", store=patient(store))
    worker = site.start()
    results = [site.send("echo", n) for n in range(40)]
    wait_until_held(site, 39)
    server.kill()
    wait_until(
        lambda: "Connection to broker lost" in worker.log(), description="the worker has logged the lost connection"
    )
    server.start()
    with Control(store) as control:
        control.set(TokenBucket("one", "6/h"), "50/s", burst=1)
        try:
            assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(40))
            wait_until(lambda: site.left() == 0, description="no message is left")
            assert sorted(map(int, site.ran("echo"))) == list(range(40))
        finally:
            control.unset(TokenBucket("one", "6/h"))
    assert worker.running


def test_purge_keeps_held_tasks(make_own_site: Any, keys: Any) -> None:
    """`celery purge` keeps all messages that workers have received."""
    site: CelerySite = make_own_site(rate="5/s", burst=1)
    site.start()
    results = [site.send("echo", n) for n in range(12)]
    wait_until(lambda: keys.llen(site.queue) == 0, description="all tasks have been fetched")
    assert site.app.control.purge() == 0
    site.assert_each_runs_once(results)
