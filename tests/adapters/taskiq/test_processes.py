"""Real `taskiq worker` processes that stop or die in a flood: no task is lost. Other floods: fleet/test_floods.py."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from support.flood.checks import assert_bound, assert_calm, starts_of
from support.flood.figures import figures
from support.flood.run import FloodLimit, run
from support.servers.flood import Servers
from support.servers.processes import RabbitMQ, redis_server
from support.taskiq.brokers import KINDS, Kind
from support.taskiq.flood import TaskiqFlood, TaskiqFlooding
from support.waiting import wait_until
from throttlekit import Control, Limiter
from throttlekit._wiring import wiring_of
from throttlekit.fleet.snapshot import look

pytestmark = pytest.mark.workers

_LIMITS = (FloodLimit("one", "50/s", 50),)
_DURABLE: tuple[Kind, ...] = ("stream", "rabbitmq")


@pytest.fixture
def servers_of(request: pytest.FixtureRequest, kind: Kind) -> Servers:
    found: Servers = request.getfixturevalue("on_rabbitmq" if kind == "rabbitmq" else "on_redis")
    return found


@pytest.mark.parametrize("kind", _DURABLE)
def test_killed_workers_lose_no_task(kind: Kind, servers_of: Servers) -> None:
    """All processes are killed with SIGKILL, twice, while tasks wait and run. Every task ends."""
    flood = TaskiqFlood(limits=_LIMITS, jobs=200, on=kind, body=0.02, kills=(1.0, 2.5), settle=1.0)
    record = run(flood, servers_of)
    assert set(record.ends) == {str(n) for n in range(200)}
    assert record.ended_twice <= 2 * 2 * flood.threads  # finished, and killed before that was confirmed
    assert figures(record).bound_holds


@pytest.mark.parametrize(
    ("kind", "number"), [*((kind, signal.SIGTERM) for kind in KINDS), ("stream", signal.SIGINT)], ids=str
)
def test_stopped_workers_lose_no_task(kind: Kind, number: signal.Signals, servers_of: Servers) -> None:
    """
    A worker that is stopped puts its waiting tasks back at once, and the next worker runs each task once. Messages that
    a stream had given to the first worker, and that it had not read yet, are claimed after five seconds.
    """
    flood = TaskiqFlood(limits=(FloodLimit("one", "20/s", 10),), jobs=100, on=kind, faulty=True)
    with TaskiqFlooding(flood, servers_of) as flooding:
        flooding.send_backlog()
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some tasks have run")
        flooding.stop_workers(number)
        flooding.start()
        wait_until(
            lambda: flooding.left() == 0 and len(flooding.starts()) >= 100,
            description="all tasks have run, and the broker is empty",
            every=0.5,
        )
        record = flooding.stop()
    assert starts_of(record) == {str(n): 1 for n in range(100)}
    assert assert_bound(record, "one", 50_000, 10) == 100
    assert_calm(record.log)


def test_an_idle_time_shorter_than_the_wait_runs_nothing_twice(on_redis: Servers) -> None:
    """
    A stream gives a message that is idle for 3 s to another worker. Tasks that wait for 9 s run once, where they wait.
    """
    flood = TaskiqFlood(
        limits=(FloodLimit("one", "10/s", 10),),
        jobs=100,
        broker_options=(("idle_timeout", 3_000), ("xread_block", 200)),
    )
    with TaskiqFlooding(flood, on_redis) as flooding:
        flooding.send_backlog()
        flooding.start()
        until = time.monotonic() + 60

        def all_ran() -> bool:
            flooding.nudge()  # taskiq checks for idle messages when other messages arrive
            return len(flooding.starts()) >= 100 or time.monotonic() > until

        wait_until(all_ran, description="all tasks have run", every=0.2)
        record = flooding.stop()
    assert starts_of(record) == {str(n): 1 for n in range(100)}


def test_tasks_that_run_for_longer_than_the_idle_time_run_once(on_redis: Servers) -> None:
    """Running workers keep their tasks, however long these run, while no other message arrives."""
    flood = TaskiqFlood(
        limits=(FloodLimit("one", "100/s", 10),),
        jobs=4,
        body=4.0,
        processes=2,
        broker_options=(("idle_timeout", 1_000), ("xread_block", 200)),
    )
    with TaskiqFlooding(flood, on_redis) as flooding:
        flooding.send_backlog()
        flooding.start()
        wait_until(
            lambda: flooding.left() == 0 and flooding.record.scard("ended") == 4,
            description="all tasks have run, and nothing is left",
            every=0.2,
        )
        record = flooding.stop()
    assert starts_of(record) == {str(n): 1 for n in range(4)}


def test_tasks_of_killed_workers_run_without_other_messages(on_redis: Servers) -> None:
    """
    All processes are killed while they have 300 tasks. The next processes claim these from the stream when they are
    idle, including those that taskiq would claim only after other messages.
    """
    flood = TaskiqFlood(
        limits=(FloodLimit("one", "100/s", 10),),
        jobs=300,
        broker_options=(("idle_timeout", 3_000), ("xread_block", 200)),
    )
    with TaskiqFlooding(flood, on_redis) as flooding:
        flooding.send_backlog()
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some tasks have run")
        flooding.kill()
        flooding.start()
        wait_until(
            lambda: len({start.job for start in flooding.starts()}) == 300, description="all tasks have run", every=0.2
        )
        wait_until(lambda: flooding.left() == 0, description="the stream is empty", every=0.2)
        record = flooding.stop()
    assert figures(record).bound_holds
    assert_calm(record.log)


def test_a_restart_of_rabbitmq_runs_no_waiting_task_twice(rabbitmq_url: str) -> None:
    """
    RabbitMQ delivers unacknowledged messages again. A worker does not pass on its earlier copies of waiting tasks. Only
    tasks whose bodies or acknowledgements were in progress can run twice.
    """
    flood = TaskiqFlood(limits=(FloodLimit("one", "20/s", 20),), jobs=120)
    with contextlib.closing(RabbitMQ()) as server, redis_server() as base:
        server.start()
        with TaskiqFlooding(flood, Servers("rabbitmq", server.url, base)) as flooding:
            flooding.send_backlog()
            flooding.start()
            wait_until(lambda: len(flooding.starts()) >= 30, description="some tasks have run")
            server.stop()
            server.start()
            wait_until(lambda: len({start.job for start in flooding.starts()}) == 120, description="all tasks have run")
            wait_until(lambda: flooding.left() == 0, description="the broker is empty")
            record = flooding.stop()
    assert record.begun_twice <= 2 * flood.threads
    assert figures(record).bound_holds


def test_a_pause_by_an_operator_keeps_the_order_of_tasks(on_redis: Servers) -> None:
    """
    No task runs while the limit is paused, and most of them make no request in the meantime. After `resume` all run, in
    order.
    """
    flood = TaskiqFlood(limits=(FloodLimit("one", "20/s", 1),), jobs=100, processes=1)
    with TaskiqFlooding(flood, on_redis) as flooding, Control(on_redis.store_url, by="ann") as control:
        flooding.send_backlog()
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some tasks have run")
        control.pause("one")
        store = wiring_of(control_limiter := Limiter(on_redis.store_url)).stores.shared

        def paused() -> int:
            limits = [each for each in look(store).limits if each.limit.name == "one"]
            return sum((each.minute.denied or {}).get("paused", 0) for each in limits)

        wait_until(lambda: paused() >= 1, description="the worker follows")
        ran = len(flooding.starts())
        denied = wait_until(
            lambda: (found := paused()) >= 5 and found, description="some requests were denied by the pause"
        )
        assert len(flooding.starts()) <= ran + flood.threads
        control.resume("one")
        wait_until(lambda: len(flooding.starts()) >= 100, description="all tasks have run", every=0.5)
        control_limiter.close()
        record = flooding.stop()
    order = [int(start.job) for start in sorted(record.starts, key=lambda start: start.at_us)]
    assert sorted(order) == list(range(100))
    assert denied < 30
    assert max(abs(job - place) for place, job in enumerate(order)) <= 10
    assert_bound(record, "one", 50_000, 1)
