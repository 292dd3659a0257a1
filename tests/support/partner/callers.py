"""
A process that calls the partner as fast as its own limiter admits: the situation without a limit for the fleet.

    python -m support.partner.callers URL botocore|aimd PROCESSES DECLARED

It has 4 threads. After a refusal, a thread waits for the time that the partner returns.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol

from support.partner.hidden import HiddenPartner

__all__ = ["READY", "THREADS"]

THREADS, READY = 4, "ready to call"


class Limits(Protocol):
    """A limiter of one process."""

    def before(self) -> None: ...

    def after(self, refused: bool) -> None: ...


class Adaptive:
    """botocore's adaptive mode, composed as its `register_retry_handler` does for a client."""

    def __init__(self) -> None:
        from botocore.retries import adaptive, bucket, throttling

        clock: Any = bucket.Clock()
        cubic: Any = throttling.CubicCalculator(starting_max_rate=0, start_time=clock.current_time())
        tokens: Any = bucket.TokenBucket(max_rate=1, clock=clock)
        self._limiter: Any = adaptive.ClientRateLimiter(
            rate_adjustor=cubic,
            rate_clocker=adaptive.RateClocker(clock),
            token_bucket=tokens,
            throttling_detector=self,
            clock=clock,
        )

    def is_throttling_error(self, *, refused: bool) -> bool:
        return refused

    def before(self) -> None:
        self._limiter.on_sending_request(None)

    def after(self, refused: bool) -> None:
        self._limiter.on_receiving_response(refused=refused)


class Aimd:
    """Halves the rate at each refusal, and adds a fiftieth of the process's part of the declared rate per second."""

    def __init__(self, most: float) -> None:
        self._most, self._rate, self._next = most, most, time.monotonic()
        self._at = self._next
        self._lock = threading.Lock()

    def before(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._rate = min(self._most, self._rate + self._most / 50 * (now - self._at))
            self._at = now
            call_at = max(self._next, now)
            self._next = call_at + 1 / self._rate
        time.sleep(max(0.0, call_at - now))

    def after(self, refused: bool) -> None:
        if refused:
            with self._lock:
                self._rate = max(self._most / 10, self._rate / 2)


def _call(partner: HiddenPartner, limits: Limits) -> None:
    while True:
        limits.before()
        answer, _ = partner.call()
        refused = answer.status_code == 429
        limits.after(refused)
        if refused:
            time.sleep(int(answer.headers["Retry-After-Ms"]) / 1000)


def main() -> None:
    url, kind, processes, declared = sys.argv[1:]
    limits: Limits = Adaptive() if kind == "botocore" else Aimd(float(declared) / int(processes))
    partner = HiddenPartner(url)
    print(READY, flush=True)
    while not partner.is_open():
        time.sleep(0.02)
    threads = [threading.Thread(target=_call, args=(partner, limits), daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    threads[0].join()


if __name__ == "__main__":
    main()
