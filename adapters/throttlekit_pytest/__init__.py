"""
Fixtures for pytest, which finds them without configuration if throttlekit is installed.

throttlekit is imported only when a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import throttlekit.testing

__all__ = ["throttlekit_clock", "throttlekit_limiter"]


@pytest.fixture
def throttlekit_clock() -> throttlekit.testing.FakeClock:
    """Return the clock of `throttlekit_limiter`, whose time changes only when a test calls `advance(seconds)`."""
    from throttlekit.testing import FakeClock

    return FakeClock()


@pytest.fixture
def throttlekit_limiter(throttlekit_clock: throttlekit.testing.FakeClock) -> Iterator[throttlekit.Limiter]:
    """Yield a new limiter in memory, which uses the time of `throttlekit_clock`."""
    from throttlekit import Limiter
    from throttlekit.stores import MemoryStore

    limiter = Limiter(MemoryStore(clock_us=throttlekit_clock))
    yield limiter
    limiter.close()
