"""Check that a huey is set up so that limits hold and no job is lost."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from throttlekit import Limiter
from throttlekit.stores.redis_server import address_of
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.doctor.imports import ExaminationError, import_target
from throttlekit_cli.doctor.same_store import compare_stores
from throttlekit_huey._install import limiter_of
from throttlekit_huey._schedule import PREFIX, TAKEOVER_AFTER_S

__all__ = ["examine"]

_MAX_OVERDUE_S = 5.0
_ok, _note, _warning, _fault = findings_about("huey")


def examine(where: str, url: str | None) -> Iterator[Finding]:
    """Check the huey that *where* names, as `huey_consumer` reads it: "module.name". "module:name" is read as well."""
    module, _, name = where.partition(":") if ":" in where else where.rpartition(".")
    _, huey = import_target(f"{module}:{name}")
    if not isinstance(huey, importlib.import_module("huey").Huey):
        raise ExaminationError(f"{where!r} is not a huey")
    limited = [made for made in huey._registry._registry.values() if getattr(made, "throttle", None)]
    limiter: Limiter | None = limiter_of(huey)
    if limiter is None:
        yield _fault(
            f"throttlekit is not installed in this huey; {len(limited)} of its tasks name limits.",
            "call install(huey, limiter) where the huey is made",
        )
        return
    yield _ok(f"install(huey, …) was called; {len(limited)} tasks name limits.")
    if huey.immediate:
        yield _warning(
            "It is in immediate mode: tasks run where they are called, and limits are ignored.",
            "turn it off outside tests",
        )
        return
    yield from compare_stores(limiter, url, "huey", address_of(huey.storage.pool))
    if not huey.storage.blocking:
        yield _warning(
            "It was made with blocking=False: idle workers poll for jobs every 0.1 to 10 s, and denied jobs are late "
            "by as much.",
            "leave blocking=True",
        )
    if getattr(huey.serializer, "comp", True):
        yield _note(
            "Its messages are compressed, or have a custom format: a job without limits costs one more round trip.",
        )
    yield from _examine_schedule(huey)


def _examine_schedule(huey: Any) -> Iterator[Finding]:
    redis_errors: Any = importlib.import_module("redis").RedisError
    try:
        late = _overdue_s(huey)
    except redis_errors as error:
        raise ExaminationError(f"huey's Redis does not answer: {type(error).__name__}") from None
    if late > _MAX_OVERDUE_S:
        yield _warning(
            f"Jobs in huey's schedule, such as denied ones, are overdue by {late:.0f} s.",
            "no consumer runs, or all of its workers are busy: start one, or add workers",
        )


def _overdue_s(huey: Any) -> float:
    """Return the seconds by which the first due or woken job is overdue. They are 0 or less if no job is overdue."""
    storage = huey.storage
    conn, now = storage.conn, storage.convert_ts(huey._get_timestamp())
    due = conn.zrange(storage.schedule_key, 0, 0, withscores=True)
    seconds, _ = conn.time()
    in_hand = conn.zrange(f"{PREFIX}{storage.name}:in-hand", 0, 0, withscores=True)
    late = [now - at for _, at in due] + [seconds - at / 1e6 - TAKEOVER_AFTER_S for _, at in in_hand]
    return float(max(late, default=0.0))
