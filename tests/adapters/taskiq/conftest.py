"""A limiter in memory, for brokers that a test runs in its own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from throttlekit import Limiter


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    with Limiter("memory://") as limiter:
        yield limiter
