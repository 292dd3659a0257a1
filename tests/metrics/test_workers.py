"""
What docs/metrics.md states about each framework, on real workers: which process makes decisions, and which exports
metrics.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import pytest
import redis
from celery import Celery
from prometheus_client import CollectorRegistry, generate_latest, multiprocess

from support.faults.processes import Command
from support.prometheus import samples
from support.rq.workers import Fleet, rq_worker
from support.servers.processes import free_port
from support.waiting import wait_until
from throttlekit import Limiter, TokenBucket
from throttlekit_rq import ThrottledQueue

pytestmark = pytest.mark.workers

JOBS = 12
ALLOWED = "decisions_total{limit=partner,outcome=allowed,reason=allowed}"
LIMIT = TokenBucket("partner", "20/s", burst=5)

_RQ = """
import os
from throttlekit import Limiter
from throttlekit.metrics.prometheus import PrometheusMetrics
from throttlekit_rq import configure

configure(Limiter(os.environ["TK_STORE"], plugins=[PrometheusMetrics()]))
"""

_CELERY = """
import os
from celery import Celery
from celery.signals import worker_ready
from prometheus_client import start_http_server
from throttlekit import Limiter, TokenBucket
from throttlekit.metrics.prometheus import PrometheusMetrics
from throttlekit_celery import install

app = Celery("metered", broker=os.environ["TK_STORE"], broker_connection_retry_on_startup=True)
install(app, Limiter(os.environ["TK_STORE"], plugins=[PrometheusMetrics()]))


@worker_ready.connect
def serve_metrics(**_):
    start_http_server(int(os.environ["TK_PORT"]), addr="127.0.0.1")


@app.task(name="call", throttle=[TokenBucket("partner", "20/s", burst=5)])
def call():
    pass
"""

_SPANS = """
import json
import os

import redis
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class ToRedis(SpanExporter):
    def export(self, spans):
        with redis.Redis.from_url(os.environ["TK_STORE"]) as client:
            client.rpush("spans", *(json.dumps(dict(span.attributes)) for span in spans))
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToRedis()))
tracer = provider.get_tracer("jobs")
"""

_TRACED_RQ = """
import os

from rq.job import Job
from spans import tracer
from throttlekit import Limiter
from throttlekit.metrics.opentelemetry import OpenTelemetryMetrics
from throttlekit_rq import configure

configure(Limiter(os.environ["TK_STORE"], plugins=[OpenTelemetryMetrics()]))
perform = Job.perform


def traced(job):
    with tracer.start_as_current_span("job"):
        return perform(job)


Job.perform = traced
"""

_TRACED_CELERY = """
import os

from celery import Celery
from celery.signals import task_postrun, task_prerun
from spans import tracer
from throttlekit import Limiter, TokenBucket
from throttlekit.metrics.opentelemetry import OpenTelemetryMetrics
from throttlekit_celery import install

app = Celery("traced", broker=os.environ["TK_STORE"], broker_connection_retry_on_startup=True)
install(app, Limiter(os.environ["TK_STORE"], plugins=[OpenTelemetryMetrics()]))


@task_prerun.connect
def open_span(task=None, **_):
    task.request.span = tracer.start_as_current_span("job")
    task.request.span.__enter__()


@task_postrun.connect
def close_span(task=None, **_):
    task.request.span.__exit__(None, None, None)


@app.task(name="call", throttle=[TokenBucket("slow", "1/s", burst=1)])
def call():
    pass
"""


@pytest.mark.parametrize("framework", ["celery", "rq"])
def test_the_span_of_a_job_has_its_wait(redis_url: str, tmp_path: Path, framework: str) -> None:
    """The worker decides before the job has a span. The attributes are set as its body starts, in another process."""
    (tmp_path / "spans.py").write_text(_SPANS)
    environment = {"TK_STORE": redis_url, "C_FORCE_ROOT": "1", "PYTHONPATH": _path(tmp_path)}
    with redis.Redis.from_url(redis_url) as connection, contextlib.closing(Limiter(redis_url)) as limiter:
        if framework == "celery":
            (tmp_path / "traced_celery.py").write_text(_TRACED_CELERY)
            app = Celery("tests", broker=redis_url, set_as_current=False)
            for _ in range(3):
                app.send_task("call")
            app.close()
            options = ["--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle"]
            worker = [sys.executable, "-m", "celery", "-A", "traced_celery", "worker", *options]
        else:
            (tmp_path / "traced_rq.py").write_text(_TRACED_RQ)
            queue = ThrottledQueue("default", connection=connection, limiter=limiter)
            for _ in range(3):
                queue.enqueue("time.sleep", 0, throttle=[TokenBucket("slow", "1/s", burst=1)])
            worker = rq_worker(redis_url, "default", kind="throttlekit_rq.ThrottledWorker", options=["-c", "traced_rq"])
        with Fleet([worker], environment):
            wait_until(lambda: connection.llen("spans") == 3, description="all have ended")
        first, *waited = [json.loads(each) for each in cast("list[bytes]", connection.lrange("spans", 0, -1))]
    assert first == {}
    for each in waited:
        assert each.pop("throttlekit.waited") > 0.05
        assert each.pop("throttlekit.deferrals") >= 1
        assert each == {"throttlekit.limit": "slow"}


def test_celery_serves_from_the_main_process(redis_url: str, tmp_path: Path) -> None:
    """With a pool of processes, the main process makes the decisions, and serves all metrics from its own registry."""
    (tmp_path / "metered_celery.py").write_text(_CELERY)
    port = free_port()
    environment = {"TK_STORE": redis_url, "TK_PORT": str(port), "C_FORCE_ROOT": "1", "PYTHONPATH": _path(tmp_path)}
    app = Celery("tests", broker=redis_url, set_as_current=False)
    for _ in range(JOBS):
        app.send_task("call")
    app.close()
    options = ["--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle"]
    command = Command([sys.executable, "-m", "celery", "-A", "metered_celery", "worker", *options], environment)
    try:
        wait_until(lambda: _scraped(port).get(ALLOWED) == JOBS, description="all tasks are counted")
        assert _scraped(port)["units_total{limit=partner}"] == JOBS
    finally:
        command.close()


def test_rq_workers_write_to_one_folder(redis_url: str, tmp_path: Path) -> None:
    """Workers of throttlekit decide before they fork. Each of them writes its files, and its work-horses write none."""
    (tmp_path / "metered_rq.py").write_text(_RQ)
    folder = tmp_path / "metrics"
    folder.mkdir()
    limiter, connection = Limiter(redis_url), redis.Redis.from_url(redis_url)
    queue = ThrottledQueue("default", connection=connection, limiter=limiter)
    for _ in range(JOBS):
        queue.enqueue("time.sleep", 0, throttle=[LIMIT])
    environment = {"TK_STORE": redis_url, "PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": _path(tmp_path)}
    options = ["-c", "metered_rq"]
    worker = rq_worker(redis_url, "default", kind="throttlekit_rq.ThrottledWorker", options=options)

    def found() -> dict[str, float]:
        if any(not file.stat().st_size for file in folder.glob("*.db")):
            return {}  # a worker has just created its file, and prometheus_client cannot read an empty one
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, path=str(folder))
        return samples(generate_latest(registry).decode())

    try:
        with Fleet([worker, worker], environment):
            wait_until(lambda: found().get(ALLOWED) == JOBS, description="all jobs are counted")
        assert found()["units_total{limit=partner}"] == JOBS
        assert len(list(folder.glob("counter_*.db"))) <= 2
    finally:
        limiter.close()
        connection.close()


def _path(folder: Path) -> str:
    return ":".join([str(folder), *(path for path in sys.path if path)])


def _scraped(port: int) -> dict[str, Any]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return samples(answer.read().decode())
    except OSError:
        return {}
