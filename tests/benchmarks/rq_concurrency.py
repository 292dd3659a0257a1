"""
Jobs under a concurrency limit, and an angry partner, on real `rq worker` processes: stock ones and ours.

    python tests/benchmarks/rq_concurrency.py [--quick] [--only TEXT] [--markdown FILE]

The full run takes about 5 minutes, --quick about 2. Exits with 1 if more bodies ran at once than the limit says, if a
job was lost or ran twice, if a killed worker's slots did not come free within the lease + 1 s, or if somebody called
during a pause. What was measured beside is told, and judged by nobody.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.reports.command import parser_of
from support.rq.flood import OURS, OURS_SIMPLE, STOCK
from support.rq.slots import Held, RqSlots, RqSlotting
from support.servers.processes import redis_server
from support.waiting import wait_until

_COLUMNS = ("row", "jobs", "limit", "most at once", "use", "deliveries", "took s")
_FOOTNOTES = """\
* use: the bodies' own time, as part of limit × time from the first start to the last end. A slot is held from the
  grant on, so what a worker does between grant and body (a fork: some 20 ms) is not used.
* deliveries: how often a job was taken off its queue, for each job.
* ours simple: ThrottledSimpleWorker; ours: ThrottledWorker; stock: `rq worker`, one of them with RQ's scheduler.
* 20-500-20: the bodies of the thirds take 20, 500 and 20 ms.
* no limit: as many slots as workers, which shows what the machine itself gives.
"""


class Row:
    """Jobs of these seconds under a limit, sent to workers that wait for them."""

    def __init__(self, name: str, kinds: Sequence[str], amount: int, bodies: Sequence[float]) -> None:
        self.name, self.kinds, self.amount, self.bodies = name, tuple(kinds), amount, bodies

    def run(self, base: str) -> tuple[list[str], list[str]]:
        """The cells, and what was broken."""
        with RqSlotting(RqSlots(amount=self.amount, kinds=self.kinds), base) as slotting:
            slotting.start()
            for n, seconds in enumerate(self.bodies):
                slotting.work(n, seconds)
            slotting.until_ended(len(self.bodies), timeout=60 + 3 * sum(self.bodies) / self.amount)
            held = slotting.stop()
        return self._cells(held), list(self._broken(held))

    def _cells(self, held: Held) -> list[str]:
        use = sum(self.bodies) / self.amount / held.span()
        told = (len(self.bodies), self.amount, held.most_at_once(), f"{use:.3f}")
        return [self.name, *map(str, told), f"{held.deliveries / len(self.bodies):.2f}", f"{held.span():.1f}"]

    def _broken(self, held: Held) -> Iterator[str]:
        if held.most_at_once() > self.amount:
            yield f"{self.name}: {held.most_at_once()} at once under a limit of {self.amount}"
        if held.left or held.starts != {str(n): 1 for n in range(len(self.bodies))}:
            yield f"{self.name}: jobs were lost or ran twice"


def rows(quick: bool) -> Iterator[Row]:
    less = 5 if quick else 1
    simple, stock = [OURS_SIMPLE] * 16, [STOCK, *["rq.Worker"] * 5]
    for seconds, jobs in ((0.1, 2000 // less), (0.5, 600 // less)):
        yield Row(f"no limit, 16 ours simple, {seconds * 1000:g} ms", simple, 16, [seconds] * jobs)
        yield Row(f"16 ours simple, {seconds * 1000:g} ms", simple, 10, [seconds] * jobs)
    third = 600 // less // 3
    steps = [0.02] * third + [0.5] * third + [0.02] * third
    yield Row("16 ours simple, 20-500-20", simple, 10, steps)
    yield Row("6 ours, 500 ms", [OURS] * 6, 4, [0.5] * (200 // less))
    yield Row("6 ours, 2 s", [OURS] * 6, 4, [2.0] * (60 // less))
    yield Row("6 stock, 500 ms", stock, 4, [0.5] * (200 // less))
    yield Row("6 stock, 2 s", stock, 4, [2.0] * (60 // less))


def kill(base: str) -> tuple[str, list[str]]:
    """SIGKILL of workers that hold 4 of 8 slots, on a busy key."""
    lease = 3.0
    with RqSlotting(RqSlots(amount=8, lease=lease), base) as slotting:
        doomed = slotting.start(*[OURS_SIMPLE] * 4)
        for n in range(4):
            slotting.work(f"doomed-{n}", 600)
        wait_until(lambda: len(slotting.events()) == 4, description="they hold four slots")
        slotting.start(*[OURS_SIMPLE] * 10)
        for n in range(400):
            slotting.work(n, 0.2)
        wait_until(lambda: len(slotting.events()) > 100, description="the key is busy")
        killed_us = slotting.now_us()
        doomed.kill()
        slotting.until_ended(400, timeout=120)
        events = [event for event in slotting.events() if not event.job.startswith("doomed")]
    now, most_before, full_us = 0, 0, 0
    for event in events:
        now += 1 if event.what == "start" else -1
        most_before = max(most_before, now) if event.at_us <= killed_us else most_before
        full_us = event.at_us if not full_us and now == 8 else full_us
    after = (full_us - killed_us) / 1e6
    told = f"Killed with 4 of 8 slots, lease {lease:g} s: all 8 at work again {after:.2f} s later."
    broken = [f"beside the 4 of 8 slots {most_before} were at work"] if most_before > 4 else []
    return told, broken + ([told] if not 0 < after <= lease + 1 else [])


def angry(base: str) -> tuple[str, list[str]]:
    """A partner that begins to answer 429 at full flood."""
    seconds, rate = 10, 50
    told = RqSlots(rate=f"{rate}/s", burst=rate, kinds=(OURS_SIMPLE,) * 8)
    with RqSlotting(told, base) as slotting:
        slotting.partner.be_angry("one", seconds, from_call=150)
        slotting.start()
        for n in range(500):
            slotting.call(n)
            if n % 5 == 0:
                slotting.call(f"other-{n}", "other")
        slotting.until_ended(600, timeout=90)
        held = slotting.stop()
        one, other = slotting.partner.told("one"), slotting.partner.told("other")
    first = one.refused[0].at_us
    resumed = next(call.at_us for call in one.calls if call.status == 200 and call.at_us > first)
    running, further = one.running_at(first), len(one.refused) - 1
    pause, second = (resumed - first) / 1e6, len(one.between(resumed, resumed + 1_000_000))
    lines = (
        f"429 with Retry-After {seconds} at {rate}/s, {len(told.kinds)} workers: {running} bodies had begun, "
        f"{further} further calls were made; the next came {pause:.2f} s later, and {second + 1} in its first second."
    )
    broken: list[str] = []
    # Besides those that had begun there are those that were let pass and had not, or were before the pause was told.
    if further > len(told.kinds) or pause < seconds:
        broken.append("somebody called whom the 429 should have held back")
    if second + 1 > rate + len(told.kinds):
        broken.append(f"a burst of {second + 1} after the pause")
    if held.left or len(set(one.answered)) != 500 or len(other.answered) != 100:
        broken.append("jobs were lost or failed with the 429")
    return lines, broken


def main() -> int:
    parser = parser_of(__doc__, quick="fewer jobs", only="rows whose name holds this text")
    parser.add_argument("--markdown", type=Path, help="write the table to this file as well, for the docs")
    options = parser.parse_args()
    faults: list[str] = []
    lines = [" | ".join(_COLUMNS), " | ".join("---" for _ in _COLUMNS)]
    lines = [f"| {line} |" for line in lines]
    print(*lines, sep="\n", flush=True)
    with redis_server() as base:
        for row in rows(options.quick):
            if options.only not in row.name:
                continue
            cells, broken = row.run(base)
            faults += broken
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
        lines += ["", _FOOTNOTES.rstrip()]
        for name, shown in (("kill", kill), ("angry", angry)):
            if options.only in name:
                told, broken = shown(base)
                faults += broken
                lines += ["", told]
                print(told, flush=True)
    if options.markdown:
        command = f"Printed by `{' '.join(['python', *sys.argv])}` on {os.cpu_count()} cores; not edited by hand."
        options.markdown.write_text("\n".join(["# Concurrency on RQ", "", command, "", *lines, ""]))
    print(*(f"BROKEN: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
