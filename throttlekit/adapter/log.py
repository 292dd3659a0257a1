"""Show throttlekit's log lines in workers of frameworks that configure only their own logger."""

from __future__ import annotations

import logging

__all__ = ["show_log"]


def show_log(worker: str) -> None:
    """
    Send throttlekit's log lines to the handlers of the framework's logger *worker*, at its level.

    Does nothing if the logger `throttlekit` or the root logger has a handler, or if *worker* has none.
    """
    log, theirs = logging.getLogger("throttlekit"), logging.getLogger(worker)
    if log.hasHandlers():
        return
    for handler in theirs.handlers:
        log.addHandler(handler)
    if theirs.handlers and log.level == logging.NOTSET:
        log.setLevel(theirs.getEffectiveLevel())
