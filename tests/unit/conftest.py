"""A store in memory whose time the test sets, and its limiter. Files that need another store replace these fixtures."""

from __future__ import annotations

import pytest

from throttlekit import Limiter
from throttlekit.stores import MemoryStore
from throttlekit.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock_us=clock)


@pytest.fixture
def limiter(store: MemoryStore) -> Limiter:
    return Limiter(store)
