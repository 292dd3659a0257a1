"""Stock workers that import throttlekit for each job log it, and the doctor finds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import redis

from support.rq import jobs
from support.rq.helpers import QUIET
from support.rq.workers import Fleet, rq_worker
from support.waiting import wait_until
from throttlekit import TokenBucket
from throttlekit_rq import ThrottledQueue

pytestmark = [*QUIET, pytest.mark.workers]

PARTNER = TokenBucket("partner", "100/s", burst=100)


def notes(url: str) -> list[str]:
    """Return the doctor's notes about RQ."""
    command = [sys.executable, "-m", "throttlekit_cli", "doctor", "--json", "--rq", url]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    return [each["what"] for each in json.loads(done.stdout) if (each["about"], each["grade"]) == ("rq", "note")]


@pytest.mark.parametrize(
    ("kind", "options", "is_late"),
    [
        ("rq.Worker", [], True),
        ("rq.SpawnWorker", ["-c", "support.rq.preload"], True),
        ("rq.Worker", ["-c", "support.rq.preload"], False),
        ("rq.SimpleWorker", [], False),
        ("throttlekit_rq.ThrottledWorker", [], False),
    ],
    ids=["fork", "spawn", "preloaded", "simple", "throttled"],
)
def test_an_import_for_each_job_is_noted(redis_url: str, kind: str, options: list[str], is_late: bool) -> None:
    """
    A process that RQ creates for one job, and that imports throttlekit, is noted. A worker that has imported it is not.
    """
    connection: Any = redis.Redis.from_url(redis_url)
    queue = ThrottledQueue("work", connection=connection)
    sent = [queue.enqueue(jobs.plain, str(number), throttle=[PARTNER]) for number in range(2)]
    with Fleet([rq_worker(redis_url, "work", kind=kind, options=options)], {"THROTTLEKIT_URL": redis_url}) as fleet:
        wait_until(lambda: all(job.is_finished for job in sent), description="the jobs have run")
        found = [note for note in notes(redis_url) if "imports throttlekit again in the process of each job" in note]
        assert len(found) == is_late, fleet.log()
        if kind != "rq.SpawnWorker":  # its processes log no line at INFO
            assert fleet.log().count("import throttlekit for each job") == is_late
    connection.close()
