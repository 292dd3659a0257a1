"""Real `taskiq worker` processes that stop or die in a flood: no task is lost. Other floods: fleet/test_floods.py."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from support.flood.checks import assert_bound, assert_calm, in_order, starts_of
from support.flood.figures import figures
from support.flood.run import FloodLimit, Told, run
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


def _denials(told: Told) -> float:
    return sum(told.counts.get(f"store: {reason}", 0) for reason in ("exhausted", "in line"))


@pytest.mark.parametrize("kind", _DURABLE)
def test_killed_workers_lose_nothing(kind: Kind, servers_of: Servers) -> None:
    """All processes are killed with SIGKILL, twice, while tasks wait and run: every task comes to its end."""
    flood = TaskiqFlood(limits=_LIMITS, jobs=200, on=kind, body=0.02, kills=(1.0, 2.5), settle=1.0)
    told = in_order(run(flood, servers_of))
    assert set(told.ends) == {str(n) for n in range(200)}
    assert told.ended_twice <= 2 * 2 * flood.threads  # finished, and killed before that was confirmed
    assert figures(told).bound_holds


@pytest.mark.parametrize(
    ("kind", "number"), [*((kind, signal.SIGTERM) for kind in KINDS), ("stream", signal.SIGINT)], ids=str
)
def test_stopped_workers_lose_nothing(kind: Kind, number: signal.Signals, servers_of: Servers) -> None:
    """
    A worker that is stopped gives back at once what waits in it: the next one runs each task once. What a stream had
    given to the first one, and it had not read yet, comes after five seconds' idling.
    """
    flood = TaskiqFlood(limits=(FloodLimit("one", "20/s", 10),), jobs=100, on=kind, faulty=True)
    with TaskiqFlooding(flood, servers_of) as flooding:
        for index in range(100):
            flooding.send("job", str(index))
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some tasks have run")
        flooding.stop_workers(number)
        flooding.start()
        wait_until(
            lambda: flooding.left() == 0 and len(flooding.starts()) >= 100,
            description="all tasks have run, and the broker is empty",
            every=0.5,
        )
        told = in_order(flooding.stop())
    assert starts_of(told) == {str(n): 1 for n in range(100)}
    assert assert_bound(told, "one", 50_000, 10) == 100
    assert_calm(told.log)


def test_an_idle_time_shorter_than_the_wait_runs_nothing_twice(on_redis: Servers) -> None:
    """A stream gives what is idle for 3 s to another worker; tasks that wait for 9 s run once, where they wait."""
    flood = TaskiqFlood(
        limits=(FloodLimit("one", "10/s", 10),),
        jobs=100,
        broker_options=(("idle_timeout", 3_000), ("xread_block", 200)),
    )
    with TaskiqFlooding(flood, on_redis) as flooding:
        for index in range(100):
            flooding.send("job", str(index))
        flooding.start()
        until = time.monotonic() + 60

        def all_ran() -> bool:
            flooding.nudge()  # taskiq looks for idle messages when others come
            return len(flooding.starts()) >= 100 or time.monotonic() > until

        wait_until(all_ran, description="all tasks have run", every=0.2)
        told = flooding.stop()
    assert starts_of(told) == {str(n): 1 for n in range(100)}


def test_tasks_that_run_for_longer_than_the_idle_time_run_once(on_redis: Servers) -> None:
    """Workers that are alive keep their tasks, however long these run, while no other message arrives."""
    flood = TaskiqFlood(
        limits=(FloodLimit("one", "100/s", 10),),
        jobs=4,
        body=4.0,
        processes=2,
        broker_options=(("idle_timeout", 1_000), ("xread_block", 200)),
    )
    with TaskiqFlooding(flood, on_redis) as flooding:
        for index in range(4):
            flooding.send("job", str(index))
        flooding.start()
        wait_until(
            lambda: flooding.left() == 0 and flooding.record.scard("ended") == 4,
            description="all tasks have run, and nothing is left",
            every=0.2,
        )
        told = flooding.stop()
    assert starts_of(told) == {str(n): 1 for n in range(4)}


def test_tasks_of_killed_workers_run_though_no_other_message_comes(on_redis: Servers) -> None:
    """
    All processes are killed with 300 tasks in their hands. The next ones claim them from the stream once they are
    idle, also those that taskiq would claim only after other messages.
    """
    flood = TaskiqFlood(
        limits=(FloodLimit("one", "100/s", 10),),
        jobs=300,
        broker_options=(("idle_timeout", 3_000), ("xread_block", 200)),
    )
    with TaskiqFlooding(flood, on_redis) as flooding:
        for index in range(300):
            flooding.send("job", str(index))
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some tasks have run")
        flooding.kill()
        flooding.start()
        wait_until(
            lambda: len({start.job for start in flooding.starts()}) == 300, description="all tasks have run", every=0.2
        )
        wait_until(lambda: flooding.left() == 0, description="the stream is empty", every=0.2)
        told = in_order(flooding.stop())
    assert figures(told).bound_holds
    assert_calm(told.log)


def test_a_rabbitmq_that_restarts_doubles_no_task_that_waits(rabbitmq_url: str) -> None:
    """
    RabbitMQ delivers again what was unacknowledged. What waits in a worker is not handed on from there then: twice run
    at most those whose bodies, or acknowledgements, were under way.
    """
    flood = TaskiqFlood(limits=(FloodLimit("one", "20/s", 20),), jobs=120)
    with contextlib.closing(RabbitMQ()) as server, redis_server() as base:
        server.start()
        with TaskiqFlooding(flood, Servers("rabbitmq", server.url, base)) as flooding:
            for index in range(120):
                flooding.send("job", str(index))
            flooding.start()
            wait_until(lambda: len(flooding.starts()) >= 30, description="some tasks have run")
            server.stop()
            server.start()
            wait_until(lambda: len({start.job for start in flooding.starts()}) == 120, description="all have run")
            wait_until(lambda: flooding.left() == 0, description="the broker is empty")
            told = in_order(flooding.stop())
    assert told.begun_twice <= 2 * flood.threads
    assert figures(told).bound_holds


def test_a_pause_by_an_operator_keeps_the_order_of_tasks(on_redis: Servers) -> None:
    """Nobody runs while the limit is paused; most tasks ask nothing meanwhile; after `resume` all run, in order."""
    flood = TaskiqFlood(limits=(FloodLimit("one", "20/s", 1),), jobs=100, processes=1)
    with TaskiqFlooding(flood, on_redis) as flooding, Control(on_redis.store_url, by="ann") as control:
        for index in range(100):
            flooding.send("job", str(index))
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some tasks have run")
        control.pause("one")
        store = wiring_of(control_limiter := Limiter(on_redis.store_url)).stores.shared

        def paused() -> int:
            of_one = [each for each in look(store).limits if each.limit.name == "one"]
            return sum((each.minute.denied or {}).get("paused", 0) for each in of_one)

        wait_until(lambda: paused() >= 1, description="the worker follows")
        ran = len(flooding.starts())
        denied = wait_until(lambda: (found := paused()) >= 5 and found, description="those held back asked some times")
        assert len(flooding.starts()) <= ran + flood.threads
        control.resume("one")
        wait_until(lambda: len(flooding.starts()) >= 100, description="all tasks have run", every=0.5)
        control_limiter.close()
        told = in_order(flooding.stop())
    order = [int(start.job) for start in sorted(told.starts, key=lambda start: start.at_us)]
    assert sorted(order) == list(range(100))
    assert denied < 30
    assert max(abs(job - place) for place, job in enumerate(order)) <= 10
    assert_bound(told, "one", 50_000, 1)
