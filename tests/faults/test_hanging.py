"""A store that accepts connections and does not reply: workers still stop, and lose no job."""

from __future__ import annotations

import signal

import pytest

from support.faults.kinds import scene
from support.faults.strike import Case, Framework
from support.flood.checks import starts_of
from support.servers.flood import Kind
from support.waiting import wait_until

pytestmark = pytest.mark.workers


@pytest.mark.parametrize(("framework", "broker"), [("taskiq", "redis"), ("taskiq", "rabbitmq"), ("huey", "redis")])
def test_a_worker_stops_while_the_store_hangs(framework: Framework, broker: Kind) -> None:
    """A worker that gets SIGTERM stops, and the next one runs every job that has not run, once."""
    case = Case(framework=framework, fault="store SIGSTOP 5 s", broker=broker)
    flood = case.flood()
    with scene(case.what, broker) as running_scene, flood.flooding(flood, running_scene.servers) as flooding:
        flooding.send_backlog()
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some jobs have run")
        running_scene.store.hang()
        wait_until(
            lambda: "It is called once a second" in flooding.log(), description="the workers have logged the outage"
        )
        flooding.stop_workers(signal.SIGTERM)
        running_scene.store.go_on()
        flooding.start()
        # Messages that a stream delivered to the first worker, and that it had not read, are redelivered after 5 s.
        wait_until(
            lambda: flooding.left() == 0 and flooding.record.scard("ended") == case.jobs,
            description="all jobs have run, and no message is left",
            every=0.5,
        )
        result = flooding.stop()
    assert starts_of(result) == {str(index): 1 for index in range(case.jobs)}, "\n".join(
        line for line in result.log.splitlines() if "Executing task" not in line
    )
