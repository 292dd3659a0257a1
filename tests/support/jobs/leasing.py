"""
A process that prefetches units, and writes each decision to a file.

    python -m support.jobs.leasing URL RATE BURST TOKENS FOR COUNT BURSTS FILE end|hang

After COUNT decisions, it ends or hangs until it is killed.
Each line has the time of the charge by the server's clock, and this machine's time before the request, in µs.
"""

from __future__ import annotations

import os
import sys
import time

from throttlekit import Limiter, TokenBucket


def main(
    url: str, rate: str, burst: str, tokens: str, prefetch_for_s: str, count: str, at_once: str, path: str, then: str
) -> None:
    limit = TokenBucket("api", rate, burst=int(burst), prefetch=int(tokens), prefetch_for=float(prefetch_for_s))
    limiter = Limiter(f"{url}?socket_timeout=5&socket_connect_timeout=5")
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    decided = 0
    while decided < int(count):
        before_us = time.time_ns() // 1000
        decision = limiter.acquire(limit)
        if not decision.allowed:
            time.sleep(min(decision.delay, 0.01))
            continue
        os.write(out, b"%d %d\n" % (decision.charged[0].at_us, before_us))
        decided += 1
        if decided % int(at_once) == 0:
            time.sleep(0.05)
    while then == "hang":  # with its prefetched units, until it is killed
        time.sleep(1)
    limiter.close()
    os.close(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
