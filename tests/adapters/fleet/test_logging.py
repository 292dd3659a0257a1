"""What the workers of each framework log about limits with the default logging of their commands."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.faults.processes import Command
from support.servers.processes import RedisProcess
from support.waiting import wait_until

pytestmark = pytest.mark.workers

BODY = """
import os
from throttlekit import Limiter, RateLimited, TokenBucket
limiter = Limiter({store!r})
partner = TokenBucket("partner-api", "1/s", burst=1, key="{{account}}")
def body():
    if not os.path.exists("refused_once"):
        open("refused_once", "w").close()
        raise RateLimited(3)
"""
APPS = {
    "dramatiq": """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from throttlekit_dramatiq import Throttle
broker = RedisBroker(url={broker!r})
broker.add_middleware(Throttle(limiter))
dramatiq.set_broker(broker)
@dramatiq.actor(throttle=partner)
def call(account):
    body()
""",
    "celery": """
from celery import Celery
from throttlekit_celery import install, throttled
app = Celery("app", broker={broker!r})
install(app, limiter)
@app.task
@throttled(partner)
def call(account):
    body()
""",
    "rq": """
from redis import Redis
from rq import Queue
from throttlekit_rq import configure, throttled
REDIS_URL = {broker!r}
configure(limiter)
queue = Queue(connection=Redis.from_url(REDIS_URL))
@throttled(partner)
def call(account):
    body()
""",
}
SEND = {"dramatiq": "call.send", "celery": "call.delay", "rq": "queue.enqueue"}
LIMIT, JOB = "'partner-api'", "job \\S+ of key #[0-9a-f]{8}"
_RQ = ["-m", "rq.cli", "worker", "-c", "app"]
WORKERS = {
    "dramatiq": ["-m", "dramatiq", "app", "--processes", "1", "--threads", "2", "--path", "."],
    "celery": ["-m", "celery", "-A", "app", "worker", "-c", "1"],
    "rq": [*_RQ, "--with-scheduler"],
    "rq-throttled": [*_RQ, "--worker-class", "throttlekit_rq.ThrottledWorker"],
}


@pytest.fixture
def store() -> Iterator[RedisProcess]:
    """The limiter's own server, which needs a password."""
    server = RedisProcess(password="sesame-4111")
    with contextlib.closing(server):
        server.start()
        yield server


@pytest.mark.parametrize("worker", WORKERS)
def test_workers_log_why_jobs_wait(worker: str, redis_url: str, store: RedisProcess, tmp_path: Path) -> None:
    """
    Workers log one line when a limit begins to delay jobs, one for a 429 that pauses, and one when the store is
    unavailable. Each names the limit and a job, or the server. No line of throttlekit has a key, an argument or a
    password.
    """
    framework = worker.partition("-")[0]
    text = (BODY + APPS[framework]).format(store=f"{store.url}/1", broker=redis_url)
    (tmp_path / "app.py").write_text(text)
    command = Command([sys.executable, *WORKERS[worker]], {"PYTHONPATH": _path(tmp_path)}, cwd=tmp_path)
    with contextlib.closing(command) as running:

        def logged(pattern: str) -> str:
            found: list[str] = []

            def is_logged() -> bool:
                assert running.running, "the worker has ended"
                found[:] = [line for line in running.log().splitlines() if re.search(pattern, line)]
                return bool(found)

            try:
                wait_until(is_logged, description=f"{worker} logs {pattern!r}")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{running.log()}") from None
            return found[0]

        _send(framework, tmp_path, 3)
        lines = [
            logged(rf"{LIMIT}: downstream said 429: paused for 3 s in the whole fleet \({JOB}\)"),
            logged(rf"{LIMIT} is holding jobs back: {JOB} waits for [\d.]+ s, until \d\d:\d\d:\d\d UTC: \w+"),
        ]
        store.stop()
        _send(framework, tmp_path, 1)
        lines.append(logged(rf"the store gave no usable answer: \w+ \(server 127\.0\.0\.1:{store.port}/1\)"))
        assert not [line for line in lines if "jane" in line]
        assert "sesame" not in running.log()


def _send(framework: str, folder: Path, jobs: int) -> None:
    arguments = "call, 'jane'" if framework == "rq" else "'jane'"
    code = f"from app import *\nfor _ in range({jobs}):\n    {SEND[framework]}({arguments})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": _path(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *(path for path in sys.path if path)])
