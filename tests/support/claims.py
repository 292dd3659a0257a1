"""Claims for tests of `acquire`, which reads no names."""

from __future__ import annotations

from throttlekit._core.algorithm import Algorithm
from throttlekit._core.claim import StoreClaim

__all__ = ["claim_of"]


def claim_of(algorithm: Algorithm, spacing_us: int = 0, max_queue_us: int | None = None) -> StoreClaim:
    """A claim that is stored under names of no meaning."""
    return StoreClaim("bucket", "line", algorithm, spacing_us, max_queue_us)
