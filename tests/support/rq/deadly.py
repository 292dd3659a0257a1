"""
A settings module with which one process dies at the point that $TK_DEADLY names.

"asking": a process dies after its request was denied, before it requeues the job. "denied": it dies after it has
requeued the job, before it reports that it is done. "popped": the worker dies after it has taken a job, before its
request.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import redis

import throttlekit_rq._worker
from throttlekit import Decision, Limiter
from throttlekit_rq import configure

_WHEN, _STORE = os.environ["TK_DEADLY"], os.environ["TK_STORE"]


def _die() -> None:
    with redis.Redis.from_url(_STORE) as client:
        first = client.set("died", 1, nx=True)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)


class _Deadly(Limiter):
    def acquire(self, *limits: Any, **options: Any) -> Decision:
        decision = super().acquire(*limits, **options)
        if not decision.allowed and _WHEN == "asking":
            _die()
        return decision


def _exit(code: int) -> None:
    """Exit as a work-horse does, but die before."""
    _die()
    _original_exit(code)


def _options_of(*args: Any) -> Any:
    _die()
    return _original_options_of(*args)


_original_options_of = throttlekit_rq._worker.options_of
if _WHEN == "popped":
    throttlekit_rq._worker.options_of = _options_of
_original_exit = os._exit
if _WHEN == "denied":
    os._exit = _exit  # type: ignore[assignment]
configure(_Deadly(_STORE))
