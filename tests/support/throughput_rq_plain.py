"""The settings of the `rq worker` of `support.throughput` without throttlekit: it loads the jobs, as the other does."""

from __future__ import annotations

import support.throughput as throughput

__all__ = ["throughput"]
