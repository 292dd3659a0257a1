"""The body of every job of the demo, on any framework: one call to the partner, and some work with the answer."""

from __future__ import annotations

import http.client
import time

from throttlekit import hookimpl
from throttlekit.hookspecs import Deferred
from throttlekit_cli.demo.ledger import Ledger, Run

__all__ = ["CountDeferrals", "TooManyRequests", "run_body"]


class TooManyRequests(Exception):
    """The partner answered 429."""


class CountDeferrals:
    """A plugin of the limiter that writes every deferral into the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @hookimpl
    def throttlekit_deferred(self, event: Deferred) -> None:
        self._ledger.deferred(event.job.id)


def run_body(port: int, ledger: Ledger, job: int, account: int, work: float, sent_at: float) -> None:
    """
    Call the partner on *port*, and record the result.

    Raises:
        TooManyRequests: The partner answered 429.
    """
    ledger.run_began()
    run = Run(job=job, sent_at=sent_at, began_at=time.time(), status=0)
    try:
        run = run.answered(_call(port, account))
        if run.status == 200:
            time.sleep(work)  # the job's work with the answer
    finally:
        ledger.run_ended(run)
    if run.status == 429:
        raise TooManyRequests


def _call(port: int, account: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", f"/accounts/{account}")
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()
