"""
The jobs of the workers of a Celery flood, configured by $TK_FLOOD as in `support.flood.jobs`.

The limiter is throttlekit, Celery's `rate_limit` ("native"), or a simple base class that retries after the time to one
token plus up to a second ("naive"), or waits in the pool ("blocking").
"""

from __future__ import annotations

import json
import os
import random
import resource
import threading
from collections import Counter
from typing import Any

from celery import Celery, Task, signals
from kombu import messaging

from support.flood.limits import FloodLimit
from support.flood.record import Record, RecordingStore
from throttlekit import Limiter, TokenBucket
from throttlekit_celery import install

_flood = json.loads(os.environ["TK_FLOOD"])
_record = Record(_flood["record_url"], _flood["slow_s"])
_lock = threading.Lock()
_counts: Counter[str] = Counter()
_cpu_at_start = [0.0]


def _count(name: str) -> None:
    with _lock:
        _counts[name] += 1


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@signals.worker_ready.connect(weak=False)
def _ready(**_: Any) -> None:
    _cpu_at_start[0] = _cpu()
    print("ready for action", flush=True)


@signals.task_received.connect(weak=False)
def _received(**_: Any) -> None:
    _count("deliveries")
    _count("operations")  # the acknowledgement


@signals.worker_shutdown.connect(weak=False)
def _write_counts(**_: Any) -> None:
    for name, count in _counts.items():
        _record.count(name, count)
    _record.count("cpu", _cpu() - _cpu_at_start[0])


def _counting(publish: Any) -> Any:
    def counted(self: Any, body: Any, *args: Any, headers: Any = None, **options: Any) -> Any:
        if "task" in (headers or {}):
            # In a pool process, no other code would count this.
            _record.count("operations")
        return publish(self, body, *args, headers=headers, **options)

    return counted


messaging.Producer.publish = _counting(messaging.Producer.publish)

app = Celery("flood", broker=_flood["broker_url"], backend=_flood["results_url"])
app.conf.update(_flood["conf"], task_default_queue=_flood["queue"], worker_hijack_root_logger=False)


class Seed(Task):  # type: ignore[misc]
    """A simple task: request a unit in the worker's pool, and retry if denied."""

    limiter: Any = None
    limit: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decision = self.limiter.acquire(self.limit)
        if not decision.allowed:
            raise self.retry(countdown=decision.retry_after + random.random(), max_retries=None)
        return self.run(*args, **kwargs)


class Blocking(Seed):
    """A task that waits in the worker's pool."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.limiter.hold(self.limit, timeout=600):
            return self.run(*args, **kwargs)


def _declare(name: str, limits: list[TokenBucket]) -> None:
    mode, body = _flood["mode"], _flood["body"]
    options: dict[str, Any] = dict(_flood["actor_options"])
    if mode == "throttlekit":
        options["throttle"] = limits
    elif mode == "native" and limits:
        options["rate_limit"] = f"{limits[0].amount}/s"
    elif mode in ("naive", "blocking") and limits:
        base = Seed if mode == "naive" else Blocking
        seed = Limiter(RecordingStore(_flood["store_url"], _record, lambda _: None))
        options |= {"base": type("Seeded", (base,), {"limiter": seed, "limit": limits[0], "abstract": True})}

    @app.task(name=name, **options)
    def job(index: str, account: str) -> str:
        _record.run(index, body)
        return index


if _flood["mode"] == "throttlekit":
    _limiter = Limiter(RecordingStore(_flood["store_url"], _record, _count))
    install(app, _limiter, **_flood["install"])
for _name, _limits in _flood["actors"].items():
    _declare(_name, [FloodLimit(**limit).made() for limit in _limits])
