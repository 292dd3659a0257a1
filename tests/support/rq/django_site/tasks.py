"""The jobs of the project, and a function that enqueues them like a view."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.db import transaction
from django_rq import get_queue, job  # type: ignore[import-untyped]

from throttlekit import TokenBucket
from throttlekit_rq import throttled

_HOURLY = TokenBucket("hourly", "1/hour", burst=1)
_OWN = TokenBucket("own", "1/hour", burst=1)


def plain(number: int) -> int:
    return number


@job("default")  # type: ignore[untyped-decorator]
@throttled(_HOURLY)
def hourly(number: int) -> int:
    return number


def enqueue_all() -> None:
    """Print the ids of two jobs of each kind, and how many were in the queue before the transaction committed."""
    queue = get_queue()
    with transaction.atomic():
        for number in range(2):
            queue.enqueue(plain, number, throttle=[_OWN], job_id=f"own-{number}")
        before = queue.count
    sent: dict[str, Any] = {
        "before": before,
        "own": ["own-0", "own-1"],
        "decorated": [hourly.delay(number).id for number in range(2)],
        "of the queue": [get_queue("reports").enqueue(plain, number).id for number in range(2)],
    }
    json.dump(sent, sys.stdout)
