"""Slots and 429s on real workers of a framework as rows of tables: a backlog, a kill, and an angry partner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from support.flood.slot_record import Happened
from support.reports.command import show
from support.servers.flood import Servers
from support.waiting import wait_until

__all__ = ["Row", "Scenario", "measure_429", "measure_backlog", "measure_kill", "report", "send_calls"]

PAUSE = 10
"""The Retry-After of the angry partner, in seconds."""


@dataclass
class Row:
    """
    One line of a table.

    Attributes:
        judged: Whether a figure that is not good is a fault.
    """

    name: str
    judged: bool = True
    figures: dict[str, str] = field(default_factory=dict[str, str])
    faults: list[str] = field(default_factory=list[str])

    def tell(self, what: str, figure: object, *, good: bool = True) -> None:
        self.figures[what] = str(figure)
        if self.judged and not good:
            self.faults.append(f"{self.name}: {what} {figure}")


@dataclass(frozen=True)
class Scenario:
    """A row of the table with this title."""

    title: str
    name: str
    run: Callable[[Servers, Row], None]
    judged: bool = True


def report(brokers: Iterable[Servers], scenarios: Sequence[Scenario], only: str) -> int:
    """Run the scenarios whose name has *only*, print a table for each title, and return the exit code."""
    faults = list[str]()
    tables: dict[str, list[Row]] = {}
    for where in brokers:
        for scenario in scenarios:
            row = Row(f"{where.kind}, {scenario.name}", scenario.judged)
            if only not in f"{scenario.title}, {row.name}":
                continue
            try:
                scenario.run(where, row)
            except AssertionError as error:
                row.tell("gave up", error, good=False)
            print(f"{row.name}: {row.figures}", flush=True)
            tables.setdefault(scenario.title, []).append(row)
            faults += row.faults
    shown: list[Table] = []
    for title, rows in tables.items():
        columns = list(dict.fromkeys(what for row in rows for what in row.figures))
        shown.append(Table("", *columns, title=title))
        for row in rows:
            shown[-1].add_row(row.name, *(row.figures.get(what, "-") for what in columns))
    return show(shown, faults, width=180)


def measure_backlog(
    row: Row, place: Any, bodies: Sequence[float], *, least_use: float = 0.0, most_deliveries: float = 1e9
) -> None:
    """
    Measure jobs whose bodies take *bodies* seconds. All were sent, and the workers are ready.

    Use is the sum of the bodies' times, as a share of the limit × the time from the first start to the last end.
    Deliveries are how often a job was taken from its queue.
    """
    jobs, amount = len(bodies), place.slots.amount
    place.until_ended(jobs, timeout=60 + 5 * sum(bodies) / amount)
    held: Happened = place.stop()
    most, use, lost = held.most_at_once(), sum(bodies) / (amount * held.span()), jobs - len(held.ends)
    deliveries, failed = held.counts["deliveries"] / jobs, len(held.failures) + held.counts.get("failures", 0)
    row.tell("most at once", f"{most} of {amount}", good=most <= amount)
    row.tell("use", f"{use:.3f}", good=use >= least_use)
    row.tell("deliveries a job", f"{deliveries:.2f}", good=deliveries <= most_deliveries)
    if "operations" in held.counts:
        row.tell("operations a job", f"{held.counts['operations'] / jobs:.1f}")
    row.tell("seen as failures", failed, good=not failed)
    row.tell("lost", lost, good=not lost and not held.left)
    twice = sum(held.starts.values()) - len(held.starts)
    row.tell("begun twice", twice, good=not twice)


def measure_kill(row: Row, place: Any, doomed: Callable[[], Any], others: Callable[[], Any]) -> None:
    """
    Kill workers that hold four of eight slots of a busy key, and measure when the others have all eight.

    Args:
        doomed, others: Start workers for four bodies, and for twelve.
    """
    lease = place.slots.lease
    for n in range(4):
        place.work(f"doomed-{n}", 600)
    victims = doomed()
    wait_until(lambda: len(place.events()) == 4, description="the workers hold four slots")
    processes = [event.more for event in place.events()]
    for n in range(400):
        place.work(n, 0.2)
    others()
    wait_until(lambda: len(place.events()) > 100, description="the key is busy")
    victims.kill()
    killed_us = place.now_us()
    until_us = killed_us + round((lease + 5) * 1_000_000)
    if row.judged:  # others may lose the slots permanently, and would never end
        place.until_ended(400, timeout=300)
    wait_until(lambda: place.now_us() > until_us, description="the key was observed for long enough")
    # Jobs of the killed workers may be redelivered and hold slots: they count like any other.
    held = Happened(place.events(), {}, 0, "", [])
    times, at_once = held.at_once(dict.fromkeys(processes, killed_us))
    full = next((at for at, count in zip(times, at_once, strict=True) if at > killed_us and count >= 8), None)
    after = "never" if full is None else f"{(full - killed_us) / 1e6:.1f} s"
    row.tell("most at once", max(at_once), good=max(at_once) <= 8)
    row.tell(
        f"all 8 in use again after, lease {lease:g} s",
        after,
        good=full is not None and full - killed_us <= (lease + 1) * 1e6,
    )


def measure_429(row: Row, place: Any, jobs: int, *, rate: int, threads: int, beyond: float) -> None:
    """
    Measure jobs of the key "one" whose partner answers 429 from a call on, in a full flood. All were sent, and half as
    many have the key "other".

    Args:
        threads: How many bodies the workers run at once, which may each make another call.
        beyond: By how many calls the rate may be exceeded after the pause.
    """
    place.until_ended(jobs + jobs // 2, timeout=300)
    one, other = place.partner.record_of("one"), place.partner.record_of("other")
    held: Happened = place.stop()
    first_us = one.refused[0].at_us
    over_us = first_us + PAUSE * 1_000_000
    running, further = one.running_at(first_us), one.between(first_us, over_us)
    last = max([(call.at_us - first_us) / 1000 for call in further], default=0.0)
    after = [(call.at_us - over_us) / 1e6 for call in one.calls if call.at_us > over_us]
    most_beyond = max(n + 1 - rate * at for n, at in enumerate(after))
    meanwhile, failed = len(other.between(first_us, over_us)), len(held.failures) + held.counts.get("failures", 0)
    lost = jobs + jobs // 2 - len(set(one.answered)) - len(set(other.answered))
    twice = len(one.answered) + len(other.answered) - (jobs + jobs // 2) + lost
    row.tell("bodies running", running)
    row.tell("further calls", len(further), good=len(further) <= threads)
    row.tell("the last after", f"{last:.0f} ms", good=last <= 1000)
    row.tell("next call after", f"{PAUSE + after[0]:.2f} s")
    row.tell("beyond the rate then", f"{most_beyond:+.1f}", good=most_beyond <= beyond)
    row.tell("calls of another key", meanwhile, good=meanwhile > 0)
    row.tell("seen as failures", failed, good=not failed)
    row.tell("lost", lost, good=not lost)
    row.tell("twice", twice, good=not twice)


def send_calls(place: Any, jobs: int, from_call: int) -> None:
    """Send the jobs that `measure_429` waits for, to a partner that is angry from call *from_call* on."""
    place.partner.be_angry("one", PAUSE, from_call=from_call)
    for n in range(jobs):
        place.call(f"a{n}", "one")
        if n % 2:
            place.call(f"b{n}", "other")
