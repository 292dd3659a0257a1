"""The names and services that the code blocks of the pages use."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import celery._state
import django.conf
import django.utils.functional
import dramatiq
import dramatiq.broker
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from huey import RedisHuey
from redis import Redis

import throttlekit
import throttlekit_celery
import throttlekit_django._settings
import throttlekit_dramatiq
import throttlekit_requests  # noqa: F401  (below, another `requests` stands in)
import throttlekit_rq


class Downstream:
    """The service that a body calls. It answers 200 to each request."""

    status_code = 200

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def get(self, url: str) -> Downstream:
        return self

    def mount(self, prefix: str, adapter: object) -> None: ...

    post = complete = call = get


def _call_partner(account_id: int) -> None: ...


def _task(function: Any = None, **options: Any) -> Any:
    """Return *function* unchanged: replaces the decorators of Airflow and Prefect, which the tests do not install."""
    inspect.signature(function or _call_partner)
    return function or _task


@pytest.fixture
def _every_limiter_is_closed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """
    Close every limiter, including those that a page creates and drops: an open limiter reports its decisions to its
    store.
    """
    made: list[throttlekit.Limiter] = []
    make = throttlekit.Limiter.__init__

    def remember(limiter: throttlekit.Limiter, *arguments: Any, **options: Any) -> None:
        made.append(limiter)
        make(limiter, *arguments, **options)

    monkeypatch.setattr(throttlekit.Limiter, "__init__", remember)
    yield
    for limiter in made:
        limiter.close()


@pytest.fixture
def predefined(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, _every_limiter_is_closed: None
) -> Iterator[dict[str, Any]]:
    """
    The names that a page can use without an import: the exports of the packages, some limits, a limiter, a broker, an
    app, a queue, a function, and a service to call.
    """
    names: dict[str, Any] = {"dramatiq": dramatiq, "throttlekit": throttlekit, "urlsplit": urlsplit}
    for package in (throttlekit, throttlekit_celery, throttlekit_dramatiq, throttlekit_rq):
        names.update((name, getattr(package, name)) for name in package.__all__)
    limiter = names["limiter"] = throttlekit.Limiter()
    names["partner"] = throttlekit.TokenBucket("partner-api", "100/minute", burst=20)
    names["account"] = throttlekit.TokenBucket("partner-api:account", "10/s", key="{account_id}")
    names["reports"] = throttlekit.Concurrency("reports-db", 8, lease=30)
    names["broker"] = StubBroker()
    redis = names["redis"] = Redis.from_url(redis_url)
    names["queue"] = throttlekit_rq.ThrottledQueue("default", connection=redis)
    names["huey"] = RedisHuey("pages", url=redis_url)
    names["session"] = names["model"] = names["library"] = names["response"] = Downstream()
    names["call_partner"] = _call_partner
    names["plan_of"] = lambda account_id: "free"
    names.update(url="https://partner.example", account_id=42)
    names["__name__"] = "pages"
    monkeypatch.setitem(sys.modules, "pages", ModuleType("pages"))  # taskiq puts functions there
    get, schedulers = {"get": Downstream().get}, {"flow": _task, "task": _task}
    replacements = {"requests": get, "tasks": {"call_partner": _call_partner}, "airflow": {}, "airflow.sdk": schedulers}
    for module, functions in {**replacements, "prefect": schedulers}.items():
        made = ModuleType(module)
        vars(made).update(functions)
        monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.setattr(dramatiq.broker, "global_broker", names["broker"])
    unconfigured = SimpleNamespace(settings=throttlekit_rq._settings.Settings(), made={})
    monkeypatch.setattr(throttlekit_rq._settings, "_Process", unconfigured)
    monkeypatch.setattr(celery._state, "_on_app_finalizers", set(celery._state._on_app_finalizers))
    app_before = celery._state._tls.current_app, celery._state.default_app
    app = names["app"] = Celery("pages", broker="memory://")
    throttlekit_celery.install(app, limiter)
    yield names
    logging.getLogger("throttlekit").setLevel(logging.NOTSET)
    celery._state._tls.current_app, celery._state.default_app = app_before
    names["huey"].storage.pool.disconnect()
    redis.close()


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder whose modules can be imported, by Django too. Changes of the environment are reverted."""
    monkeypatch.syspath_prepend(tmp_path)
    settings: Any = django.conf.settings  # Django's modules keep this object
    before, settings._wrapped = settings._wrapped, django.utils.functional.empty
    with mock.patch.dict(os.environ, DJANGO_SETTINGS_MODULE="shop.settings"):
        yield tmp_path
    throttlekit_django._settings.forget_limiter()
    settings._wrapped = before
    for name, module in list(sys.modules.items()):
        # A package without __init__.py has no file.
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        if any(str(place).startswith(str(tmp_path)) for place in places):
            del sys.modules[name]
