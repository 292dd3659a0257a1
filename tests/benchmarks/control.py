"""
How long a fleet takes to follow live control: a flood on Dramatiq and RQ at once, under one limit of 40/s.

    python tests/benchmarks/control.py [--quick] [--jobs 200]

Two worker processes of each framework. Prints for each command when it took effect, from the instant at which it had
returned: the last start of a job after `pause`; the first after `resume`; after `set` the beginning of the last second
with more starts than the new rate allows; and, 2 seconds after `shadow`, the start of the last of 120 new jobs, which
the limit would have spread over 12 seconds. Exit code 1 if a job was lost or run twice, or a worker followed later than
2 seconds and what it takes to start a job.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.dramatiq.workers import workers
from support.reports.command import parser_of
from support.rq.workers import Fleet, rq_worker
from support.servers.processes import redis_server
from support.waiting import wait_until

FRAMEWORKS = ("dramatiq", "rq")
FOLLOW = 2.0
SLACK = 1.0  # what the machine may take to start a job that was let pass before


class Flood:
    """Both queues, and what was started when."""

    def __init__(self, jobs: Any) -> None:
        import redis
        from rq import Queue

        from throttlekit_rq import ThrottledQueue

        self._jobs = jobs
        self._starts = redis.Redis.from_url(jobs.STARTS)
        self._rq = redis.Redis.from_url(jobs.RQ)
        self._queue: Queue = ThrottledQueue("default", connection=self._rq)
        self.sent = 0

    def send(self, each: int) -> set[int]:
        """So many jobs to each framework, in turn. Returns what they are called."""
        begin = self.sent
        for _ in range(each):
            self._jobs.call.send(self.sent)
            self._queue.enqueue("support.jobs.control.call_rq", self.sent + 1, throttle=[self._jobs.LIMIT])
            self.sent += 2
        return set(range(begin, self.sent))

    def starts(self) -> list[tuple[float, str, int]]:
        kept = map(json.loads, self._starts.lrange("starts", 0, -1))
        return sorted((at, framework, index) for at, framework, index in kept)

    def last(self, framework: str) -> float:
        return max((at for at, of, _ in self.starts() if of == framework), default=0.0)

    def first_after(self, framework: str, instant: float) -> float:
        return min((at for at, of, _ in self.starts() if of == framework and at > instant), default=0.0)

    def close(self) -> None:
        self._starts.close()
        self._rq.close()
        self._jobs.call.broker.close()
        self._jobs._limiter.close()


@contextlib.contextmanager
def running() -> Iterator[Any]:
    """Both fleets, at work; yields the jobs' module."""
    with redis_server() as base:
        environment = {"TK_CONTROL": base}
        os.environ.update(environment)
        from support.jobs import control as jobs

        rq = [
            rq_worker(
                jobs.RQ, "default", kind="throttlekit_rq.ThrottledSimpleWorker", options=["-c", "support.jobs.control"]
            )
            for _ in range(2)
        ]
        with (
            workers("support.jobs.control", environment, processes=2, threads=4) as dramatiq,
            Fleet(rq, environment) as fleet,
        ):
            wait_until(
                lambda: fleet.log().count("*** Listening on") >= 2 and dramatiq.log().count("is ready for action") >= 2,
                description="the workers are ready",
            )
            yield jobs


def quiet(flood: Flood, duration: float) -> None:
    wait_until(
        lambda: time.time() - max(map(flood.last, FRAMEWORKS)) > duration,
        description="nothing starts any more",
        every=0.1,
    )


def paused(control: Any, flood: Flood, tell: Any) -> list[float]:
    """Pause and resume once."""
    before = {framework: flood.last(framework) for framework in FRAMEWORKS}
    # On a fast machine all that have been sent may have run.
    wait_until(
        lambda: flood.send(1) and all(flood.last(of) > before[of] for of in FRAMEWORKS),
        description="both are at work",
        every=0.1,
    )
    control.pause("partner")
    told = time.time()
    quiet(flood, FOLLOW)
    effects = [max(0.0, flood.last(framework) - told) for framework in FRAMEWORKS]
    tell("pause: the last job starts", effects)
    control.resume("partner")
    told = time.time()
    flood.send(1)  # on a fast machine all others may have run
    wait_until(lambda: all(flood.first_after(of, told) for of in FRAMEWORKS), description="both go on", every=0.05)
    tell("resume: the first job starts", [flood.first_after(framework, told) - told for framework in FRAMEWORKS])
    return effects


def changed(control: Any, flood: Flood, tell: Any) -> list[float]:
    """Set a lower rate, then put it into shadow mode."""
    control.set("partner", "10/s", burst=1)
    told = time.time()
    time.sleep(5)
    late = [at for at, _, _ in flood.starts() if at > told]
    over = [at for at in late if sum(at < other <= at + 1 for other in late) > 12]
    effects = [max(over, default=told) - told]
    tell("set 10/s: the last second with more begins", effects)
    control.shadow("partner")
    time.sleep(FOLLOW)  # who asks before is denied as ever, and comes back at its slot
    told = time.time()
    fresh = flood.send(60)
    wait_until(
        lambda: fresh <= {index for _, _, index in flood.starts()}, description="all new jobs have run", every=0.1
    )
    ran = [at for at, _, index in flood.starts() if index in fresh]
    tell(f"shadow, {FOLLOW:g} s later: the last of {len(fresh)} new jobs starts", [max(ran) - told])
    control.enforce("partner")
    control.unset("partner")
    return effects


def main() -> int:
    parser = parser_of(__doc__, quick="pause and resume, once, and judge no times")
    parser.add_argument("--jobs", type=int, default=200, help="how many to each framework")
    chosen = parser.parse_args()

    def tell(what: str, seconds: list[float]) -> None:
        print(f"| {what} | {' | '.join(f'{each:.2f}' for each in seconds)} |", flush=True)

    with running() as jobs, contextlib.closing(Flood(jobs)) as flood:
        from throttlekit import Control

        with Control(jobs.STORE, by="benchmark") as control:
            print(f"| seconds after the command had returned | {' | '.join(FRAMEWORKS)} |")
            print("|---|---|---|")
            flood.send(40 if chosen.quick else chosen.jobs)
            effects = paused(control, flood, tell)
            if not chosen.quick:
                effects += changed(control, flood, tell)
            all_ran = lambda: len({index for _, _, index in flood.starts()}) == flood.sent  # noqa: E731
            wait_until(all_ran, description="all have run", timeout=180)
            print(f"history: {', '.join(change.verb for change in reversed(control.history()))}")
        ran = [index for _, _, index in flood.starts()]
        doubled = len(ran) - len(set(ran))
        lost = flood.sent - len(set(ran))
        print(f"| control | {flood.sent} jobs, {lost} lost, {doubled} run twice | latest {max(effects):.2f} s |")
        return int(doubled > 0 or (max(effects) > FOLLOW + SLACK and not chosen.quick))


if __name__ == "__main__":
    sys.exit(main())
