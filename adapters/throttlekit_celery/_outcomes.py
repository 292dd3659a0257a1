"""End a task whose body never ran, as failed or as dropped, with Celery's own functions, in the main process."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from throttlekit.adapter import Dropped, Failed
from throttlekit_celery._host import ExceptionInfo

__all__ = ["end_without_body"]

_log = logging.getLogger("throttlekit.celery")


def end_without_body(request: Any, outcome: Failed | Dropped) -> None:
    """
    End *request*: `Failed` as FAILURE, and `Dropped` as REVOKED, like a task that has expired.

    A failed task ends like one that exceeds its hard time limit: with result, errbacks, chord, `on_failure`, signals
    and events, and without a retry. Late acknowledgement and its settings are respected.
    """
    if isinstance(outcome, Dropped):
        request._announce_revoked(outcome.reason, False, None, False)
        return
    error = outcome.error
    info = _info_of(error)
    request.on_failure(info, return_ok=False)
    if not request.acknowledged:
        request.acknowledge()
    try:
        request.task.on_failure(error, request.id, request.args, request.kwargs, info)
    except Exception:
        _log.exception("on_failure of task %s failed.", request.task.name)


def _info_of(error: Exception) -> Any:
    """
    Return the exception information that Celery logs and stores for *error*. It has no frames, because no user code of
    the task has run, and frames of throttlekit would hide the message. If a user's callable raised an error, this error
    is the cause, with its frames.
    """
    try:
        raise error.with_traceback(None)
    except Exception:
        info = ExceptionInfo()
    info.exception, info.tb = error.with_traceback(None), None
    info.traceback = "".join(traceback.format_exception(type(error), error, None))
    return info
