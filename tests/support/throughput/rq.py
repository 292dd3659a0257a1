"""The settings of the `rq worker` of `support.throughput.run`, where there is throttlekit."""

from __future__ import annotations

import support.throughput.run as throughput
from throttlekit import Limiter
from throttlekit_rq import configure

configure(Limiter(throughput.settings()["store"]))
