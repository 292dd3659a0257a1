"""The marks of modules that use Celery's client in this process."""

from __future__ import annotations

import pytest

__all__ = ["QUIET"]

# Celery's client leaves sockets for the garbage collector to close.
QUIET = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
