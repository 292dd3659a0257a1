"""The flood: the jobs of a run, made from its seed and sent as fast as the broker takes them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from throttlekit_cli.demo.frameworks import DemoFramework
from throttlekit_cli.demo.plan import Plan

__all__ = ["Flood", "JobToSend", "jobs_of"]

_ACCOUNTS = 100


@dataclass(frozen=True, slots=True)
class JobToSend:
    """One job: its number, the account that it reads, and how long it works with the answer, in seconds."""

    job: int
    account: int
    work: float


def jobs_of(plan: Plan) -> list[JobToSend]:
    """The jobs of *plan*, in the order in which they are sent. The same plan gives the same jobs."""
    dice = random.Random(plan.seed)
    jobs = [
        JobToSend(number, dice.randint(1, _ACCOUNTS), round(plan.work * dice.uniform(0.4, 1.6), 4))
        for number in range(plan.jobs)
    ]
    dice.shuffle(jobs)
    return jobs


class Flood:
    """
    Sends jobs in a thread of its own, while the demo shows the run.

    Args:
        framework: The framework to send them to.
    """

    def __init__(self, framework: DemoFramework, jobs: list[JobToSend]) -> None:
        self.sent = 0
        self._framework = framework
        self._jobs: Iterator[JobToSend] = iter(jobs)
        self._error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, name="flood", daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error of the sending thread, if there was one."""
        if self._error:
            raise self._error

    def _send(self) -> None:
        try:
            for job in self._jobs:
                if self._over.is_set():
                    return
                self._framework.send(job.job, job.account, job.work)
                self.sent += 1
        except Exception as error:
            self._error = error
