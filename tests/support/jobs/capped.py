# pyright: reportPrivateUsage=false
"""Jobs of two frameworks as in `support.jobs.control`, whose delays are capped at 2 seconds in place of 10 minutes."""

from __future__ import annotations

from throttlekit_dramatiq import _options
from throttlekit_rq import _admission

__all__ = ["CAP", "call", "call_rq"]

CAP = 2.0

_options._LONGEST_DELAY = CAP
object.__setattr__(_admission.BY_WORKER.delivery, "longest", CAP)

from support.jobs.control import call, call_rq  # noqa: E402
