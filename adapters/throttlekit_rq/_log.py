"""Show throttlekit's log lines in workers: RQ configures only the logger `rq.worker`."""

from __future__ import annotations

import logging

__all__ = ["show_log"]


def show_log() -> None:
    """
    Have this process write throttlekit's log lines where RQ's worker writes its own, at the same level.

    Does nothing if the logger `throttlekit` or the root logger has a handler, or if no worker of RQ has set up its log.
    """
    log, worker = logging.getLogger("throttlekit"), logging.getLogger("rq.worker")
    if log.hasHandlers():
        return
    for handler in worker.handlers:
        log.addHandler(handler)
    if worker.handlers and log.level == logging.NOTSET:
        log.setLevel(worker.getEffectiveLevel())
