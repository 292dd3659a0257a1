"""
Workers that call a partner with a hidden limit, and the result by the partner's clock.

    found = happen(Partner(Hidden(), seconds=40), "Dramatiq", FloodLimit("partner", "100/s", 10, adapt="10/s"))

`happen` runs the plan, and returns pure figures. All times are seconds from the beginning.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from support.celery.flood import CeleryFlood
from support.faults.processes import Fleet
from support.flood.limits import FloodLimit
from support.flood.run import Flood
from support.partner.callers import READY
from support.partner.hidden import Call, Hidden, HiddenPartner, Rate
from support.rq.flood import OURS_SIMPLE, RqFlood
from support.servers.flood import servers
from support.servers.processes import redis_server
from support.waiting import wait_until

__all__ = ["CALLERS", "FRAMEWORKS", "Found", "Plan", "happen"]

WINDOW = 2.0
"""The seconds over which a rate is measured."""

_USED, _REFUSED = 0.85, 0.05
_WAITING = 300  # how many jobs are not done, at any time


FRAMEWORKS: Mapping[str, Callable[..., Flood]] = {
    "Dramatiq": partial(Flood, apart=True),
    "Celery": partial(CeleryFlood, pool="threads"),
    "RQ": lambda *, processes, threads, **given: RqFlood(kinds=(OURS_SIMPLE,) * processes, **given),
}
"""The frameworks that run jobs. A worker of RQ runs one job at a time."""

CALLERS = ("botocore", "aimd")
"""Processes without a framework; see `support.partner.callers`."""


class Plan(NamedTuple):
    """
    The plan of a run.

    Attributes:
        seconds: The duration, from the first job on.
        changes: When the true rate changes, and its new value.
        slow_s: From this number of seconds on, a body reports that the partner is overloaded. An answer that is this
        much
            later than possible is counted as late.
        tells: Whether bodies report an overload.
    """

    hidden: Hidden
    seconds: float
    changes: Sequence[tuple[float, float]] = ()
    slow_s: float = 3600.0
    tells: bool = True
    processes: int = 8
    threads: int = 4


@dataclass(frozen=True)
class Found:
    """
    The result of a run.

    Attributes:
        calls: All calls that arrived.
        rates: The true rate, and each change of it.
        late_s: An answer that was this much later than possible is an overload.
    """

    hidden: Hidden
    calls: Sequence[Call]
    rates: Sequence[Rate]
    seconds: float
    late_s: float

    @property
    def refused(self) -> float:
        """How many of 1 000 calls were refused or answered late."""
        return 1000 * sum(self._is_bad(call) for call in self.calls) / max(1, len(self.calls))

    @property
    def use(self) -> float:
        """The served part of the calls that the partner could have served."""
        return self._served(0, self.seconds) / self.could(0, self.seconds)

    def could(self, since: float, until: float) -> float:
        """Return how many calls the partner could have served."""
        ends = [*(self._at(rate.at_us) for rate in self.rates[1:]), self.seconds]
        spans = zip(self.rates, [0.0, *ends], ends, strict=False)
        return sum(rate.rate * max(0.0, min(until, end) - max(since, begin)) for rate, begin, end in spans)

    def settled(self, changed: float) -> float | None:
        """
        Return after how many seconds from a change a `WINDOW` begins in which the partner served 0.85 of the possible
        calls, and refused at most 5 % of the calls. None if there is none before the next change.
        """
        ends = [self._at(rate.at_us) for rate in self.rates if self._at(rate.at_us) > changed]
        until = min([*ends, self.seconds]) - WINDOW
        step, at = 0.1, changed
        while at <= until:
            calls = [call for call in self.calls if at < self._at(call.at_us) <= at + WINDOW]
            bad = sum(self._is_bad(call) for call in calls)
            if len(calls) - bad >= _USED * self.could(at, at + WINDOW) and bad <= _REFUSED * len(calls):
                return at - changed
            at += step
        return None

    def changes(self) -> list[float]:
        """Return the time of the beginning, and of each change of the true rate."""
        return [max(0.0, self._at(rate.at_us)) for rate in self.rates]

    def sent_each(self, seconds: float) -> list[float]:
        """Return the calls per second, in each interval of *seconds*."""
        times = [self._at(call.at_us) for call in self.calls]
        return [
            sum(n * seconds < at <= (n + 1) * seconds for at in times) / seconds
            for n in range(int(self.seconds / seconds))
        ]

    def rate_each(self, seconds: float) -> list[float]:
        """Return the true rate, in each interval of *seconds*."""
        return [self.could(n * seconds, (n + 1) * seconds) / seconds for n in range(int(self.seconds / seconds))]

    def _served(self, since: float, until: float) -> int:
        return sum(call.status == 200 and since < self._at(call.at_us) <= until for call in self.calls)

    def _is_bad(self, call: Call) -> bool:
        return call.status == 429 or call.late_us / 1e6 > self.late_s

    def _at(self, at_us: int) -> float:
        return (at_us - self.rates[0].at_us) / 1e6


def happen(plan: Plan, what: str, limit: FloodLimit) -> Found:
    """Run *plan* on new servers, with *what* of `FRAMEWORKS` or `CALLERS`, and leave nothing behind."""
    return _of_callers(plan, what, limit) if what in CALLERS else _of_framework(plan, what, limit)


def _of_framework(plan: Plan, what: str, limit: FloodLimit) -> Found:
    flood = FRAMEWORKS[what](
        limits=(limit,),
        jobs=0,
        processes=plan.processes,
        threads=plan.threads,
        give_up=600.0,
        slow_s=plan.slow_s if plan.tells else 3600.0,
    )
    with servers("redis") as where, flood.flooding(flood, where) as flooding:
        url = f"{where.redis_base}/2"
        flooding.start()
        with contextlib.closing(HiddenPartner(url)) as partner:
            partner.begin(plan.hidden)
            began, sent = time.monotonic(), 0
            for _ in _follow(plan, partner, began):
                while sent < partner.served() + _WAITING:
                    flooding.send("job", str(sent), "one")
                    sent += 1
            calls, rates = partner.log()
        flooding.kill()
    return Found(plan.hidden, _within(calls, rates, plan), rates, plan.seconds, plan.slow_s)


def _of_callers(plan: Plan, what: str, limit: FloodLimit) -> Found:
    with redis_server() as base, contextlib.closing(HiddenPartner(f"{base}/2")) as partner:
        arguments = [f"{base}/2", what, str(plan.processes), str(limit.made().amount)]
        command = [sys.executable, "-m", "support.partner.callers", *arguments]
        with Fleet([command] * plan.processes, {}) as fleet:
            wait_until(lambda: fleet.log().count(READY) >= plan.processes, description="the callers are ready")
            partner.begin(plan.hidden)
            for _ in _follow(plan, partner, time.monotonic()):
                pass
            calls, rates = partner.log()
    return Found(plan.hidden, _within(calls, rates, plan), rates, plan.seconds, plan.slow_s)


def _follow(plan: Plan, partner: HiddenPartner, began: float) -> Iterator[float]:
    """Change the true rate at its times. Yield the seconds until now repeatedly, until the end."""
    changes = deque(plan.changes)
    while (now := time.monotonic() - began) < plan.seconds:
        while changes and changes[0][0] <= now:
            partner.set_rate(changes.popleft()[1])
        yield now
        time.sleep(0.05)


def _within(calls: Sequence[Call], rates: Sequence[Rate], plan: Plan) -> list[Call]:
    until_us = rates[0].at_us + plan.seconds * 1e6
    return [call for call in calls if call.at_us <= until_us]
