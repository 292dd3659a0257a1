"""
The apps that are held to limits, and this process's receivers of Celery's signals.

There is one receiver of each signal for all apps, and none holds an app: an app that nothing else uses is collected,
and each install costs the same. What is installed lives as long as its app.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from throttlekit_celery._admission import Admission
from throttlekit_celery._body import Bodies, listens
from throttlekit_celery._host import connect_on_app_finalize, has_copies, signals
from throttlekit_celery._maps import refuse_maps
from throttlekit_celery._options import TaskLimits

__all__ = ["Installed", "add", "installed_for", "installed_in"]


@dataclass(eq=False)
class Installed:
    """What `install` made for one app."""

    admission: Admission
    bodies: Bodies
    limits: TaskLimits
    wait_in_place: Callable[..., None] | None

    def listen(self, task: Any) -> None:
        """Catch the `RateLimited` of *task*'s body, and refuse to map it, if it has limits."""
        if self.limits.limited(task):
            listens(task)
            if self.limits.of(task).limits:
                refuse_maps(task)

    def listen_all(self, app: Any) -> None:
        for task in list(app.tasks.values()):
            if task.app is app:
                self.listen(task)


_apps: weakref.WeakKeyDictionary[Any, weakref.ref[Installed]] = weakref.WeakKeyDictionary()
_at_exit: list[Callable[[], None]] = []


def add(app: Any, installed: Installed) -> None:
    """Let *installed* hear of the tasks of *app*, which keeps it alive."""
    _apps[app] = weakref.ref(installed)
    # To connect a receiver a second time changes nothing.
    signals.task_received.connect(_received, weak=False)
    signals.worker_shutdown.connect(_close_all, weak=False)
    signals.task_prerun.connect(_before, weak=False)
    signals.task_postrun.connect(_after, weak=False)
    connect_on_app_finalize(_finalizing)
    if not _at_exit:
        _at_exit.append(atexit.register(_close_all))  # a cold shutdown does not send the signal


def installed_in(app: Any) -> Installed | None:
    """What is installed in *app* itself; None if `install` was not called for it."""
    found = _apps.get(app)
    return found() if found is not None else None


def installed_for(app: Any) -> Installed | None:
    """Like `installed_in`, or what is installed in the app of which *app* is a pool process's copy."""
    found = installed_in(app)
    if found is None and has_copies():
        found = next((installed_in(each) for each in list(_apps) if each.main == app.main), None)
    return found


def _received(sender: Any = None, request: Any = None, **_: Any) -> None:
    if installed := installed_in(sender.app):
        installed.admission.receive(sender, request)


def _before(task: Any = None, **options: Any) -> None:
    if installed := installed_for(task.app):
        installed.bodies.before(task, **options)
        if installed.wait_in_place is not None and installed is installed_in(task.app):
            installed.wait_in_place(task, **options)


def _after(task: Any = None, **options: Any) -> None:
    if installed := installed_for(task.app):
        installed.bodies.after(task, **options)


def _close_all(**_: Any) -> None:
    for app in list(_apps):
        if installed := installed_in(app):
            installed.admission.close()


def _finalizing(app: Any) -> None:
    """An app of this process is about to bind its tasks; a spawned pool process has a copy of ours."""
    if installed_for(app) is not None:
        app.on_after_finalize.connect(_finalized, weak=False)


def _finalized(sender: Any = None, **_: Any) -> None:
    if installed := installed_for(sender):
        installed.listen_all(sender)
