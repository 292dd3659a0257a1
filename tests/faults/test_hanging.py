"""A store that takes connections and answers none: workers stop all the same, and lose nothing."""

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
    """A worker that is told to stop ends by itself, and the next one runs every job that has not run, once."""
    case = Case(framework=framework, fault="store SIGSTOP 5 s", broker=broker)
    flood = case.flood()
    with scene(case.what, broker) as there, flood.flooding(flood, there.servers) as flooding:
        for index in range(case.jobs):
            flooding.send("job", str(index))
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 20, description="some have run")
        there.store.hang()
        wait_until(lambda: "It is called once a second" in flooding.log(), description="the workers have noticed")
        flooding.stop_workers(signal.SIGTERM)
        there.store.go_on()
        flooding.start()
        # What a stream had given to the first worker, and it had not read yet, comes after five seconds' idling.
        wait_until(
            lambda: flooding.left() == 0 and flooding.record.scard("ended") == case.jobs,
            description="all have run, and nothing is left",
            every=0.5,
        )
        told = flooding.stop()
    assert starts_of(told) == {str(index): 1 for index in range(case.jobs)}, "\n".join(
        line for line in told.log.splitlines() if "Executing task" not in line
    )
