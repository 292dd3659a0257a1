"""
A backlog under a limit, on real brokers and real `taskiq worker` processes: throttlekit and alternatives, in one run.

    python tests/benchmarks/taskiq_flood.py [--quick] [--broker redis|rabbitmq|both] [--only TEXT] [--json FILE]

2 processes of 10 places. The full run takes about 25 minutes, --quick about 4. Exits with 1 if throttlekit breaks a
promise; the promises are in `Row.broken` and `deferrals`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.flood.run import FloodLimit
from support.reports.command import each_broker
from support.reports.floods import Report, Row, denials, flood_options
from support.servers.flood import Kind
from support.taskiq.brokers import Kind as Broker
from support.taskiq.flood import TaskiqFlood

MOST_DEFERRALS = 1.1

_FOOTNOTES = """\
deliveries: how often a message reached the receiver per task done, held ones once more. ops: not counted.
stream, list: RedisStreamBroker, ListQueueBroker; rabbitmq: AioPikaBroker with its default window of 10 messages.
in place: a body that asks, and sleeps for time to one token + U(0, 1) s where it is, in a place of the receiver: the
  limit is used as long as no other task needs one of the 20 places."""


def rows(kind: Kind, quick: bool) -> Iterator[Row]:
    brokers: tuple[Broker, ...] = ("stream", "list") if kind == "redis" else ("rabbitmq",)
    limits = (FloodLimit("partner", "50/s", 50),)
    for on in brokers:
        for jobs in (150, 500) if quick else (500, 5000):
            flood = TaskiqFlood(limits=limits, jobs=jobs, on=on, give_up=jobs / 50 + 60)
            yield Row(f"throttlekit {on} {jobs} 50/s", flood)
        if not quick:
            flood = TaskiqFlood(limits=limits, jobs=500, on=on, processes=4, form="thread", give_up=90)
            yield Row(f"throttlekit {on} 500 50/s, threads, 4 processes", flood)
        flood = TaskiqFlood(limits=limits, jobs=150 if quick else 500, on=on, mode="naive", give_up=60)
        yield Row(f"in place {on} {flood.jobs} 50/s", flood, ours=False)


def main() -> int:
    options = flood_options(__doc__, broker=True)
    title = "A backlog under a limit: 2 processes × 10 places, per task done"
    packages = ("taskiq", "taskiq-redis", "taskiq-aio-pika", "redis")
    report = Report(options, title, _FOOTNOTES, packages, "Results: taskiq")
    for where in each_broker(options):
        for row, result, found in report.run(rows(where.kind, options.quick), where):
            each = denials(result) / row.flood.jobs
            report.add(where.kind, row, found)
            if row.ours:
                too_many = f", more than {MOST_DEFERRALS}" if each > MOST_DEFERRALS else ""
                report.say(f"{where.kind} {row.name}: {each:.2f} denials a task{too_many}", fault=bool(too_many))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
