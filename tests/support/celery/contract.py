"""The app of the suite's Celery workers: the jobs of `AdapterConformance` as tasks, configured by $TK_CELERY."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery, signals

from support.celery.site import conf_of
from support.contract_sites import settings_from
from throttlekit.testing.adapter_site import JOBS, note_failure, perform
from throttlekit_celery import install

__all__ = ["app"]

_SEEN = (
    "id",
    "task",
    "retries",
    "expires",
    "shadow",
    "timelimit",
    "headers",
    "origin",
    "ignore_result",
    "parent_id",
    "group",
    "chord",
    "eta",
    "stamps",
)


def _job(task: Any, key: str, notes: str, name: str, steps: list[str]) -> str:
    seen = {attribute: getattr(task.request, attribute, None) for attribute in _SEEN}
    return perform(key, notes, name, steps, {**seen, "priority": task.request.delivery_info.get("priority")})


def _make_app(config: Mapping[str, Any]) -> Celery:
    app = Celery("contract", broker=config["broker"], backend=config["backend"])
    app.conf.update(conf_of(config))
    settings = settings_from(config["settings"])
    install(app, settings.limiter(config["store"]), **settings.options())
    for name, kind in JOBS.items():
        # Without a delay, Celery may write RETRY after the next run has written SUCCESS, and the state stays wrong.
        retried: dict[str, Any] = {"autoretry_for": (RuntimeError,), "retry_kwargs": {"countdown": 0.3}}
        options = retried if kind.retries else {}
        app.task(_job, name=name, bind=True, max_retries=kind.retries, **options, **kind.options())

    @signals.task_failure.connect(weak=False)
    def failed(args: Any = (), **_: Any) -> None:
        note_failure(*args)

    @signals.task_retry.connect(weak=False)
    def retried(request: Any = None, **_: Any) -> None:
        note_failure(*request.args)

    return app


if "TK_CELERY" in os.environ:
    app = _make_app(json.loads(os.environ["TK_CELERY"]))
