"""
Commands that start workers in a way of their own, with a backlog that a limit throttles.

The usual commands have floods in each adapter's test_processes.py: `python -m dramatiq`, `celery worker` with prefork
and threads, `huey_consumer` with each type of worker, `rq worker` with each class, `taskiq worker` on each broker.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any, Literal

import pytest

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.faults.processes import Fleet
from support.flood import run as floods
from support.flood.checks import assert_bound, assert_calm, in_order, starts_of
from support.flood.run import Flood, Flooding, FloodLimit, run
from support.rq.flood import OURS, RqFlood, RqFlooding
from support.servers.flood import Servers

pytestmark = [
    pytest.mark.workers,
    # Celery's client leaves sockets for the collector to find.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

_JOBS = 80
_BACKLOG: dict[str, Any] = {
    "limits": (FloodLimit("one", "20/s", 10),),
    "jobs": _JOBS,
    "settle": 0.2,
}


class _Dramatiq(Flooding):
    """One of the scripts that Dramatiq installs, and its options."""

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
    return pytest.param(broker, CeleryFlooding, flood, id=f"celery worker --pool {pool} on {broker}", marks=marks)


def _rq_pool(name: str, kind: str) -> Any:
    return pytest.param("redis", _RqPool, RqFlood(**_BACKLOG, kinds=(kind, kind)), id=name)


# Kombu has ten connections by default, and a message for which there is none stays unacknowledged.
_GREEN_ON_REDIS: dict[str, Any] = {"threads": 20, "conf": {"broker_transport_options": {"max_connections": 100}}}

# Celery 5.4 sends the last acknowledgements up to 2 s later, and not at all if it is stopped before.
_GREEN_ON_RABBITMQ: dict[str, Any] = {"threads": 20, "settle": 2.5}

LAUNCHERS = [
    _dramatiq(_DramatiqSpawned),
    _dramatiq(_DramatiqGevent),
    _dramatiq(_DramatiqGevent, "rabbitmq"),
    _celery("solo"),
    _celery("gevent", **_GREEN_ON_REDIS),
    _celery("gevent", "rabbitmq", **_GREEN_ON_RABBITMQ),
    _celery("eventlet", **_GREEN_ON_REDIS),
    _rq_pool("rq worker-pool", "rq.Worker"),
    _rq_pool("rq worker-pool -w ThrottledWorker", OURS),
]


@pytest.mark.parametrize(("broker", "flooding", "flood"), LAUNCHERS)
def test_a_throttled_backlog_runs_once_within_the_bound(
    request: pytest.FixtureRequest, broker: Literal["redis", "rabbitmq"], flooding: type[Flooding], flood: Flood
) -> None:
    """The backlog keeps its bound, each job runs once, and no traceback is logged."""
    where: Servers = request.getfixturevalue(f"on_{broker}")
    told = in_order(run(flood, where, flooding))
    assert starts_of(told) == {str(n): 1 for n in range(_JOBS)}, told.log[-4000:]
    assert assert_bound(told, "one", 50_000, 10) == _JOBS
    assert told.left == 0
    assert_calm(told.log)
