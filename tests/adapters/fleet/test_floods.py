"""
A backlog under one limit or two, on real workers of each framework, with each broker, kind of worker and command.

Tests of a single framework, such as those with signals and kills, are in its own test_processes.py.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any, Literal

import pytest

from support.celery.flood import CeleryFlood
from support.celery.quiet import QUIET
from support.faults.processes import Fleet
from support.flood import run as floods
from support.flood.checks import assert_bound, assert_calm, starts_of
from support.flood.figures import figures
from support.flood.run import Flood, Flooding, FloodLimit, run
from support.huey.flood import HueyFlood
from support.rq.flood import OURS, OURS_SIMPLE, STOCK, RqFlood, RqFlooding
from support.servers.flood import Servers
from support.taskiq.flood import TaskiqFlood
from support.waiting import wait_until

pytestmark = [pytest.mark.workers, *QUIET]

_JOBS = 80
_BACKLOG: dict[str, Any] = {
    "limits": (FloodLimit("one", "20/s", 10),),
    "jobs": _JOBS,
    "settle": 0.2,
}


class _Dramatiq(Flooding):
    """One of the scripts that Dramatiq installs, with its options."""

    script: tuple[str, ...]

    def workers(self) -> Fleet:
        name, *options = self.script
        options += ["-p", str(self.flood.processes), "-t", str(self.flood.threads)]
        path = Path(sysconfig.get_path("scripts"), name)
        return Fleet([[str(path), floods._MODULE, *options]], self._environment)


class _DramatiqSpawned(_Dramatiq):
    script = ("dramatiq", "--use-spawn")


class _DramatiqGevent(_Dramatiq):
    script = ("dramatiq-gevent",)


class _RqPool(RqFlooding):
    """One `rq worker-pool` with a worker for each of the flood's kinds, which are all the same."""

    def workers(self) -> Fleet:
        kinds = self.flood.kinds
        pool = [sys.executable, "-m", "rq.cli", "worker-pool", self.queue, "--url", self.url]
        options = ["-n", str(len(kinds)), "--worker-class", kinds[0], "-c", "support.rq.flood_jobs"]
        return Fleet([[*pool, *options]], self._environment)


def _dramatiq(kind: type[_Dramatiq], broker: str = "redis") -> Any:
    return pytest.param(broker, kind, Flood(**_BACKLOG), id=f"{' '.join(kind.script)} on {broker}")


def _celery(pool: str, broker: str = "redis", **how: Any) -> Any:
    optional = pool in ("gevent", "eventlet") and "THROTTLEKIT_REQUIRE_SERVERS" not in os.environ
    missing = optional and importlib.util.find_spec(pool) is None
    marks = pytest.mark.skipif(missing, reason=f"{pool} is not installed: pip install {pool}")
    flood = CeleryFlood(**{**_BACKLOG, **how}, pool=pool)
    return pytest.param(broker, None, flood, id=f"celery worker --pool {pool} on {broker}", marks=marks)


def _rq_pool(name: str, kind: str) -> Any:
    return pytest.param("redis", _RqPool, RqFlood(**_BACKLOG, kinds=(kind, kind)), id=name)


def _rq(name: str, *kinds: str) -> Any:
    return pytest.param("redis", None, RqFlood(**{**_BACKLOG, "settle": 0.5}, kinds=kinds), id=f"rq worker, {name}")


def _taskiq(on: Any, form: str = "loop") -> Any:
    broker = "rabbitmq" if on == "rabbitmq" else "redis"
    return pytest.param(broker, None, TaskiqFlood(**_BACKLOG, on=on, form=form), id=f"taskiq worker on {on}, {form}")


def _huey(name: str, **how: Any) -> Any:
    return pytest.param("redis", None, HueyFlood(**{**_BACKLOG, "settle": 0.5}, **how), id=f"huey_consumer, {name}")


# Kombu has ten connections by default, and a message for which there is none stays unacknowledged.
_GREEN_ON_REDIS: dict[str, Any] = {"threads": 20, "conf": {"broker_transport_options": {"max_connections": 100}}}

# Celery 5.4 sends the last acknowledgements up to 2 s later, and not at all if it is stopped before.
_GREEN_ON_RABBITMQ: dict[str, Any] = {"threads": 20, "settle": 2.5}

BACKLOGS = [
    pytest.param("rabbitmq", None, Flood(**_BACKLOG), id="python -m dramatiq on rabbitmq"),
    _dramatiq(_DramatiqSpawned),
    _dramatiq(_DramatiqGevent),
    _dramatiq(_DramatiqGevent, "rabbitmq"),
    _celery("prefork"),
    _celery("prefork", "rabbitmq"),
    _celery("threads", "rabbitmq"),
    _celery("solo"),
    _celery("gevent", **_GREEN_ON_REDIS),
    _celery("gevent", "rabbitmq", **_GREEN_ON_RABBITMQ),
    _celery("eventlet", **_GREEN_ON_REDIS),
    _rq_pool("rq worker-pool", "rq.Worker"),
    _rq_pool("rq worker-pool -w ThrottledWorker", OURS),
    _rq("ours", OURS, OURS),
    _rq("ours, without a fork", OURS_SIMPLE, OURS_SIMPLE, OURS_SIMPLE),
    _rq("stock", STOCK, STOCK),
    _rq("stock and ours", STOCK, OURS),
    _rq("stock, without a scheduler", "rq.SimpleWorker", "rq.Worker"),
    _taskiq("stream"),
    _taskiq("stream", "thread"),
    _taskiq("list"),
    _taskiq("rabbitmq"),
    _huey("threads"),
    _huey("processes", worker_type="process"),
    _huey("greenlets", worker_type="greenlet", threads=16),
    _huey("priorities", queue_sorted=True),
    _huey("skewed clocks", skews=(-0.2, 3.0)),
]

_TWO_LIMITS: dict[str, Any] = {
    "limits": (FloodLimit("account", "10/s", 5, "{account}"), FloodLimit("all", "25/s", 10)),
    "jobs": 100,
    "account_of": lambda index: f"a{index % 4}",
    "settle": 0.5,
}


@pytest.mark.parametrize(("broker", "flooding", "flood"), BACKLOGS)
def test_a_backlog_keeps_its_bound_and_runs_once(
    request: pytest.FixtureRequest, broker: Literal["redis", "rabbitmq"], flooding: type[Flooding] | None, flood: Flood
) -> None:
    """
    No grant exceeds burst + elapsed / interval, and nothing is charged that was not granted. Each job runs once, no
    message is left, and no log has a traceback. How often a job is denied depends on the machine's load; the benchmarks
    limit it to 1.1.
    """
    flood_servers: Servers = request.getfixturevalue(f"on_{broker}")
    record = run(flood, flood_servers, flooding)
    assert starts_of(record) == {str(n): 1 for n in range(_JOBS)}, record.log[-4000:]
    assert assert_bound(record, "one", 50_000, 10) == _JOBS
    assert record.left == 0
    assert sum(record.counts.get(f"store: {reason}", 0) for reason in ("exhausted", "in line")) <= 5 * _JOBS
    assert figures(record).unexplained_charges == 0
    assert_calm(record.log)


@pytest.mark.parametrize(
    ("broker", "flood"),
    [
        pytest.param("rabbitmq", Flood(**_TWO_LIMITS), id="Dramatiq on rabbitmq"),
        pytest.param("redis", CeleryFlood(**_TWO_LIMITS), id="Celery"),
        pytest.param("redis", RqFlood(**_TWO_LIMITS), id="RQ"),
        pytest.param("redis", TaskiqFlood(**_TWO_LIMITS), id="taskiq"),
        pytest.param("redis", HueyFlood(**_TWO_LIMITS), id="huey"),
    ],
)
def test_two_limits_at_once_both_hold(request: pytest.FixtureRequest, broker: str, flood: Flood) -> None:
    """
    With 10/s for each of four accounts and 25/s for all, both limits hold, and a denial by one does not charge the
    other.
    """
    record = run(flood, request.getfixturevalue(f"on_{broker}"))
    assert assert_bound(record, "all", 40_000, 10) == 100
    assert assert_bound(record, "account", 100_000, 5) == 100
    assert starts_of(record) == {str(n): 1 for n in range(100)}


@pytest.mark.parametrize("kind", [CeleryFlood, HueyFlood])
def test_a_job_without_limits_runs_before_a_backlog(on_redis: Servers, kind: type[Flood]) -> None:
    """A job that is sent behind 2 000 jobs of a limit of 5/s runs while most of them still wait."""
    flood = kind(limits=(FloodLimit("one", "5/s", 5),), jobs=2000, processes=1, others={"free": ()})
    with flood.flooding(flood, on_redis) as flooding:
        flooding.send_backlog()
        flooding.send("free", "free")
        flooding.start()
        wait_until(
            lambda: any(start.job == "free" for start in flooding.starts()),
            description="the job without limits has run",
        )
        assert len(flooding.starts()) < 1000
