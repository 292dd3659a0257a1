"""
The maximum of decisions a second on one core of Redis: throttlekit, and peers that decide in one round trip.

    python tests/benchmarks/one_core.py [--quick] [--rounds 9] [--calls 4000] [--only TEXT]

The commands of one allowed decision of each library are repeated, in batches of 100, so that the server does nothing
but decide. The result is decisions per second of the server's CPU, so that other programs on the machine do not count.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis

from support.flood.meters import cpu_of_redis
from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, ratios, spread, table, version_of
from support.servers.processes import redis_server
from support.throughput.contenders import BASE, CONTENDERS, FLOOR, Contender, sent_by

AT_ONCE = 100
OPEN = (1_000_000, 1)
_TITLES = ["one decision", "decisions a second of a core", "× the least script", "× INCR"]
_NOTES = """\
* The median of all rounds, and the middle half: decisions in a second of the server's CPU, INCRs in the first row.
* × the least script, × INCR: its decisions in a second as a part of those of the same round.
* Those that take more than one round trip are left out: what they send depends on the answers."""


def commands_in(trip: bytes) -> int:
    """Return the number of commands in *trip*."""
    count, rest = 0, trip
    while rest:
        head, rest = rest.split(b"\r\n", 1)
        for _ in range(int(head[1:])):
            size, rest = rest.split(b"\r\n", 1)
            rest = rest[int(size[1:]) + 2 :]
        count += 1
    return count


class Core:
    """One server, and a connection per contender that sends the contender's commands."""

    def __init__(self, url: str, contenders: list[Contender]) -> None:
        self._server: Any = redis.Redis.from_url(url)
        self.took: dict[Contender, list[float]] = {}
        self._trips: dict[Contender, tuple[bytes, int, Any]] = {}
        for database, each in enumerate(contenders, start=1):
            try:
                decide = each.make(f"{url}/{database}")("one", *OPEN)
                decide()
                trips = sent_by(decide)
            except Exception as error:  # an error of a peer does not end the benchmark
                print(each.name, type(error).__name__, sep=": ", file=sys.stderr, flush=True)
                continue
            if len(trips) == 1:
                connection: Any = redis.Redis.from_url(f"{url}/{database}").connection_pool.make_connection()
                connection.connect()
                self._trips[each], self.took[each] = (trips[0], commands_in(trips[0]), connection), []

    def round(self, calls: int) -> None:
        """Have the server decide *calls* times for each contender, in random order."""
        for each in random.sample(list(self._trips), len(self._trips)):
            trip, commands, connection = self._trips[each]
            before = cpu_of_redis(self._server)
            for _ in range(0, calls, AT_ONCE):
                connection.send_packed_command((trip * AT_ONCE,), check_health=False)
                for _ in range(AT_ONCE * commands):
                    connection.read_response()
            self.took[each].append((cpu_of_redis(self._server) - before) / calls)


def rows(took: dict[Contender, list[float]]) -> Iterator[list[str]]:
    base, floor = (next(found for each, found in took.items() if each.name == name) for name in (BASE, FLOOR))
    for each, found in took.items():
        version = "" if "throttlekit" in each.name else f" ({version_of(each.package) or 'none'})"
        rates = [1 / seconds for seconds in found]
        low, _, high = statistics.quantiles(rates, n=4)
        rate = f"{statistics.median(rates):,.0f} [{low:,.0f} … {high:,.0f}]"
        yield [each.name + version, rate, spread(ratios(floor, found)), spread(ratios(base, found))]


def reported(took: dict[Contender, list[float]]) -> Iterator[Promise]:
    """Yield the rates of throttlekit, and of the fastest peer."""
    rates = {each: statistics.median(1 / seconds for seconds in found) for each, found in took.items()}
    peers = {each.name: rate for each, rate in rates.items() if each.package not in ("redis", "throttlekit-jobs")}
    best = max(peers, key=peers.__getitem__) if peers else ""
    ours = "throttlekit `TokenBucket`", "throttlekit 3 × `TokenBucket`"
    shown = {ours[0]: "1 limit", ours[1]: "3 limits", FLOOR: "a bare script"}
    for each, rate in rates.items():
        if each.name in shown:
            yield Promise(f"decisions a second of one Redis core, {shown[each.name]}", f"{rate:,.0f}", "", None)
    if peers:
        what = f"decisions a second of one Redis core, the fastest peer of {len(peers)}: {best}"
        yield Promise(what, f"{peers[best]:,.0f}", "", None)


def main() -> int:
    parser = parser_of(
        __doc__, quick="few calls: is it all there?", only="the rows whose name holds this text, and INCR"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=4000, help="of each, in each round")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.calls = 3, 400
    chosen = [each for each in CONTENDERS if each.name in (BASE, FLOOR) or options.only in each.name]
    with redis_server("--databases", str(len(chosen) + 1)) as url:
        core = Core(url, chosen)
        for _ in range(options.rounds):
            core.round(options.calls)
        version = redis.Redis.from_url(url).info("server")["redis_version"]
    head = f"{about('redis', servers=[f'Redis {version}'])}\n{options.rounds} rounds of {options.calls} decisions."
    return print_results("one_core", head, [table(_TITLES, rows(core.took)), _NOTES], reported(core.took))


if __name__ == "__main__":
    sys.exit(main())
