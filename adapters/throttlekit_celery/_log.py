"""Show throttlekit's log lines in workers: Celery shows WARNING and above by default, and a waiting limit is INFO."""

from __future__ import annotations

import logging
from typing import Any

from throttlekit_celery._host import signals

__all__ = ["show_log"]


def show_log() -> None:
    """Have each worker log at INFO what limits do, where Celery's own level is the default and ours is not set."""
    signals.after_setup_logger.connect(_show, weak=False, dispatch_uid="throttlekit.log")


def _show(loglevel: Any = None, **_: Any) -> None:
    log = logging.getLogger("throttlekit")
    if loglevel == logging.WARNING and log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
