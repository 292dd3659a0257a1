"""Starting and stopping workers, starting the processes of a pool, and Django."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import celery
import pytest
import redis
from celery import Celery, chord, group, xmap, xstarmap
from kombu import Exchange, Queue

from support.celery.quiet import QUIET
from support.celery.site import WITHIN, CelerySite
from support.faults.processes import Command
from support.servers.processes import patient
from support.waiting import wait_until
from throttlekit import ConfigurationError

pytestmark = [pytest.mark.workers, *QUIET]

NEVER = 10**6
VERSION = tuple(int(part) for part in celery.__version__.split(".")[:2])


@pytest.fixture(params=["redis", "rabbitmq"])
def make_on_each(request: pytest.FixtureRequest, make_site: Any) -> Any:
    """Return a function that makes a site, on each broker in turn."""
    return partial(make_site, request.param)


def test_a_chord_of_200_ends_once(make_site: Any) -> None:
    """Each of 200 headers is denied twice. The body runs once, after all of them."""
    site: CelerySite = make_site()
    site.start()
    header = group([site.signature("add", number) for number in range(200)], app=site.app)
    assert chord(header)(site.signature("add")).get(timeout=WITHIN) == sum(range(200))
    assert len(site.ran("add")) == 201
    assert (site.asked("granted"), site.asked("denied")) == (201, 402)
    wait_until(lambda: site.left() == 0, description="no message is left")


def test_a_task_with_limits_is_not_mapped(make_site: Any) -> None:
    """
    A program without `install` can send such a message. It fails, and no item runs. Items of a task without limits run.
    """
    site: CelerySite = make_site(pool="threads")
    site.start()
    limited, free = site.signature("echo"), site.signature("free")
    refused = [
        xmap(limited, ["a"], app=site.app).apply_async(queue=site.queue),
        xstarmap(limited, [("a",)], app=site.app).apply_async(queue=site.queue),
    ]
    for result in refused:
        with pytest.raises(ConfigurationError, match="task 'echo' has limits"):
            result.get(timeout=WITHIN)
    mapped = xmap(free, ["a", "b"], app=site.app).apply_async(queue=site.queue)
    assert mapped.get(timeout=WITHIN) == ["a", "b"]
    assert xmap(limited, [], app=site.app).apply_async(queue=site.queue).get(timeout=WITHIN) == []
    assert (site.ran("echo"), site.asked("granted")) == ([], 0)
    wait_until(lambda: site.left() == 0, description="no message is left")


@pytest.mark.skipif(VERSION < (5, 5), reason="Celery 5.4 has no soft shutdown")
def test_a_soft_shutdown_completes_running_bodies_and_puts_waiting_tasks_back(make_on_each: Any) -> None:
    """With worker_soft_shutdown_timeout, the running body is completed, and held tasks are put back."""
    site: CelerySite = make_on_each(denials=NEVER, delay=28.0, conf={"worker_soft_shutdown_timeout": 4.0})
    worker = site.start()
    for n in range(20):
        site.send("echo", n)
    wait_until(lambda: site.asked("denied") == 20, description="all tasks were denied")
    running = site.send("free_wait")
    wait_until(lambda: site.ran("free_wait"), description="a body is running")
    worker.signal(signal.SIGQUIT)
    wait_until(lambda: "Initiating Soft Shutdown" in worker.log(), description="the soft shutdown has begun")
    site.go()
    worker.wait(WITHIN)
    assert running.get(timeout=WITHIN) == "went"
    assert site.left() == 20
    assert site.ran("echo") == []


def test_celery_multi_stops_and_starts_workers(make_site: Any, tmp_path: Path) -> None:
    """
    When it stops two workers, their held tasks are put back with their positions. They run when it starts the workers
    again.
    """
    site: CelerySite = make_site(denials=NEVER, delay=4.0)
    with multi(site, tmp_path) as run_verb:
        run_verb("start")
        results = [site.send("echo", n) for n in range(10)]
        wait_until(lambda: site.asked("denied") >= 10, description="all tasks were denied")
        run_verb("stop")
        assert site.ran("echo") == []
        assert site.left() == 10
        site.settings["denials"] = 0
        run_verb("start")
        assert sorted(result.get(timeout=WITHIN) for result in results) == list(range(10))
        assert sorted(map(int, site.ran("echo"))) == list(range(10))


@contextlib.contextmanager
def multi(site: CelerySite, folder: Path) -> Iterator[Any]:
    """Run `celery multi` with two workers of *site*. Their daemons are killed at the end."""

    def run_verb(verb: str) -> None:
        command = [
            sys.executable,
            "-m",
            "celery",
            "multi",
            verb,
            "one",
            "two",
            "-A",
            "support.celery.tasks",
            f"--pidfile={folder}/%n.pid",
            f"--logfile={folder}/%n.log",
            "--loglevel=INFO",
            "--concurrency=1",
            "--without-gossip",
            "--without-mingle",
        ]
        with contextlib.closing(
            Command(command, {"TK_CELERY": json.dumps(site.settings), "C_FORCE_ROOT": "1"})
        ) as running:
            running.wait(WITHIN)
        expected = 2 if verb == "start" else 0
        wait_until(lambda: len(list(folder.glob("*.pid"))) == expected, description=f"{verb} is complete")

    try:
        yield run_verb
    finally:
        for pid in folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("event", ["the pool grows", "a process is replaced"])
def test_no_task_is_granted_without_a_free_process(make_site: Any, event: str) -> None:
    """Celery counts more free processes than there are, after the pool has grown, and after a process was replaced."""
    conf = {"worker_max_tasks_per_child": 1} if event == "a process is replaced" else {}
    site: CelerySite = make_site(denials=0, conf=conf)
    worker = site.start()
    busy = [site.send("free_wait") for _ in range(2 if event == "the pool grows" else 1)]
    wait_until(lambda: len(site.ran("free_wait")) == len(busy), description="processes are busy")
    if event == "the pool grows":
        site.app.control.pool_grow(1, destination=[f"w@{site.queue}"], reply=True, timeout=WITHIN, limit=1)
    else:
        assert [site.send("free", str(n)).get(timeout=WITHIN) for n in range(4)] == ["0", "1", "2", "3"]
    results = [site.send("sleep", 3) for _ in range(3)]
    wait_until(lambda: worker.log().count("Task sleep") >= 3, description="the worker has received the tasks")
    wait_until(lambda: len(site.ran("sleep")) == 1, description="one body is running")
    assert site.asked("granted") == 1
    site.go()
    assert [result.get(timeout=WITHIN) for result in results] == ["slept"] * 3


@pytest.mark.skipif(VERSION < (5, 7), reason="Celery before 5.7 only forks on Linux")
def test_tasks_are_limited_in_a_pool_that_spawns_its_processes(make_site: Any, redis_base: str) -> None:
    """Each process imports the app and calls install as it starts. Bodies settle as in a forked process."""
    site: CelerySite = make_site(store=patient(f"{redis_base}/12"))
    site.start("--pool-start-method", "spawn")
    site.send("settling", 90, 10).get(timeout=WITHIN)
    site.send("settling", 50, 5).get(timeout=WITHIN)
    assert site.ran("settling") == ["90", "85"]


def test_install_in_a_body_is_refused(make_site: Any) -> None:
    """In a process of the pool, forked or spawned, `install` could not check any task."""
    site: CelerySite = make_site()
    site.start(*(["--pool-start-method", "spawn"] if VERSION >= (5, 7) else []), name="spawned")
    for name in ("spawned", "forked"):
        if name == "forked":
            site.start(name=name)
            site.app.control.cancel_consumer(site.queue, destination=[f"spawned@{site.queue}"], reply=True)
        error = site.send("installs").get(timeout=WITHIN, propagate=False)
        assert "in a pool process is too late" in str(error)


def test_a_task_is_put_back_into_a_queue_with_a_wildcard(make_on_each: Any) -> None:
    """A task that a queue bound with "orders.#" received by "orders.new" is put back into that queue."""
    site: CelerySite = make_on_each(denials=NEVER, delay=60.0, install={"max_hold": 2})
    site.start()
    orders = Queue(f"{site.queue}orders", Exchange(f"{site.queue}topic", "topic"), routing_key="orders.#")
    options = {"exchange": orders.exchange.name, "exchange_type": "topic", "routing_key": "orders.#"}
    site.app.control.add_consumer(orders.name, destination=[f"w@{site.queue}"], reply=True, **options)
    with site.app.connection_for_write() as connection:
        orders(connection.default_channel).declare()
        with site.app.amqp.Producer(connection) as producer:
            site.app.send_task("echo", ("a",), exchange=orders.exchange, routing_key="orders.new", producer=producer)
        wait_until(lambda: site.held(), description="the task is held")
        site.app.control.cancel_consumer(orders.name, destination=[f"w@{site.queue}"], reply=True)
        channel = connection.default_channel
        wait_until(
            lambda: channel.basic_get(orders.name, no_ack=True) is not None,
            description="the task is in its queue again",
        )
        channel.queue_delete(orders.name)


@pytest.mark.skipif(VERSION < (5, 5), reason="Celery 5.4 has no native delayed delivery")
@pytest.mark.rabbitmq
@pytest.mark.parametrize("key", ["#", "another"])
def test_a_copy_is_routed_to_its_own_queue_only(make_site: Any, key: str) -> None:
    """
    If Celery's delay exchange would route a copy to two queues or to none, the task is put directly into its own queue.

    Two queues: both are bound to one exchange, with wildcards. No queue: it was added to a running worker.
    """
    site: CelerySite = make_site("rabbitmq", quorum=True, denials=1, delay=2.0)
    worker = site.start()
    options = {"exchange": site.queue, "exchange_type": "topic", "routing_key": key}
    site.app.control.add_consumer(f"{site.queue}other", destination=[f"w@{site.queue}"], reply=True, **options)
    wait_until(lambda: "Started consuming" in worker.log(), description="the worker consumes both queues")
    for text, sent_by in (("a", site.queue), ("b", site.queue), ("c", key)):
        site.app.send_task("echo", (text,), exchange=site.queue, routing_key=sent_by)
    expected = "abc" if key == "another" else "aabbc"
    wait_until(lambda: len(site.ran("echo")) >= len(expected), description="all tasks have run")
    assert site.send("free", "later").get(timeout=WITHIN) == "later"
    assert sorted(site.ran("echo")) == list(expected)
    assert site.held() == []
    with site.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(f"{site.queue}other")


DJANGO = {
    "shop/settings.py": """
import os
SECRET_KEY = "a test's"
INSTALLED_APPS = ["partner"]
USE_TZ = True
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ["SHOP_REDIS"]
""",
    "shop/celery.py": """
import os
from celery import Celery
from throttlekit import Limiter
from throttlekit_celery import install

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
install(app, Limiter(os.environ["SHOP_LIMITS"]))
""",
    "shop/__init__.py": "from shop.celery import app as celery_app\n",
    "partner/__init__.py": "",
    "partner/tasks.py": """
from celery import shared_task
from throttlekit import TokenBucket

@shared_task(throttle=[TokenBucket("partner", "3/hour", burst=3)])
def call(number):
    return number

@shared_task
def free():
    return "free"
""",
}


def test_tasks_of_a_django_project_are_limited(
    redis_url: str, redis_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With settings in Django, tasks found by autodiscover_tasks and `install` in celery.py, the limit holds."""
    pytest.importorskip("django")
    for name, text in DJANGO.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    environment = {"SHOP_REDIS": redis_url, "SHOP_LIMITS": patient(f"{redis_base}/12"), "C_FORCE_ROOT": "1"}
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "2", "-n", "shop@here", "-l", "INFO"]
    app = Celery("sender", broker=redis_url, backend=redis_url, set_as_current=False)
    with contextlib.closing(Command(command, environment)) as worker:
        wait_until(lambda: "ready." in worker.log() or not worker.running, description="the worker is ready")
        results = [app.send_task("partner.tasks.call", (n,)) for n in range(5)]
        assert app.send_task("partner.tasks.free").get(timeout=WITHIN) == "free"
        assert [result.get(timeout=WITHIN) for result in results[:3]] == [0, 1, 2]

        def held() -> list[str]:
            replies: Any = app.control.inspect(["shop@here"], timeout=WITHIN, limit=1).scheduled() or {}
            return sorted(each["request"]["id"] for entries in replies.values() for each in entries)

        late = sorted(result.id for result in results[3:])
        wait_until(lambda: held() == late, description="the other tasks wait")
        assert not any(result.ready() for result in results[3:])
    limits: Any = redis.Redis.from_url(f"{redis_base}/12")
    with contextlib.closing(limits):
        limits.flushdb()
    app.close()
    del results
    gc.collect()  # as a site does
