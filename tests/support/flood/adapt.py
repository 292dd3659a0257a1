"""
Workers that call a partner with a hidden limit, and what came of it, by the partner's clock.

    found = happen(Partner(Hidden(), seconds=40), "Dramatiq", FloodLimit("partner", "100/s", 10, adapt="10/s"))

`happen` lets it happen; what it returns is pure figures. All times are seconds from the beginning.
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
from support.flood.run import Flood, FloodApart
from support.partner.callers import READY
from support.partner.hidden import Call, Hidden, HiddenPartner, Rate
from support.rq.flood import OURS_SIMPLE, RqFlood
from support.servers.flood import servers
from support.servers.processes import redis_server
from support.waiting import wait_until

__all__ = ["CALLERS", "FRAMEWORKS", "Found", "Plan", "happen"]

WINDOW = 2.0
"""Seconds over which a rate is taken."""

_USED, _REFUSED = 0.85, 0.05
_WAITING = 300  # so many jobs are not done, at any time


FRAMEWORKS: Mapping[str, Callable[..., Flood]] = {
    "Dramatiq": FloodApart,
    "Celery": partial(CeleryFlood, pool="threads"),
    "RQ": lambda *, processes, threads, **given: RqFlood(kinds=(OURS_SIMPLE,) * processes, **given),
}
"""What runs jobs. A worker of RQ runs one job at a time."""

CALLERS = ("botocore", "aimd")
"""Processes without a framework; see `support.partner.callers`."""


class Plan(NamedTuple):
    """
    What is to happen.

    Attributes:
        seconds: How long, from the first job on.
        changes: When the true rate changes, and to what.
        slow_s: The seconds of an answer from which on a body says that the partner is overloaded; and an answer that
            comes so much later than it had to is counted as late.
        tells: Whether bodies say it.
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
    What happened.

    Attributes:
        calls: All that arrived.
        rates: The true rate, and each change of it.
        late_s: An answer that came so much later than it had to was an overload.
    """

    hidden: Hidden
    calls: Sequence[Call]
    rates: Sequence[Rate]
    seconds: float
    late_s: float

    @property
    def refused(self) -> float:
        """Of 1 000 calls: those that were refused, or that were answered late."""
        return 1000 * sum(self._is_bad(call) for call in self.calls) / max(1, len(self.calls))

    @property
    def use(self) -> float:
        """The share of what the partner could have served that it served."""
        return self._served(0, self.seconds) / self.could(0, self.seconds)

    def could(self, since: float, until: float) -> float:
        """What the partner could have served."""
        ends = [*(self._at(rate.at_us) for rate in self.rates[1:]), self.seconds]
        spans = zip(self.rates, [0.0, *ends], ends, strict=False)
        return sum(rate.rate * max(0.0, min(until, end) - max(since, begin)) for rate, begin, end in spans)

    def settled(self, changed: float) -> float | None:
        """
        Seconds from a change until `WINDOW` begins in which the partner served 0.85 of what it could, and refused at
        most 5 % of the calls. None: never, before the next change.
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
        """When it began, and each change of the true rate."""
        return [max(0.0, self._at(rate.at_us)) for rate in self.rates]

    def sent_each(self, seconds: float) -> list[float]:
        """Calls a second, in each so many seconds."""
        times = [self._at(call.at_us) for call in self.calls]
        return [
            sum(n * seconds < at <= (n + 1) * seconds for at in times) / seconds
            for n in range(int(self.seconds / seconds))
        ]

    def rate_each(self, seconds: float) -> list[float]:
        """The true rate, in each so many seconds."""
        return [self.could(n * seconds, (n + 1) * seconds) / seconds for n in range(int(self.seconds / seconds))]

    def _served(self, since: float, until: float) -> int:
        return sum(call.status == 200 and since < self._at(call.at_us) <= until for call in self.calls)

    def _is_bad(self, call: Call) -> bool:
        return call.status == 429 or call.late_us / 1e6 > self.late_s

    def _at(self, at_us: int) -> float:
        return (at_us - self.rates[0].at_us) / 1e6


def happen(plan: Plan, what: str, limit: FloodLimit) -> Found:
    """Let *plan* happen on fresh servers, with *what* of `FRAMEWORKS` or `CALLERS`; nothing of it is left."""
    return _of_callers(plan, what, limit) if what in CALLERS else _of_framework(plan, what, limit)


def _of_framework(plan: Plan, what: str, limit: FloodLimit) -> Found:
    flood = FRAMEWORKS[what](
        limits=(limit,), jobs=0, processes=plan.processes, threads=plan.threads, give_up=600.0,
        slow_s=plan.slow_s if plan.tells else 3600.0,
    )  # fmt: skip
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
    """Change the true rate when it is due; the seconds so far, again and again until the end."""
    changes = deque(plan.changes)
    while (now := time.monotonic() - began) < plan.seconds:
        while changes and changes[0][0] <= now:
            partner.set_rate(changes.popleft()[1])
        yield now
        time.sleep(0.05)


def _within(calls: Sequence[Call], rates: Sequence[Rate], plan: Plan) -> list[Call]:
    until_us = rates[0].at_us + plan.seconds * 1e6
    return [call for call in calls if call.at_us <= until_us]
