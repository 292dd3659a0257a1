"""The jobs of `AdapterConformance` as RQ's functions, and the settings module of the suite's workers."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from rq import get_current_job

from support.contract_sites import settings_from
from throttlekit.testing.adapter_site import JOBS, note_failure, perform
from throttlekit_rq import configure, throttled

__all__ = ["failed"]


def _make_job(kind: str) -> Any:
    def job(key: str, notes: str, name: str, steps: list[str]) -> str:
        return perform(key, notes, name, steps, _seen())

    job.__name__ = job.__qualname__ = kind
    limits, on_429 = JOBS[kind].throttle, JOBS[kind].on_429
    return throttled(*limits, on_429=on_429)(job) if limits else job


def _seen() -> dict[str, Any]:
    job: Any = get_current_job()
    names = (
        "id",
        "origin",
        "meta",
        "description",
        "timeout",
        "result_ttl",
        "failure_ttl",
        "ttl",
        "retries_left",
        "group_id",
        "func_name",
        "created_at",
    )
    seen = {name: getattr(job, name, None) for name in names}
    return {**seen, "created_at": seen["created_at"] is not None}


def failed(job: Any, connection: Any, kind: type, error: BaseException, trace: Any) -> None:
    """Record a failure. This is RQ's callback."""
    note_failure(*job.args)


for _kind in JOBS:
    globals()[_kind] = _make_job(_kind)

if "TK_CONTRACT" in os.environ:
    _config = json.loads(os.environ["TK_CONTRACT"])
    logging.basicConfig(level=logging.INFO)
    _settings = settings_from(_config)
    configure(_settings.limiter(_config["store"]), **_settings.options())
