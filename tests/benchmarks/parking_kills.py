"""
SIGKILL of worker processes at every command that they send to Redis, while most jobs are parked: is one lost?

    python tests/benchmarks/parking_kills.py [--kills 1000] [--workers TEXT] [--seed 1]

Four processes at a time, each of which kills itself: at a command drawn by chance, before it is sent, before its answer
or after it. Another takes its place. In the end the limit is raised, and processes that live finish what is left. A job
that was in a body as its process died runs once more, as the framework promises. Celery's own client takes a message
from its list before it notes that it has it: no process dies in that gap. Exits with 1 if a job is lost, or the limit's
bound broken.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from support.celery.flood import CeleryFlood, CeleryFlooding
from support.faults.mortal import MOMENTS, MORTAL
from support.flood.figures import bursts_beyond_us
from support.flood.run import Flood, Flooding, FloodLimit
from support.reports.command import parser_of, show
from support.servers.flood import Servers, servers
from support.waiting import wait_until
from throttlekit.fleet.control import Control

AT_ONCE, RATE, BURST, BACKLOG = 4, 20, 10, 600
_LIMITS = (FloodLimit("partner", f"{RATE}/s", BURST),)
_VISIBLE = {
    "visibility_timeout": 5,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
}
_CELERY: dict[str, Any] = {
    "task_acks_late": True, "task_reject_on_worker_lost": True, "broker_connection_retry_on_startup": True,
    "broker_transport_options": _VISIBLE,
}  # fmt: skip
WORKERS: dict[str, tuple[type[Flooding], Flood, int]] = {
    "Dramatiq": (Flooding, Flood(limits=_LIMITS, jobs=BACKLOG, processes=1, faulty=True), 600),
    "Celery": (
        CeleryFlooding,
        CeleryFlood(limits=_LIMITS, jobs=BACKLOG, processes=1, faulty=True, pool="threads", conf=_CELERY),
        600,
    ),
}
"""The flood, and among how many commands the last one of a process is drawn."""


def campaign(name: str, kills: int, seed: int) -> tuple[list[str], list[str]]:
    """Let so many processes die; return the row, and the promises that were broken."""
    rnd, moments = random.Random(f"{seed} {name}"), Counter[str]()
    kind, flood, last = WORKERS[name]
    with servers("redis") as where, kind(flood, where) as flooding:
        sent, alive = _top_up(flooding, 0), list[Any]()
        began = time.monotonic()
        try:
            for _ in range(kills):
                while len(alive) >= AT_ONCE:
                    alive = [each for each in alive if _lives(each)]
                    time.sleep(0.01)
                moment = rnd.randrange(len(MOMENTS))
                moments[MOMENTS[moment]] += 1
                flooding._environment[MORTAL] = f"{rnd.randint(5, last)} {moment}"
                alive.append(flooding.workers())
                flooding.bury()
                sent = _top_up(flooding, sent)
            wait_until(lambda: not any(map(_lives, alive)), description="the last of them has died", timeout=300)
        finally:
            for each in alive:
                each.close()
        took = time.monotonic() - began
        del flooding._environment[MORTAL]
        flooding.bury()
        done, lost = _see_through(flooding, where, sent)
        starts = flooding.starts()
        grants = [grant.at_us for grant in flooding.grants()]
    beyond = bursts_beyond_us([at for at in grants if at < done * 1e6], BURST, 1e6 / RATE)
    twice = len(starts) - len({start.job for start in starts})
    row = [name, str(kills), f"{took:.0f}", str(sent), str(lost), str(twice), f"{beyond / 1000:+.1f} ms"]
    faults = [f"{name}: {lost} lost"] * (lost > 0) + [f"{name}: the bound by {beyond / 1000:+.1f} ms"] * (beyond > 0)
    return [*row, ", ".join(f"{count} {moment}" for moment, count in sorted(moments.items()))], faults


def _lives(worker: Any) -> bool:
    if worker.running:
        return True
    worker.close()  # with what it has started
    return False


def _top_up(flooding: Flooding, sent: int) -> int:
    missing = BACKLOG - (sent - int(flooding.record.scard("ended")))
    if missing > BACKLOG // 4 or not sent:
        flooding.send_many(("job", str(index)) for index in range(sent, sent + missing))
        return sent + missing
    return sent


def _see_through(flooding: Flooding, where: Servers, sent: int) -> tuple[float, int]:
    """Until all are done, or none has been for a while; return when the limit was raised, and how many are lost."""
    raised = time.time()
    with Control(where.store_url.partition("?")[0], by="benchmark") as control:
        control.set("partner", "500/s", burst=50)
        flooding.start()
        seen, since = -1, time.monotonic()

        def over() -> bool:
            nonlocal seen, since
            ended = int(flooding.record.scard("ended"))
            if ended != seen:
                seen, since = ended, time.monotonic()
            return ended == sent or time.monotonic() - since > 60

        wait_until(over, description="all are done, or none is any more", timeout=600, every=0.2)
    flooding.stop()
    return raised, sent - int(flooding.record.scard("ended"))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", default="", help="workers whose name holds this text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    table, faults = (
        Table(title=f"SIGKILL at a command to Redis, {AT_ONCE} processes at a time, {BACKLOG} jobs waiting"),
        list[str](),
    )
    for title in ("workers", "kills", "took s", "jobs", "lost", "begun twice", "bound, grants", "when"):
        table.add_column(title, no_wrap=title != "when")
    for name in WORKERS:
        if options.workers in name:
            row, broken = campaign(name, options.kills, options.seed)
            table.add_row(*row)
            faults += broken
    return show([table], faults, [])


if __name__ == "__main__":
    sys.exit(main())
