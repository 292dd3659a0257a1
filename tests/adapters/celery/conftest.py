"""Fixtures that the tests of Celery's worker share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from throttlekit_celery._host import worker_state


@pytest.fixture
def reserved() -> Iterator[Any]:
    """The process's own set of reserved requests in Celery, emptied for the test."""
    known: Any = worker_state().reserved_requests
    before = list(known)
    known.clear()
    yield known
    known.clear()
    known.update(before)
