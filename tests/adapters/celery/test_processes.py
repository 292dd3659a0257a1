"""Real Celery workers that are stopped or killed in a flood: no task is lost. Other floods: fleet/test_floods.py."""

from __future__ import annotations

import signal

import pytest

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.celery.quiet import QUIET
from support.celery.site import QUICK_RECOVERY
from support.flood.checks import starts_of
from support.flood.run import FloodLimit
from support.servers.flood import Servers
from support.waiting import wait_until

pytestmark = [pytest.mark.workers, *QUIET]


@pytest.mark.parametrize(
    ("broker", "how"),
    [
        ("redis", signal.SIGQUIT),
        ("rabbitmq", signal.SIGTERM),
        ("rabbitmq", signal.SIGQUIT),
        ("rabbitmq", signal.SIGKILL),
    ],
)
def test_signals_in_a_flood_lose_no_task(request: pytest.FixtureRequest, broker: str, how: signal.Signals) -> None:
    """
    Every task ends, although workers are stopped or killed during the flood. With Redis, faults/test_celery.py has
    SIGTERM and SIGKILL.

    Only tasks whose bodies or acknowledgements were in progress can run twice. A worker that has not ended after some
    time is killed: Celery's handler of SIGQUIT can wait for RabbitMQ forever, in the middle of a message, with or
    without throttlekit. SIGTERM uses threads: Celery's prefork pool can lose, as it stops, a task that a process has
    just begun, and then waits 30 s for it. The other signals use late acknowledgements: without them Celery loses tasks
    that a dead process was about to begin.
    """
    flood_servers: Servers = request.getfixturevalue(f"on_{broker}")
    pool = "threads" if how == signal.SIGTERM else "prefork"
    late = how != signal.SIGTERM
    conf = {**QUICK_RECOVERY, "task_acks_late": late, "task_reject_on_worker_lost": late}
    flood = CeleryFlood(limits=(FloodLimit("one", "100/s", 10),), jobs=150, conf=conf, pool=pool)
    with CeleryFlooding(flood, flood_servers) as flooding:
        for n in range(150):
            flooding.send("job", str(n))
        flooding.start()
        wait_until(lambda: len(flooding.starts()) >= 50, description="50 tasks have started")
        flooding.fleet.signal(how)
        flooding.fleet.ends_within(40)
        flooding.kill()
        flooding.start()

        def missing() -> set[str]:
            return {str(n) for n in range(150)} - {start.job for start in flooding.starts()}

        # A message that kombu was removing from Redis's list as its worker died is recorded nowhere: at most one for
        # each worker.
        gone = 2 if late and flood_servers.kind == "redis" else 0
        wait_until(
            lambda: not missing() or (len(missing()) <= gone and flooding._sender.left() == 0),
            description="all tasks have started",
        )
        record = flooding.stop()
    # Each task has begun. A message that is left would run a second time.
    assert sum(starts_of(record).values()) + record.left <= 150 + 2 * 2 * 2
