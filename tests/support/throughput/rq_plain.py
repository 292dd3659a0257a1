"""The settings of the plain `rq worker` of `support.throughput.run`: it loads the jobs, as the other does."""

from __future__ import annotations

import support.throughput.run as throughput

__all__ = ["throughput"]
