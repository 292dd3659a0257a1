"""
The tasks of a Celery worker of the tests, configured by $TK_CELERY, which `support.celery.site` writes.

By default the store denies each job twice and then grants it, whatever the limit is, so that every task of every test
is deferred twice.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import redis
from celery import Celery, Task, chain
from celery.worker.autoscale import Autoscaler

import throttlekit_celery._host as host
import throttlekit_celery._waiting as waiting
from support.celery.site import conf_of
from support.servers.stores import DenyBefore
from throttlekit import Limiter, RateLimited, TokenBucket, current
from throttlekit.stores import Request
from throttlekit_celery import install

__all__ = ["QuickAutoscaler", "app"]

CONTEXT = (
    "retries",
    "expires",
    "shadow",
    "argsrepr",
    "kwargsrepr",
    "timelimit",
    "reply_to",
    "correlation_id",
    "eta",
    "headers",
    "stamps",
    "stamped_headers",
    "origin",
    "ignore_result",
    "parent_id",
    "group",
    "chord",
    "task",
)


class QuickAutoscaler(Autoscaler):  # type: ignore[misc]
    """Ends processes that have been idle for a second, and not for half a minute as Celery does by default."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, keepalive=1.0, **options)


def _make_app(config: Mapping[str, Any]) -> Celery:
    app = Celery("site", broker=config["broker"], backend=config["backend"])
    app.conf.update(conf_of(config))
    record = redis.Redis.from_url(config["record"], decode_responses=True)
    prefix = config["queue"]

    class Store(DenyBefore):
        """A store that counts its answers, for all processes."""

        def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Any:
            request = Request(claims, requester, attempt)
            verdict = super().decide(request.claims, request.requester, now_us, attempt=request.attempt)
            record.incr(f"{prefix}:store:{'granted' if verdict.allowed else 'denied'}")
            self.asked.clear()
            return verdict

    if config["form"] == "put back":
        host._LONGEST_HOLD, waiting._CHECK_EVERY = 0.0, 0.01  # every denied job is requeued
    store: Any = config["store"] or Store(config["denials"], config["delay"])
    limiter = Limiter(store)
    install(app, limiter, **config["install"])
    tokens = TokenBucket(f"tokens of {prefix}", "100/hour", burst=100, cost=lambda job: job.args[0])
    each = TokenBucket("each", "1000000/s", burst=1_000_000, key=lambda job: job.id)
    throttle = [TokenBucket("one", config["rate"], burst=config["burst"])] if config["store"] else [each]

    def note(what: str, text: object) -> None:
        record.rpush(f"{prefix}:{what}", str(text))

    @app.task(name="echo", throttle=throttle)
    def echo(*args: Any) -> Any:
        note("echo", args[0] if args else "")
        return args[0] if args else None

    @app.task(name="free")
    def free(text: str = "") -> str:
        note("free", text)
        return text

    @app.task(name="add", throttle=throttle)
    def add(*numbers: Any) -> Any:
        note("add", numbers)
        return sum(sum(each) if isinstance(each, list) else each for each in numbers)

    def context(task: Any) -> dict[str, Any]:
        fields = {name: getattr(task.request, name, None) for name in CONTEXT}
        return json.loads(json.dumps({**fields, "priority": task.request.delivery_info.get("priority")}, default=str))

    app.task(context, name="context", bind=True, throttle=throttle)
    app.task(context, name="free_context", bind=True)

    @app.task(name="fail", throttle=throttle)
    def fail(*_: Any) -> None:
        note("fail", 1)
        raise LookupError("on purpose")

    @app.task(name="told_error")
    def told_error(*args: Any) -> None:
        note("told_error", args[0] if args and isinstance(args[0], str) else "context")

    @app.task(name="stubborn", bind=True, throttle=throttle, max_retries=3, default_retry_delay=0)
    def stubborn(self: Any, failures: int) -> int:
        note("stubborn", self.request.retries)
        if self.request.retries < failures:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    @app.task(
        name="auto",
        bind=True,
        throttle=throttle,
        autoretry_for=(LookupError,),
        max_retries=2,
        retry_backoff=False,
        default_retry_delay=0,
    )
    def auto(self: Any, failures: int) -> int:
        note("auto", self.request.retries)
        if self.request.retries < failures:
            raise LookupError("on purpose")
        return int(self.request.retries)

    @app.task(name="lost", bind=True, throttle=throttle, acks_late=True, reject_on_worker_lost=True)
    def lost(self: Any, text: str) -> str:
        note("lost", text)
        if len(record.lrange(f"{prefix}:lost", 0, -1)) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    @app.task(name="settling", bind=True, throttle=tokens, max_retries=1)
    def settling(self: Any, most: int, actual: int, retries: int = 0) -> list[str]:
        current().settle(actual)
        note("settling", limiter.peek(tokens, cost=0).remaining)
        if self.request.retries < retries:
            raise self.retry(countdown=0)
        return sorted(self.request.headers or {})

    def settle_all(*_: Any) -> None:
        current().settle(0)
        note("settling", limiter.peek(tokens, cost=0).remaining)

    app.task(settle_all, name="free_settling")
    app.task(settle_all, name="zero_settling", throttle=TokenBucket(f"zero of {prefix}", "1/s", cost=lambda job: 0))

    @app.task(name="nesting", throttle=tokens)
    def nesting(most: int, actual: int) -> None:
        free.apply(("inner",))
        current().settle(actual)
        note("settling", limiter.peek(tokens, cost=0).remaining)

    @app.task(name="late", throttle=throttle, acks_late=True)
    def late(text: str) -> str:
        note("late", text)
        return text

    @app.task(name="sleep", throttle=throttle)
    def sleep(seconds: float) -> str:
        note("sleep", time.time())
        time.sleep(seconds)
        return "slept"

    @app.task(name="free_sleep")
    def free_sleep(seconds: float) -> str:
        note("free_sleep", 1)
        time.sleep(seconds)
        return "slept"

    @app.task(name="free_wait")
    def free_wait() -> str:
        """Wait until the test calls `go`."""
        note("free_wait", 1)
        while not record.exists(f"{prefix}:go"):
            time.sleep(0.02)
        return "went"

    @app.task(name="wait_429", throttle=throttle)
    def wait_429() -> str:
        """Wait until the test calls `go`. The first run then gets a 429."""
        note("wait_429", 1)
        while not record.exists(f"{prefix}:go"):
            time.sleep(0.02)
        if record.llen(f"{prefix}:wait_429") == 1:
            raise RateLimited(0.1)
        return "went"

    @app.task(name="replaced", bind=True, throttle=throttle)
    def replaced(self: Any, number: int) -> Any:
        return self.replace(chain(add.s(number, 1).set(queue=prefix), add.s(1).set(queue=prefix)))

    class Custom(Task):  # type: ignore[misc]
        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            note("before_start", task_id)

        def on_failure(self, error: Exception, task_id: str, args: Any, kwargs: Any, info: Any) -> None:
            note("on_failure", type(error).__name__)

    @app.task(name="custom", base=Custom, throttle=throttle, ignore_result=True)
    def custom(text: str) -> str:
        note("custom", text)
        return text

    @app.task(name="limited", throttle=throttle, rate_limit="20/s")
    def limited(text: str) -> str:
        note("limited", text)
        return text

    @app.task(name="installs")
    def installs() -> None:
        install(Celery("late"), limiter)

    @app.task(name="bad_key", base=Custom, throttle=TokenBucket("bad", "10/s", key=lambda job: 1 / 0))
    def bad_key(text: str) -> None:
        note("bad_key", text)

    return app


app = _make_app(json.loads(os.environ["TK_CELERY"]))
