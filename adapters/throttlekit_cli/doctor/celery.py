"""Check that a Celery app is set up so that limits hold and nothing runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

from celery.app.utils import find_app  # type: ignore[import-untyped]

from throttlekit.adapter import misspelt
from throttlekit_celery._installation import Installation, installation_of
from throttlekit_celery._options import DECLARED
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.doctor.imports import ExaminationError, import_target
from throttlekit_cli.doctor.same_store import compare_stores

__all__ = ["examine"]

_MIN_VISIBILITY_S = 60.0
_ENDS_WORKERS = (5, 7)
"""The first version of kombu with which a lost connection to Redis ends a worker."""

_ok, _note, _warning, _fault = findings_about("celery")


def examine(where: str, url: str | None) -> Iterator[Finding]:
    """Check the app that *where* names, as `celery -A` reads it."""
    import_target(where.partition(":")[0])
    try:
        app: Any = find_app(where)
    except Exception as error:
        raise ExaminationError(f"there is no Celery app in {where!r}: {type(error).__name__}: {error}") from error
    app.loader.import_default_modules()
    limited = sorted(
        name
        for name, task in app.tasks.items()
        if getattr(task, "throttle", None) or getattr(task.run, DECLARED, None) is not None
    )
    for name, task in sorted(app.tasks.items()):
        for option, meant in misspelt(vars(type(task))).items():
            yield _fault(
                f"{name} has the option {option!r}, which Celery ignores: it sets no limit.", f"write {meant}=…"
            )
    installed = installation_of(app)
    if installed is None:
        yield _fault(
            f"throttlekit is not installed in this app; {len(limited)} of its tasks name limits.",
            "call install(app, limiter) where the app is made",
        )
        return
    yield _ok(f"install(app, …) was called; {len(limited)} tasks name limits themselves.")
    yield from compare_stores(installed.throttling.limiter, url, "celery", _broker(app))
    if app.conf.task_always_eager:
        yield _warning(
            "task_always_eager is on: tasks run where they are called, and limits are ignored unless install has "
            'eager="wait".',
            "turn it off outside tests",
        )
    transport = str(app.connection_for_read().transport_cls)
    if "redis" in transport or transport == "sentinel":
        yield _visibility(app)
        yield from _lost_broker()
    elif transport in ("amqp", "pyamqp", "amqps", "librabbitmq", "py-amqp"):
        yield _publisher_confirms(app)
        yield _consumer_timeout(installed)
    for name in limited:
        if getattr(app.tasks[name], "rate_limit", None):
            yield _note(f"{name} also has a rate_limit, which each worker counts by itself.")


def _broker(app: Any) -> str:
    """Return the host:port/database of a broker on Redis, or "" for any other broker."""
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis" or "sentinel" in str(app.conf.broker_url):
            return ""
        database = str(connection.virtual_host or "").strip("/") or "0"
        return f"{connection.hostname}:{connection.port or 6379}/{database}"


def _visibility(app: Any) -> Finding:
    seconds = app.conf.broker_transport_options.get("visibility_timeout")
    if seconds is None:
        return _note(
            "visibility_timeout is Celery's default, an hour: tasks of a killed worker are redelivered after that.",
            "set broker_transport_options visibility_timeout to a few minutes more than your longest task",
        )
    if seconds < _MIN_VISIBILITY_S:
        return _warning(
            f"visibility_timeout is {seconds} s: a task with late acknowledgement may run twice if its body takes "
            "longer than two thirds of that.",
            "set it to a few minutes more than your longest task",
        )
    held = "a worker holds a task for a third of it at most"
    return _ok(f"visibility_timeout is {seconds} s; {held}.")


def _lost_broker() -> Iterator[Finding]:
    version = metadata.version("kombu")
    if tuple(int(part) for part in version.split(".")[:2]) >= _ENDS_WORKERS:
        yield _note(
            f"With kombu {version}, a worker that holds tasks (also ETA tasks) ends when it loses its Redis broker. "
            "Workers of this app stay alive, because of install.",
            "run workers of apps without install under a supervisor",
        )


def _publisher_confirms(app: Any) -> Finding:
    if app.conf.broker_transport_options.get("confirm_publish"):
        return _ok("RabbitMQ confirms the tasks that this app sends (confirm_publish).")
    return _note(
        "RabbitMQ does not confirm the tasks that this app sends, so a kill of RabbitMQ may lose some. It confirms the "
        "denied tasks that workers put back.",
        "set broker_transport_options confirm_publish to True: each send then waits for the confirmation",
    )


def _consumer_timeout(installed: Installation) -> Finding:
    if installed.max_hold is not None:
        return _ok(f"A worker holds a task for at most {installed.max_hold:g} s (max_hold=).")
    return _note(
        "A worker holds a task for at most 10 minutes: less than RabbitMQ's default consumer_timeout of 30 minutes.",
        "if yours is shorter, set install(…, max_hold=) to a third of it",
    )
