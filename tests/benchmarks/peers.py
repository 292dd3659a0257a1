"""
One decision of throttlekit and of every peer, compared with redis-py's INCR: latency, round trips, CPU, memory.

    python tests/benchmarks/peers.py [--quick] [--rounds 15] [--calls 300] [--tenants 1000000] [--only TEXT] [--hiredis]

In each round all libraries decide, in a new random order, on one server: --calls calls that are allowed, which are
repeated to count their round trips, and as many that are denied, for one tenant; then one call for each of as many
tenants, on a server that holds --tenants other keys. Memory is `used_memory` of an otherwise empty server, after one
call for each of --sample tenants of 100 an hour. Takes about 4 minutes, --quick some seconds. Exits with 1 if
throttlekit breaks a promise; --quick judges only round trips.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

HIREDIS = "--hiredis" in sys.argv
if __name__ == "__main__" and not HIREDIS:  # redis-py reads and packs with hiredis wherever it is installed
    sys.modules["hiredis"] = None  # type: ignore[assignment]

import redis

from support.flood.meters import cpu_of_redis
from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, ratios, spread, table, version_of
from support.servers.processes import redis_server
from support.throughput.contenders import (
    BASE,
    CONTENDERS,
    EMPTY_SCRIPT,
    FLOOR,
    PLACE,
    SET,
    Bind,
    Contender,
    Decide,
    sent_by,
)

OPEN, SHUT, SOME = (1_000_000, 1), (1, 3600), (100, 3600)
KINDS = ("allowed", "denied", "tenants")
OURS = "throttlekit `TokenBucket`"
JOB = "throttlekit `TokenBucket`, as a job"
MOST_RATIO = 1.0
_TITLES = [
    "one decision",
    "allowed × INCR",
    "denied × INCR",
    "many tenants × INCR",
    "round trips",
    "server CPU × INCR",
    "bytes a tenant",
]
_NOTES = """\
* × INCR: latency as a multiple of redis-py's INCR of the same round: the median of all rounds, and the middle half.
* Round trips and server CPU: of an allowed call. What acquires and releases is shown as the pair.
* Many tenants: each call is the first for its tenant; the objects that a library wants for a tenant are made before.
* The least that a script can cost: a bare token bucket, one key, packed once, on a connection that is held. Ours can
  come no nearer to INCR than that; a job that waits, no nearer than the least place in a line. An empty script is what
  the server takes for any script at all. An integer that expires, under our name: no bucket takes fewer bytes there.
* A `-` in the place of a figure: there is no such thing, or it was not asked."""


@dataclass
class Figures:
    """The figures of one contender; a list has one value per round. `fault`: why there are no figures."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: list[float] = field(default_factory=list[float])
    trips: list[float] = field(default_factory=list[float])
    bytes: float | None = None
    fault: str = ""


class WrongAnswer(Exception):
    """A call had another result than the benchmark measures."""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WrongAnswer) else type(error).__name__


class Arena:
    """All contenders on one server, each in a database of its own."""

    def __init__(self, url: str, contenders: Sequence[Contender]) -> None:
        self.figures = {each: Figures() for each in contenders}
        self._server: Any = redis.Redis.from_url(url)
        self._binds: dict[Contender, Bind] = {}
        self._decisions: dict[tuple[Contender, str], Decide] = {}
        self._numbers = iter(range(10**9))
        for database, each in enumerate(contenders, start=1):
            try:
                self._enter(each, each.make(f"{url}/{database}"))
            except ImportError:
                self._fault(each, f"not installed: pip install {each.package}")
            except Exception as error:  # an error of a peer is a row, and does not end the benchmark
                self._fault(each, f"fails: {_reason(error)}")

    def _enter(self, each: Contender, bind: Bind) -> None:
        self._decisions[each, "allowed"] = allowed = bind("one", *OPEN)
        if not all(allowed() for _ in range(3)):
            raise WrongAnswer("it denies what it should allow")
        if each.denies:
            self._decisions[each, "denied"] = denied = bind("shut", *SHUT)
            if not denied() or denied():
                raise WrongAnswer("it allows what it should deny")
        self._binds[each] = bind

    def _fault(self, each: Contender, why: str) -> None:
        self.figures[each] = Figures(fault=why)
        self._binds.pop(each, None)
        print(each.name, why, sep=": ", file=sys.stderr, flush=True)

    def round(self, kind: str, calls: int) -> None:
        """Measure *calls* decisions of each contender, in random order."""
        for each in random.sample(list(self._binds), len(self._binds)):
            if kind == "denied" and not each.denies:
                continue
            try:
                self._measure(each, kind, calls)
            except Exception as error:
                self._fault(each, f"fails ({kind}): {_reason(error)}")

    def _measure(self, each: Contender, kind: str, calls: int) -> None:
        if kind == "tenants":
            decisions = [self._binds[each](f"tenant:{next(self._numbers):09}", *OPEN) for _ in range(calls)]
        else:
            decisions = [self._decisions[each, kind]] * calls
        before, began = cpu_of_redis(self._server), time.perf_counter()
        answers = [decide() for decide in decisions]
        took, after = time.perf_counter() - began, cpu_of_redis(self._server)
        wrong = answers.count(kind == "denied")
        if wrong > (calls // 100 if kind == "denied" else 0):  # the shortest window may end during the calls
            raise WrongAnswer(f"{answers.count(True)} of {calls} calls were allowed")
        figures = self.figures[each]
        figures.seconds[kind].append(took / calls)
        if kind == "allowed":
            figures.cpu.append((after - before) / calls)
            figures.trips.append(len(sent_by(lambda: [decide() for decide in decisions])) / calls)

    def fill(self, keys: int) -> None:
        """Add *keys* integers with a time to live to the server."""
        for start in range(0, keys, 5000):
            pipeline = self._server.pipeline(transaction=False)
            for number in range(start, min(start + 5000, keys)):
                pipeline.set(f"tk1:{{partner:other-{number:07}}}", 1_795_169_879_209_974, px=3_600_000)
            pipeline.execute()

    def weigh(self, tenants: int) -> None:
        """Measure the memory of each contender for a tenant with one call."""
        for each, bind in self._binds.items():
            if each.memory:
                self._server.flushall()
                before = self._held()
                for number in range(tenants):
                    bind(f"tenant:{number:07}", *SOME)()
                for key in self._server.scan_iter("tk1:{fleet}:*"):  # the history of the limit is no tenant's
                    self._server.delete(key)
                self.figures[each].bytes = (self._held() - before) / tenants
        self._server.flushall()

    def _held(self) -> int:
        """Bytes of `used_memory`, without the buffers of connections, which vary."""
        memory = self._server.info("memory")
        return int(memory["used_memory"] - memory["mem_clients_normal"])

    def close(self) -> None:
        self._server.close()


def rows(figures: dict[Contender, Figures], base: Figures) -> Iterator[list[str]]:
    for each, found in figures.items():
        named = f"{each.name} ({version_of(each.package) or 'none'})" if "throttlekit" not in each.name else each.name
        if found.fault:
            yield [named, found.fault, *["-"] * (len(_TITLES) - 2)]
            continue
        latency = [
            spread(ratios(found.seconds[kind], base_of(base, kind))) if found.seconds[kind] else "-" for kind in KINDS
        ]
        weight = "-" if found.bytes is None else f"{found.bytes:.0f}"
        yield [named, *latency, f"{statistics.median(found.trips):.2f}", spread(ratios(found.cpu, base.cpu)), weight]


def base_of(base: Figures, kind: str) -> list[float]:
    """
    Return the times of INCR with which calls of *kind* are compared: a denial is compared with those of a grant,
    because INCR denies nothing.
    """
    return base.seconds["allowed" if kind == "denied" else kind]


def judged(figures: dict[Contender, Figures], base: Figures, *, times: bool = True) -> Iterator[Promise]:
    """
    Yield the promises of throttlekit, and the fastest peer. If *times* is false, times are reported but not checked.
    """
    allowed = {
        each: ratios(found.seconds["allowed"], base.seconds["allowed"])
        for each, found in figures.items()
        if found.seconds["allowed"]
    }
    latencies = {each: statistics.median(found) for each, found in allowed.items()}
    ours = {each: found for each, found in figures.items() if each.name.startswith("throttlekit")}
    for each, found in ours.items():
        if each.name == OURS:
            measured = spread(allowed[each]) if each in allowed else found.fault
            kept = latencies.get(each, 9.0) <= MOST_RATIO if times else None
            what = f"latency of one limit, allowed, × INCR{', with hiredis' * HIREDIS}"
            yield Promise(what, measured, f"<= {MOST_RATIO}", kept)
    for each, found in allowed.items():
        if each.name == FLOOR:
            yield Promise("the least that a script can cost here", spread(found), "", None)
    yield from beside(figures, base)
    peers = {each: ratio for each, ratio in latencies.items() if each not in ours and "redis-py" not in each.name}
    if peers:
        best = min(peers, key=peers.__getitem__)
        yield Promise(f"the fastest peer of {len(peers)}: {best.name}", f"{peers[best]:.2f}", "", None)
    expected = {each: 2 if "release" in each.name else 1 for each in ours}
    wrong = [f"{each.name}: {found.fault}" for each, found in ours.items() if found.fault]
    trips = {each: statistics.median(found.trips) for each, found in ours.items() if found.trips}
    wrong += [f"{each.name}: {count:.2f}" for each, count in trips.items() if round(count, 1) > expected[each]]
    yield Promise("round trips of a decision, 1, 2 or 3 limits", ", ".join(wrong) or "1", "1", not wrong)


def beside(figures: dict[Contender, Figures], base: Figures) -> Iterator[Promise]:
    """
    Yield the costs of throttlekit that exceed those of INCR, each with its lower bound: no code that does the same
    costs less.
    """
    named = {each.name: found for each, found in figures.items() if not found.fault}

    def cpu(found: Figures) -> float:
        return statistics.median(ratios(found.cpu, base.cpu))

    def latency(kind: str) -> Callable[[Figures], float]:
        return lambda found: statistics.median(ratios(found.seconds[kind], base_of(base, kind)))

    script = {FLOOR: "the least script"}
    for what, of, ours, floors in (
        ("server CPU of one limit, allowed, × INCR", cpu, OURS, script | {EMPTY_SCRIPT: "an empty one"}),
        ("latency of one limit, denied, × INCR", latency("denied"), OURS, script),
        ("latency of a job that waits, × INCR", latency("denied"), JOB, {PLACE: "the least place in a line"}),
        ("latency of a new tenant, × INCR", latency("tenants"), OURS, {SET: "a SET", **script}),
        ("bytes a tenant", lambda found: found.bytes or 0.0, OURS, {SET: "an integer under the same name"}),
    ):
        if ours in named and all(floor in named for floor in floors):
            shown = f"{of(named[ours]):.2f}".removesuffix(".00")
            told = [f"{floor} {of(named[name]):.2f}".removesuffix(".00") for name, floor in floors.items()]
            yield Promise(what, "; ".join([shown, *told]), "", None)


def main() -> int:
    parser = parser_of(
        __doc__, quick="few calls: is it all there?", only="the rows whose name holds this text, and those of redis-py"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300, help="of each, in each round")
    parser.add_argument("--tenants", type=int, default=1_000_000, help="whose keys the server holds")
    parser.add_argument("--sample", type=int, default=10_000, help="tenants to weigh")
    parser.add_argument("--hiredis", action="store_true", help="redis-py reads and packs with hiredis, in every row")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.calls, options.tenants, options.sample = 3, 30, 10_000, 300
    chosen = [each for each in CONTENDERS if each.package == "redis" or options.only in each.name]
    with redis_server("--databases", str(len(chosen) + 1)) as url:
        arena = Arena(url, chosen)
        for _ in range(options.rounds):
            arena.round("allowed", options.calls)
            arena.round("denied", options.calls)
        arena.fill(options.tenants)
        for _ in range(options.rounds):
            arena.round("tenants", options.calls)
        arena.weigh(options.sample)
        version = redis.Redis.from_url(url).info("server")["redis_version"]
        arena.close()
    figures = arena.figures
    base = next(found for each, found in figures.items() if each.name == BASE)
    hiredis = f"hiredis {version_of('hiredis') or 'is missing'}" if HIREDIS else "without hiredis"
    head = (
        f"{about('redis', servers=[hiredis, f'Redis {version}'])}\n"
        f"{options.rounds} rounds of {options.calls} calls; {options.tenants} tenants; {options.sample} weighed.\n"
        f"INCR took {1e6 * statistics.median(base.seconds['allowed']):.0f} µs."
    )
    shown = judged(figures, base, times=not options.quick)
    return print_results("peers", head, [table(_TITLES, rows(figures, base)), _NOTES], shown)


if __name__ == "__main__":
    sys.exit(main())
