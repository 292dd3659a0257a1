"""
The apps for which `install` was called, and this process's receivers of Celery's signals.

One receiver of each signal serves all apps. It has no reference to an app, so an app that nothing else uses is
garbage-collected, and each `install` costs the same. The app has the reference to its `Installation`.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from throttlekit.adapter import Throttling
from throttlekit_celery._admission import Admission
from throttlekit_celery._body import Bodies, catch_rate_limited
from throttlekit_celery._held_task import HeldTask
from throttlekit_celery._host import connect_on_app_finalize, has_copies, signals
from throttlekit_celery._maps import refuse_maps
from throttlekit_celery._options import TaskLimits

__all__ = ["Installation", "add", "installation_for", "installation_of"]


@dataclass(eq=False)
class Installation:
    """
    The objects that `install` creates for one app.

    Attributes:
        wait_if_eager: A function that makes a task wait if it is eager. None if eager tasks ignore their limits.
        admissions: The `Admission` of each running worker of the app, by the worker's consumer.
    """

    throttling: Throttling[HeldTask]
    limits: TaskLimits
    bodies: Bodies
    wait_if_eager: Callable[[Any], None] | None
    max_hold: float | None
    max_held: int
    admissions: dict[Any, Admission] = field(default_factory=dict[Any, Admission])

    def listen(self, task: Any) -> None:
        """If *task* has limits, catch the `RateLimited` of its body, and reject `.map`, `.starmap` and `.chunks`."""
        if self.limits.may_limit(task) and catch_rate_limited(task):
            if self.wait_if_eager is not None:
                self.wait_if_eager(task)
            if self.limits.of(task).limits:
                refuse_maps(task)

    def admission_of(self, consumer: Any) -> Admission:
        """Return the `Admission` that checks the tasks that the worker of *consumer* receives."""
        found = self.admissions.get(consumer)
        if found is None:
            found = Admission(consumer, self.throttling, self.limits, max_hold=self.max_hold, max_held=self.max_held)
            self.admissions[consumer] = found
        return found

    def close(self, controller: Any) -> None:
        """Close the admissions of the worker of *controller*, or of all workers if that is None."""
        for consumer, admission in list(self.admissions.items()):
            if controller is None or consumer.controller is controller:
                admission.close()
                self.admissions.pop(consumer, None)

    def listen_all(self, app: Any) -> None:
        for task in list(app.tasks.values()):
            if task.app is app:
                self.listen(task)


_INSTALLATION = "_throttlekit_installation"
"""The attribute of an app that holds its `Installation`."""

_apps: WeakSet[Any] = WeakSet()
_at_exit: list[Callable[..., None]] = []


def add(app: Any, installed: Installation) -> None:
    """Call *installed* for the signals of *app*."""
    setattr(app, _INSTALLATION, installed)
    _apps.add(app)
    # Connecting the same receiver a second time has no effect.
    signals.task_received.connect(_on_task_received, weak=False)
    signals.worker_shutdown.connect(_close_all, weak=False)
    signals.task_prerun.connect(_on_prerun, weak=False)
    signals.task_postrun.connect(_on_postrun, weak=False)
    signals.after_setup_logger.connect(_on_logger_set_up, weak=False)
    connect_on_app_finalize(_on_finalize)
    if not _at_exit:
        _at_exit.append(atexit.register(_close_all))  # a cold shutdown does not send the signal


def installation_of(app: Any) -> Installation | None:
    """Return the `Installation` of *app* itself, or None if `install` was not called for it."""
    found: Installation | None = getattr(app, _INSTALLATION, None)
    return found


def installation_for(app: Any) -> Installation | None:
    """Return the `Installation` of *app*, which in a pool process may be a copy of the app that was installed."""
    found = installation_of(app)
    if found is None and has_copies():
        found = next((installation_of(each) for each in list(_apps) if each.main == app.main), None)
    return found


def _on_task_received(sender: Any = None, request: Any = None, **_: Any) -> None:
    if installed := installation_of(sender.app):
        installed.admission_of(sender).receive(request)


def _on_prerun(task: Any = None, **_: Any) -> None:
    if installed := installation_for(task.app):
        installed.bodies.on_prerun(task)


def _on_postrun(task: Any = None, state: str = "", retval: Any = None, **_: Any) -> None:
    if installed := installation_for(task.app):
        installed.bodies.on_postrun(task, state, retval)


def _close_all(sender: Any = None, **_: Any) -> None:
    for app in list(_apps):
        if installed := installation_of(app):
            installed.close(sender)


def _on_logger_set_up(loglevel: Any = None, **_: Any) -> None:
    """Show throttlekit's log lines: denials are logged at INFO, and the default log level of a worker is WARNING."""
    log = logging.getLogger("throttlekit")
    if loglevel == logging.WARNING and log.level == logging.NOTSET:
        log.setLevel(logging.INFO)


def _on_finalize(app: Any) -> None:
    """Watch the tasks of *app*, which is about to bind them. *app* may be the copy in a spawned pool process."""
    if installation_for(app) is not None:
        app.on_after_finalize.connect(_on_finalized, weak=False)


def _on_finalized(sender: Any = None, **_: Any) -> None:
    if installed := installation_for(sender):
        installed.listen_all(sender)
