"""Claims for tests of decisions, which do not read the names of keys."""

from __future__ import annotations

from throttlekit._core.algorithm import Algorithm
from throttlekit._core.claim import UNIT, StoreClaim

__all__ = ["claim_of"]


def claim_of(
    algorithm: Algorithm,
    cost: int = 1,
    max_queue: int | None = None,
    tenant: str = "",
    step: int | None = None,
    lead: int = 0,
    *,
    weight: int = 1,
    bucket: str = "bucket",
) -> StoreClaim:
    """Return a claim with an arbitrary key. The default of *step* is *cost* / *weight*, or 0 without a tenant."""
    if step is None:
        step = -(-cost * UNIT // weight) if tenant else 0
    return StoreClaim(bucket, algorithm, cost, max_queue, tenant, step, lead)
