"""What tests of Celery's worker share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from throttlekit_celery._host import worker_state


@pytest.fixture
def reserved() -> Iterator[Any]:
    """What Celery counts as reserved is the process's own."""
    known: Any = worker_state().reserved_requests
    before = list(known)
    known.clear()
    yield known
    known.clear()
    known.update(before)
