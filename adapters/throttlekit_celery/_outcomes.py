"""How a task ends that never ran: as failed or as dropped, by Celery's own means, in the worker's main process."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from throttlekit.adapter import Dropped, Failed
from throttlekit_celery._host import ExceptionInfo

__all__ = ["end_unrun"]

_log = logging.getLogger("throttlekit.celery")


def end_unrun(request: Any, outcome: Failed | Dropped) -> None:
    """
    End *request*: `Failed` as FAILURE, `Dropped` as REVOKED, as Celery ends a task that has expired.

    A failed task is ended as Celery ends one past its hard time limit: result, errbacks, chord, `on_failure`, signals,
    events; no retry. Late acknowledgement and its settings are honoured.
    """
    if isinstance(outcome, Dropped):
        request._announce_revoked(outcome.reason, False, None, False)
        return
    error = outcome.error
    info = _info_of(error)
    try:
        request.task.on_failure(error, request.id, request.args, request.kwargs, info)
    except Exception:
        _log.exception("on_failure of task %s failed.", request.task.name)
    request.on_failure(info, return_ok=False)
    if not request.acknowledged:
        request.acknowledge()


def _info_of(error: Exception) -> Any:
    """
    What Celery logs and stores of *error*, without frames: no body of a task has run, and ours would hide the message.
    Where a callable of the user's has failed, that is the cause, with its frames.
    """
    try:
        raise error.with_traceback(None)
    except Exception:
        info = ExceptionInfo()
    info.exception, info.tb = error.with_traceback(None), None
    info.traceback = "".join(traceback.format_exception(type(error), error, None))
    return info
