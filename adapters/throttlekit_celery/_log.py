"""Show throttlekit's log lines in workers. By default, Celery shows WARNING and above; a limit that denies is INFO."""

from __future__ import annotations

import logging
from typing import Any

from throttlekit_celery._host import signals

__all__ = ["show_log"]


def show_log() -> None:
    """Let workers show what limits do, at INFO, if neither Celery's level nor throttlekit's was set by the user."""
    signals.after_setup_logger.connect(_show, weak=False, dispatch_uid="throttlekit.log")


def _show(loglevel: Any = None, **_: Any) -> None:
    log = logging.getLogger("throttlekit")
    if loglevel == logging.WARNING and log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
