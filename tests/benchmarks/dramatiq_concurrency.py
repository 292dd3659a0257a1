"""
Slots of a concurrency limit in real `dramatiq` workers, beside Dramatiq's own ConcurrentRateLimiter; what a kill costs;
and what a partner that answers 429 receives.

    python tests/benchmarks/dramatiq_concurrency.py [--broker redis|rabbitmq|both] [--jobs 2000]

Jobs on one key, ten slots, two processes of eight threads: bodies of 100 ms, and bodies that jump from 20 ms to 500 ms
and back. Two processes of five threads without any limit show what the machine itself gives. Dramatiq's own limiter
sends the jobs that it denies through its retries, here without end and with a back-off of half a second to two. Then:
a process that holds four of eight slots is killed; and a partner answers 429 with Retry-After 10 at full flood.

Exits with 1 if throttlekit lets more run at once than the limit says, loses or fails a job, uses less than 0.9 of the
slots' time or less than 0.98 of what as many threads use without a limit, delivers a job more than three times, or
makes a call during the pause.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from support.dramatiq.slots import Held, Slots, Slotting
from support.reports.command import each_broker, parser_of, show
from support.servers.flood import Servers
from support.waiting import wait_until

_AMOUNT = 10
_STEADY = (0.1,)
_JUMPING = (0.02, 0.5, 0.02)
_NATIVE: dict[str, Any] = {"max_retries": 1_000_000, "min_backoff": 500, "max_backoff": 2000}
_WHO = {"throttlekit": "throttlekit", "native": "ConcurrentRateLimiter", "none": "no limit, 10 threads"}
_LEASE = 5.0
_RATE, _BURST, _PAUSE = 100, 50, 10


@dataclass
class Outcome:
    """A row, what is wrong with it, and of slots, how much of their time was used."""

    row: tuple[str, ...]
    faults: list[str]
    use: float = 0.0


def slots(where: Servers, mode: Any, jobs: int, bodies: tuple[float, ...], without: float = 0.0) -> Outcome:
    """
    A backlog of *jobs*, whose bodies last as *bodies* say, one part after the other.

    Args:
        without: How much as many threads as slots use without a limit.
    """
    each = [bodies[n * len(bodies) // jobs] for n in range(jobs)]
    options = _NATIVE if mode == "native" else {}
    threads = _AMOUNT // 2 if mode == "none" else 8
    with Slotting(Slots(amount=_AMOUNT, mode=mode, options=options, threads=threads), where) as slotting:
        for n, seconds in enumerate(each):
            slotting.send("work", str(n), str(seconds))
        slotting.start()
        slotting.until_ended(jobs, timeout=30 + 5 * sum(each) / _AMOUNT)
        held = slotting.stop()
    most, use = held.most_at_once(), sum(each) / (_AMOUNT * held.span())
    deliveries = held.counts["deliveries"] / jobs
    lost = jobs - len(held.ends)
    what = " → ".join(f"{1000 * seconds:.0f}" for seconds in bodies) + " ms"
    faults: list[str] = []
    if mode == "throttlekit":
        faults = _faults(
            {
                f"{most} at once": most > _AMOUNT,
                f"{lost} lost, {held.left} left": lost != 0 or held.left != 0,
                f"{len(held.failures)} failed": len(held.failures) != 0,
                f"{use:.2f} of the slots' time used": use < 0.9,
                f"{use:.3f} used, {without:.3f} without a limit": use < 0.98 * without,
                f"{deliveries:.2f} deliveries a job": deliveries > 3,
            }
        )
    operations = held.counts["operations"] / jobs
    row = (
        where.kind, _WHO[mode], what, str(jobs), str(most), f"{use:.3f}", f"{deliveries:.2f}",
        f"{operations:.1f}", str(len(held.failures)), str(lost), _twice(held),
    )  # fmt: skip
    return Outcome(row, [f"{where.kind}, {what}: {fault}" for fault in faults], use)


def kill(where: Servers, mode: Any) -> Outcome:
    """A process that holds four of eight slots is killed on a busy key: when do the others have all eight?"""
    options = _NATIVE if mode == "native" else {}
    with Slotting(Slots(amount=8, lease=_LEASE, mode=mode, options=options), where) as slotting:
        for n in range(4):
            slotting.send("work", f"long{n}", "600")
        doomed = slotting.start(processes=1, threads=4)
        wait_until(lambda: len(slotting.events()) == 4, description="it holds four slots")
        process = slotting.events()[0].more
        for n in range(1000):
            slotting.send("work", str(n), "0.1")
        slotting.start(processes=1, threads=12)
        wait_until(lambda: len(slotting.events()) > 100, description="the others run too")
        doomed.kill()
        killed_us = slotting.now_us()
        until_us = killed_us + round((_LEASE + 5) * 1_000_000)
        wait_until(lambda: slotting.now_us() > until_us, description="it has been watched for long enough")
        events = [event for event in slotting.events() if event.at_us <= until_us]
        for each in slotting.running:
            each.kill()
    held = Held(events, {}, 0, "", [])
    alive = {event.more: until_us for event in events if event.what == "start" and event.more != process}
    instants, at_once = held.at_once({**alive, process: killed_us})
    most = max(at_once)
    # Those that the killed process ran are delivered again, and may hold slots by now: they count like any.
    full = next((at for at, count in zip(instants, at_once, strict=True) if at > killed_us and count >= 8), None)
    after = "never" if full is None else f"{(full - killed_us) / 1e6:.1f} s"
    late = full is None or full - killed_us > (_LEASE + 1) * 1e6
    faults = _faults({f"{most} at once": most > 8, f"all slots back after {after}": late})
    ours = mode == "throttlekit"
    row = (where.kind, _WHO[mode], str(most), after)
    return Outcome(row, [f"{where.kind}, kill: {fault}" for fault in faults] if ours else [])


def angry(where: Servers) -> Outcome:
    """A partner answers 429 with Retry-After at full flood."""
    jobs = 1000
    with Slotting(Slots(rate=f"{_RATE}/s", burst=_BURST), where) as slotting:
        slotting.partner.be_angry("one", _PAUSE, from_call=300)
        for n in range(jobs):
            slotting.send("call", f"a{n}", "one")
            slotting.send("call", f"b{n}", "two")
        slotting.start()
        slotting.until_ended(2 * jobs, timeout=120)
        one, two = slotting.partner.told("one"), slotting.partner.told("two")
        held = slotting.stop()
    first_us = one.refused[0].at_us
    over_us = first_us + _PAUSE * 1_000_000
    running, further = one.running_at(first_us), one.between(first_us, over_us)
    last = max([(call.at_us - first_us) / 1000 for call in further], default=0.0)
    after = [call for call in one.calls if call.at_us > over_us]
    beyond = max(n + 1 - _RATE * (call.at_us - over_us) / 1e6 for n, call in enumerate(after))
    meanwhile = len(two.between(first_us, over_us))
    lost = 2 * jobs - len(set(one.answered)) - len(set(two.answered))
    twice = len(one.answered) + len(two.answered) - 2 * jobs + lost
    faults = _faults(
        {
            f"{len(further)} further calls, {running} were running": len(further) > 16,
            f"a call {last:.0f} ms into the pause": last > 1000,
            f"{beyond:.1f} calls beyond the rate after the pause": beyond > 2,
            f"{lost} lost, {len(held.failures)} failed": lost != 0 or len(held.failures) != 0,
            "the other key stood still": meanwhile == 0,
        }
    )
    row = (
        where.kind, str(running), str(len(further)), f"{last:.0f} ms", f"{(after[0].at_us - first_us) / 1e6:.2f} s",
        f"{beyond:+.1f}", str(meanwhile), str(len(held.failures)), str(lost), str(twice),
    )  # fmt: skip
    return Outcome(row, [f"{where.kind}, 429: {fault}" for fault in faults])


def _faults(told: dict[str, bool]) -> list[str]:
    return [fault for fault, holds in told.items() if holds]


def _twice(held: Held) -> str:
    return str(sum(held.starts.values()) - len(held.starts))


_TABLES = {
    "slots": (
        f"{_AMOUNT} slots, 2 processes × 8 threads, without a limit 2 × 5",
        ("broker", "who", "bodies", "jobs", "most at once", "slot time used", "deliveries a job",
         "operations a job", "seen as failures", "lost", "begun twice"),
    ),
    "kill": (
        f"SIGKILL of a process that holds 4 of 8 slots, lease {_LEASE:.0f} s",
        ("broker", "who", "most at once", "all 8 in use again after"),
    ),
    "angry": (
        f"429 with Retry-After {_PAUSE} at full flood, {_RATE}/s a key, 16 threads",
        ("broker", "bodies running", "further calls", "the last after", "next call after", "beyond the rate then",
         "calls of another key", "seen as failures", "lost", "twice"),
    ),
}  # fmt: skip


def main() -> int:
    parser = parser_of(__doc__, broker=True)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--only", choices=_TABLES, help="one of the tables")
    options = parser.parse_args()
    outcomes: dict[str, list[Outcome]] = {name: [] for name in _TABLES}
    for where in each_broker(options):
        if options.only in (None, "slots"):
            for bodies in (_STEADY, _JUMPING):
                without = slots(where, "none", options.jobs, bodies)
                ours = slots(where, "throttlekit", options.jobs, bodies, without.use)
                outcomes["slots"] += [without, ours, slots(where, "native", options.jobs, bodies)]
        if options.only in (None, "kill"):
            outcomes["kill"] += [kill(where, mode) for mode in ("throttlekit", "native")]
        if options.only in (None, "angry"):
            outcomes["angry"].append(angry(where))
    tables: list[Table] = []
    for name, (title, columns) in _TABLES.items():
        tables += [Table(*columns, title=title)] if outcomes[name] else []
        for outcome in outcomes[name]:
            tables[-1].add_row(*outcome.row)
    return show(
        tables, [fault for each in outcomes.values() for outcome in each for fault in outcome.faults], width=180
    )


if __name__ == "__main__":
    sys.exit(main())
