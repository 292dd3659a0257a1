"""django-rq: its queues and its `rqworker` command, with the queue class and the worker class of the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from redis import Redis
from rq.job import Job, JobStatus

from support.faults.processes import Command
from support.servers.flood import Servers
from support.waiting import wait_until

pytestmark = [
    pytest.mark.workers,
    pytest.mark.skipif(find_spec("django_rq") is None, reason="django-rq is not installed"),
]

_SEND = "import django; django.setup(); from support.rq.django_site.tasks import enqueue_all; enqueue_all()"


def test_limits_hold_with_django_rq(on_redis: Servers) -> None:
    """
    With limits of an enqueue call, a function or a queue, one of two jobs runs, and the other one waits. A job that is
    enqueued in a transaction reaches the queue after the commit.
    """
    settings = {"broker": on_redis.broker_url, "store": on_redis.store_url}
    environment = {"TK_DJANGO": json.dumps(settings), "DJANGO_SETTINGS_MODULE": "support.rq.django_site.settings"}
    path = os.pathsep.join(each for each in sys.path if each)
    sent = json.loads(
        subprocess.run(
            [sys.executable, "-c", _SEND],
            env={**os.environ, **environment, "PYTHONPATH": path},
            capture_output=True,
            check=True,
        ).stdout
    )
    assert sent.pop("before") == 0
    worker = Command([sys.executable, "-m", "django", "rqworker", "default", "reports"], environment)
    connection = Redis.from_url(on_redis.broker_url)
    try:
        for kind, (first, second) in sent.items():
            for job_id, status in ((first, JobStatus.FINISHED), (second, JobStatus.SCHEDULED)):
                wait_until(
                    lambda: Job.fetch(job_id, connection=connection).get_status() == status,  # noqa: B023
                    description=f"job {job_id} with limits {kind} is {status.value}",
                )
    except BaseException:
        print(worker.log()[-4000:])
        raise
    finally:
        worker.close()
        connection.close()
