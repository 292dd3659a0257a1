"""Huey's own parts that it gives no public name, and its log."""

from __future__ import annotations

import logging
from typing import Any

from huey import signals  # type: ignore[import-untyped]

__all__ = ["is_over", "run"]

_log = logging.getLogger("huey")


def is_over(huey: Any, task: Any, now: Any) -> bool:
    """Whether huey runs no body of *task* now: it is scheduled for later, revoked or expired. One round trip."""
    expired = task.expires_resolved and task.expires_resolved < now
    return bool(not huey.ready_to_run(task, now) or expired or huey.is_revoked(task, now))


def run(huey: Any, task: Any, now: Any, *, begins: bool = True) -> Any:
    """As huey's `execute` goes on with a task that it has found no reason not to run."""
    if begins:
        _log.info("Executing %s", task)
        huey._emit(signals.SIGNAL_EXECUTING, task)
    return huey._execute(task, now)
