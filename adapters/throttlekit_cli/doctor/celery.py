"""Is a Celery app set up so that limits hold and nothing runs twice?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.app.utils import find_app  # type: ignore[import-untyped]

from throttlekit_celery._install import gate_of
from throttlekit_cli.doctor.findings import Finding
from throttlekit_cli.doctor.imports import CannotLook, imported

__all__ = ["examine_celery"]

_SHORT_VISIBILITY = 60.0


def examine_celery(where: str) -> Iterator[Finding]:
    """Look at the app that *where* names, as `celery -A` reads it."""
    imported(where.partition(":")[0])
    try:
        app: Any = find_app(where)
    except Exception as error:
        raise CannotLook(f"no Celery app is found in {where!r}: {type(error).__name__}: {error}") from error
    app.loader.import_default_modules()
    limited = sorted(name for name, task in app.tasks.items() if getattr(task, "throttle", None))
    gate = gate_of(app)
    if gate is None:
        yield _fault(
            f"throttlekit is not installed in this app; {len(limited)} of its tasks name limits.",
            "call install(app, limiter) where the app is made",
        )
        return
    yield Finding("ok", "celery", f"install(app, …) was called; {len(limited)} tasks name limits themselves.")
    if gate.limiter.in_memory:
        yield _fault(
            "Its limiter keeps limits in memory: each worker lets as much pass by itself.",
            'make it with the URL of a server: Limiter("redis://…")',
        )
    if app.conf.task_always_eager:
        yield _warning(
            "task_always_eager is on: tasks run where they are called, and limits are ignored unless install was told "
            'eager="wait".',
            "turn it off outside of tests",
        )
    transport = str(app.connection_for_read().transport_cls)
    if "redis" in transport or transport == "sentinel":
        yield _visibility(app)
    elif transport in ("amqp", "pyamqp", "amqps", "librabbitmq", "py-amqp"):
        yield _consumer_timeout(app, gate)
    for name in limited:
        if getattr(app.tasks[name], "rate_limit", None):
            yield Finding("note", "celery", f"{name} has a rate_limit too: it counts in each worker, and comes first.")


def _visibility(app: Any) -> Finding:
    seconds = app.conf.broker_transport_options.get("visibility_timeout")
    if seconds is None:
        return Finding(
            "note",
            "celery",
            "visibility_timeout is Celery's default, an hour: tasks that a killed worker held come back after that.",
            "set broker_transport_options visibility_timeout to some minutes more than your longest task",
        )
    if seconds < _SHORT_VISIBILITY:
        return _warning(
            f"visibility_timeout is {seconds} s: a task whose body, with up to a third of that spent waiting, takes "
            "longer and is acknowledged late runs twice.",
            "set it to some minutes more than your longest task",
        )
    return Finding("ok", "celery", f"visibility_timeout is {seconds} s; a task is held for a third of it at most.")


def _consumer_timeout(app: Any, gate: Any) -> Finding:
    if gate.max_hold is not None:
        return Finding("ok", "celery", f"A task is held for at most {gate.max_hold:g} s, as install was told.")
    return Finding(
        "note",
        "celery",
        "A task is held for 10 minutes at most: within RabbitMQ's consumer_timeout of 30 minutes, its default.",
        "if yours is less, say install(…, max_hold=) with a third of it",
    )


def _fault(what: str, remedy: str) -> Finding:
    return Finding("fault", "celery", what, remedy)


def _warning(what: str, remedy: str) -> Finding:
    return Finding("warning", "celery", what, remedy)
