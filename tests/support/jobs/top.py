"""The jobs of the workers in the capture of `top`: actors for Dramatiq, and a function and settings for RQ."""

from __future__ import annotations

import os
import time

import dramatiq

from support.dramatiq.workers import make_broker
from throttlekit import Concurrency, Limiter, TokenBucket
from throttlekit_dramatiq import Throttle
from throttlekit_rq import configure

__all__ = ["ACCOUNT", "PARTNER", "REPORTS", "call", "partner", "report"]

PARTNER = TokenBucket("partner-api", "20/s", burst=20)
ACCOUNT = TokenBucket("partner-api:account", "4/s", burst=4, key="{account}")
REPORTS = Concurrency("reports-db", 3, lease=10)

limiter = Limiter(os.environ["TK_TOP_STORE"])
broker = make_broker(os.environ["TK_TOP_BROKER"])
broker.add_middleware(Throttle(limiter))
dramatiq.set_broker(broker)
configure(limiter)


@dramatiq.actor(throttle=[ACCOUNT, PARTNER])
def partner(account: str) -> None:
    time.sleep(0.02)


@dramatiq.actor(throttle=[REPORTS])
def report() -> None:
    time.sleep(0.4)


def call(account: str) -> None:
    """Call the same partner, from RQ."""
    time.sleep(0.02)
