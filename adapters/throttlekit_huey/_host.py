"""Copies of the parts of huey's `execute` that have no public function. They log the same lines."""

from __future__ import annotations

import logging
from typing import Any

from huey import signals  # type: ignore[import-untyped]
from huey.utils import SKIPPED  # type: ignore[import-untyped]

__all__ = ["end_without_body", "run"]

_log = logging.getLogger("huey")


def end_without_body(huey: Any, task: Any, now: Any) -> bool:
    """
    Handle *task* like huey's `execute` if its body must not run now, because it is not due yet, revoked or expired.

    If the body may run, the call takes one round trip. It deletes a revocation that has ended or is for one run only,
    so call this function once each time a task is taken from the queue.

    Returns:
        False if the body may run. True if the task was scheduled again, or has ended without its body.
    """
    if not huey.ready_to_run(task, now):
        huey.add_schedule(task)
    elif huey.is_revoked(task, now, False):
        _log.warning("Task %s was revoked, not executing", task)
        huey._emit(signals.SIGNAL_REVOKED, task)
        huey._abort_chord_member(task, SKIPPED)
    elif task.expires_resolved and task.expires_resolved < now:
        _log.info("Task %s expired, not executing.", task)
        huey._emit(signals.SIGNAL_EXPIRED, task)
        huey._abort_chord_member(task, SKIPPED)
    else:
        return False
    return True


def run(huey: Any, task: Any, now: Any) -> Any:
    """Run a task like the second part of huey's `execute`, after its checks."""
    _log.info("Executing %s", task)
    huey._emit(signals.SIGNAL_EXECUTING, task)
    return huey._execute(task, now)
