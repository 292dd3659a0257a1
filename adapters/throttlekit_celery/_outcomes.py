"""How a task ends that never ran: failed or dropped, by Celery's own means, in the worker's main process."""

from __future__ import annotations

import logging
from typing import Any

from throttlekit_celery._host import ExceptionInfo

__all__ = ["drop", "fail"]

_log = logging.getLogger("throttlekit.celery")


def fail(request: Any, error: Exception) -> None:
    """
    End *request* as failed with *error*: result, errbacks, chord, `on_failure`, signals, events; no retry.

    As Celery ends a task that exceeds its hard time limit. Late acknowledgement and its settings are honoured.
    """
    try:
        raise error
    except Exception:
        told = ExceptionInfo()
    try:
        request.task.on_failure(error, request.id, request.args, request.kwargs, told)
    except Exception:
        _log.exception("on_failure of task %s failed.", request.task.name)
    request.on_failure(told, return_ok=False)
    if not request.acknowledged:
        request.acknowledge()


def drop(request: Any, reason: str) -> None:
    """End *request* unrun as REVOKED, as Celery ends one that has expired: a waiting reader is told."""
    request._announce_revoked(reason, False, None, False)
