"""Show throttlekit's log lines in workers: denials are logged at INFO, and Celery's default level is WARNING."""

from __future__ import annotations

import logging
from typing import Any

from throttlekit_celery._host import signals

__all__ = ["show_log"]


def show_log() -> None:
    """Make workers show throttlekit's INFO lines, unless the user has set Celery's log level or throttlekit's."""
    signals.after_setup_logger.connect(_show, weak=False, dispatch_uid="throttlekit.log")


def _show(loglevel: Any = None, **_: Any) -> None:
    log = logging.getLogger("throttlekit")
    if loglevel == logging.WARNING and log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
