"""
Workflows of three steps, each of which needs the slot of its workflow, on workers of three frameworks.

$TK_WORKFLOWS has the URLs of the limits' store and of the record, and the length of a lease.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import dramatiq
import redis
from celery import Celery, chain
from dramatiq.brokers.redis import RedisBroker

import throttlekit
from throttlekit import Concurrency, Limiter
from throttlekit_celery import install
from throttlekit_dramatiq import Throttle
from throttlekit_rq import configure

__all__ = ["STEPS", "app", "launch", "launch_actor", "rq_step"]

STEPS = 3

_config = json.loads(os.environ["TK_WORKFLOWS"])
_gpu = Concurrency("gpu", 2, lease=_config["lease"], held_by="{workflow}")
_record: Any = redis.Redis.from_url(_config["record"])
_note: Any = _record.register_script("""
    local time = redis.call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    redis.call('RPUSH', 'events', now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
""")


def _step(workflow: str, number: int) -> None:
    """Run one step. The second step of "stuck…" never ends, and the last step of "fails…" fails."""
    _note(args=["begin", workflow, number, os.getpid()])
    time.sleep(600 if workflow.startswith("stuck") and number == 2 else _config["seconds"])
    try:
        if workflow.startswith("fails") and number == STEPS:
            raise ValueError("as expected")
    finally:
        lost = "lost" if throttlekit.current().lost else "held"
        _note(args=["done" if number == STEPS else "end", workflow, number, lost])
        if number == STEPS:
            throttlekit.current().done(_gpu)


_limiter = Limiter(_config["store"])

broker: Any = RedisBroker(url=_config["broker"])
dramatiq.set_broker(broker)
broker.add_middleware(Throttle(_limiter))


@dramatiq.actor(throttle=[_gpu], max_retries=0)
def step(workflow: str, number: int) -> None:
    _step(workflow, number)


@dramatiq.actor
def launch_actor(workflow: str) -> None:
    """Run the steps as a pipeline."""
    messages = [step.message_with_options(args=(workflow, n + 1), pipe_ignore=True) for n in range(STEPS)]
    dramatiq.pipeline(messages).run()


app = Celery("workflows", broker=_config["broker"])
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
install(app, _limiter)


@app.task(name="step", throttle=[_gpu])
def celery_step(workflow: str, number: int) -> None:
    _step(workflow, number)


@app.task(name="launch")
def launch(workflow: str) -> None:
    """Run the steps as a chain."""
    chain(*[celery_step.si(workflow, n + 1) for n in range(STEPS)]).apply_async()


configure(_limiter)


def rq_step(workflow: str, number: int) -> None:
    _step(workflow, number)
