"""Promises about declarations of limits: with a job, with a message, and invalid ones."""

# ruff: noqa: S101 - these are tests, shipped

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from throttlekit._core.algorithms.token_bucket import TokenBucket
from throttlekit.errors import ConfigurationError
from throttlekit.testing.adapter_bench import CLOCKS, OnSite
from throttlekit.testing.adapter_site import COUNT, RATE, End

__all__ = ["DeclarationConformance"]

_BY_MESSAGE = TokenBucket("conformance-message", "1/s", burst=1, key="{key}")
_WRONG: dict[str, dict[str, Any]] = {
    "not a limit": {"throttle": "100/minute"},
    "one limit twice": {"throttle": [RATE, RATE]},
    "a key that is no argument": {"throttle": TokenBucket("conformance-wrong", "1/s", key="{account}")},
    "a 429 for a limit that is not named": {"throttle": RATE, "throttle_on_429": COUNT},
}


class DeclarationConformance(OnSite):
    def test_wrong_declarations_fail_where_they_are_written(self) -> None:
        """Options that can never work raise `ConfigurationError` when the job is declared."""
        with self.bench() as bench:
            for what, options in _WRONG.items():
                assert _raises(partial(bench.site.declare, **options)), what

    def test_limits_by_message(self) -> None:
        """Limits that are sent with a message apply to that message."""
        with self.bench() as bench:
            taken_at = time.time()
            assert bench.site.limiter.acquire(_BY_MESSAGE, key=bench.key).allowed
            sent = bench.send("free", throttle=[_BY_MESSAGE])
            assert bench.end(sent) == End("succeeded", sent.name)
            assert bench.begun(sent).at >= taken_at + 1.0 - CLOCKS

    def test_wrong_message_options_fail_where_they_are_written(self) -> None:
        """Options that can never work raise `ConfigurationError` when the message is sent."""
        with self.bench() as bench:
            for options in ({"throttle": "100/minute"}, {"throttle": [RATE], "throttle_on_429": COUNT.name}):
                assert _raises(partial(bench.send, "free", **options)), options

    def test_a_limit_that_cannot_be_worked_out_fails_the_job(self) -> None:
        """If the key function raises, the job fails with `ConfigurationError`: no run, no charge."""
        with self.bench() as bench:
            sent = bench.send("faulty")
            assert bench.end(sent).error == "ConfigurationError"
            assert (bench.runs(sent), bench.remaining(COUNT)) == (0, COUNT.burst)


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except ConfigurationError:
        return True
    return False
