"""
Fixed scenarios with numbers: how much of a limit is used, the decisions and store requests per job, and the order.

    python tests/simulation/scenarios.py [NAME ...] [--seed N]

Prints the numbers of each scenario as a line of JSON. The fleet is that of `world.py`: 8 processes of 8 threads whose
requests and answers take 0.5 ms each. `test_scenarios.py` has the bounds of the numbers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from run import run_logged  # isort: skip: it puts throttlekit on virtual time
from check import check_safety, first_requests, read_bodies
from plan import cost_of
from scheduler import MS, SECOND
from world import Plan, SimJob, Workflow, World

from throttlekit import Concurrency, Share, StoreUnavailable, TokenBucket
from throttlekit._core.storage_keys import bucket_name

AT_ONCE_US = 10 * MS
"""Jobs whose first requests or grants are within this time of each other have no defined order."""


class Act(NamedTuple):
    """An action at a time, for `Plan.faults`."""

    at_us: int
    begin: Callable[[World], object]
    kind: str = ""


@dataclass
class Scenario:
    """
    A plan and how long it runs. The numbers are those of its first limit, from *begin* to *seconds* of the run.
    """

    plan: Plan
    seconds: float
    rate: float
    begin: float = 3
    key: str = ""
    more: Callable[[Run], dict[str, float]] = lambda run: {}
    until: float = 0
    """When the run ends, if that is later."""


SCENARIOS: dict[str, Callable[[random.Random], Scenario]] = {}


def scenario(make: Callable[[random.Random], Scenario]) -> Callable[[random.Random], Scenario]:
    SCENARIOS[make.__name__] = make
    return make


# The numbers of a run


class Run:
    def __init__(self, found: Scenario) -> None:
        self.scenario, self.world = found, World(found.plan)
        run_logged(self.world, round(max(found.seconds, found.until) * SECOND))
        self.jobs = {job.id: job for job in found.plan.jobs}
        self.bodies = list(read_bodies(self.world.history, found.plan))
        self.began = {body.job: body.at_us for body in reversed(self.bodies)}
        self.granted = {
            (each.job, bucket): each.at_us
            for each in self.world.history
            if each.what == "granted"
            for bucket in each.detail["buckets"]
        }
        self.first = {id: (rank, at_us) for rank, (id, at_us) in enumerate(first_requests(self.world.history).items())}

    def of(self, limit: Any, begin: float, end: float, key: str = "") -> list[tuple[int, int, SimJob]]:
        """Return when *limit* granted jobs that ran, the cost, and the job, in the order of the grants."""
        bucket = bucket_name(limit.name, key, limit.fingerprint)
        found = [
            (self.granted[body.job, bucket], each.cost, self.jobs[body.job])
            for body in self.bodies
            for each in body.charged
            if each.bucket == bucket
        ]
        return sorted((each for each in found if begin * SECOND <= each[0] < end * SECOND), key=lambda each: each[0])

    def use(self, limit: Any, rate: float, begin: float, end: float, key: str = "") -> float:
        """Return how much of *rate* units per second was granted from *begin* to *end*."""
        return sum(cost for _, cost, _ in self.of(limit, begin, end, key)) / (rate * (end - begin))

    def numbers(self, limit: Any, rate: float, begin: float, end: float, key: str = "") -> dict[str, float]:
        granted = self.of(limit, begin, end, key)
        jobs = [job for *_, job in granted]
        late, worst = self._out_of_order(granted)
        count = max(1, len(jobs))
        return {
            "use": self.use(limit, rate, begin, end, key),
            "decisions": sum(job.decisions for job in jobs) / count,
            "deliveries": sum(job.deliveries for job in jobs) / count,
            "requests": sum(server.requests for server in self.world.servers) / max(1, len(self.began)),
            "late %": 100 * late / count,
            "worst": worst,
        }

    def _out_of_order(self, granted: list[tuple[int, int, SimJob]]) -> tuple[int, int]:
        """Return how many jobs were granted after a later job of their tenant, and by how many positions at most."""
        late, worst = 0, 0
        for tenant in {job.kwargs.get("tenant") for *_, job in granted}:
            some = [(at_us, *self.first[job.id]) for at_us, _, job in granted if job.kwargs.get("tenant") == tenant]
            ranks = {rank: position for position, rank in enumerate(sorted(rank for _, rank, _ in some))}
            passed, latest_us = 0, 0  # the jobs that were granted some time before, and the latest of their requests
            for position, (at_us, rank, requested_us) in enumerate(some):
                while some[passed][0] < at_us - AT_ONCE_US:
                    latest_us, passed = max(latest_us, some[passed][2]), passed + 1
                ahead = latest_us > requested_us + AT_ONCE_US
                late, worst = late + ahead, max(worst, abs(ranks[rank] - position) if ahead else 0)
        return late, worst

    def waits(self, tenant: str, percent: int = 99) -> float:
        """Return within how many seconds *percent* of the tenant's jobs began."""
        some = [job for job in self.jobs.values() if job.kwargs["tenant"].startswith(tenant)]
        waits = sorted((self.began.get(job.id, 99 * SECOND) - job.sent_us) / SECOND for job in some)
        return waits[len(waits) * percent // 100 - 1]

    @property
    def left(self) -> int:
        return sum(job.id not in self.began and not job.lost for job in self.jobs.values())


def measure(name: str, seed: int = 1) -> dict[str, Any]:
    """Return the numbers of a scenario. "broken" has the violations of the first two promises."""
    found = SCENARIOS[name](random.Random(seed))
    run = Run(found)
    numbers = run.numbers(found.plan.limits[0], found.rate, found.begin, found.seconds, found.key)
    numbers |= found.more(run)
    return {
        **{what: round(number, 3) for what, number in numbers.items()},
        "broken": check_safety(run.world, run.bodies)[:5],
    }


# Plans


def plan(jobs: list[SimJob], *limits: Any, processes: int = 8, threads: int = 8, **more: Any) -> Plan:
    options: dict[str, Any] = {"style": "holds", "leg": (MS // 2, MS // 2), "redelivered_in": 30 * SECOND, **more}
    return Plan(1, options.pop("style"), limits, jobs, processes, threads, **options)


def jobs(count: int, every_us: int = 100, body_us: int = 2 * MS, **more: Any) -> list[SimJob]:
    """Return *count* jobs, sent one after the other. Functions in *more* are called with each job's number."""

    def make(number: int) -> SimJob:
        found = {name: what(number) if callable(what) else what for name, what in more.items()}
        kwargs = {name: found.pop(name) for name in ("key", "tenant", "cost", "workflow") if name in found}
        body = found.pop("body", body_us)
        return SimJob("", number * every_us, body, kwargs, **found)

    return [make(number) for number in range(count)]


def in_order_sent(*some: list[SimJob]) -> list[SimJob]:
    """Return all jobs in the order in which they are sent, with ids in the same order."""
    found = sorted((job for each in some for job in each), key=lambda job: job.sent_us)
    for number, job in enumerate(found):
        job.id = f"job{number:05d}"
    return found


def backlog(
    rate: float,
    burst: int,
    *acts: Act,
    seconds: float = 20,
    begin: float = 3,
    until: float = 0,
    more: Callable[[Run], dict[str, float]] = lambda run: {},
    **options: Any,
) -> Scenario:
    """Return a scenario with more jobs than may run in *seconds*, all sent at once."""
    limit = TokenBucket("partner", (round(rate), 1), burst=burst)
    some = in_order_sent(jobs(int(rate * seconds * 1.2) + burst))
    return Scenario(plan(some, limit, faults=list(acts), **options), seconds, rate, begin, more=more, until=until)


def at(seconds: float, do: Callable[[World], object]) -> Act:
    return Act(round(seconds * SECOND), do)


def lost(answers: float = 0, wakes: float = 0, *, from_s: float = 0) -> Act:
    """Lose these parts of the answers and of the wake messages from *from_s* on."""

    def begin(world: World) -> None:
        for server in world.servers:
            server.answers_lost, server.wakes_lost = answers, wakes

    return at(from_s, begin)


def of_number(world: World, numbers: range) -> Iterator[Any]:
    return (each for each in world.living if each.number in numbers)


def hang(seconds: float, numbers: range, for_s: float) -> Act:
    def begin(world: World) -> None:
        for process in of_number(world, numbers):
            process.hangs_until = world.now + round(for_s * SECOND)
            world.at(process.hangs_until, world.broker.hand_out)

    return at(seconds, begin)


def kill(seconds: float, numbers: range, back_s: float | None = None) -> Act:
    def begin(world: World) -> None:
        for process in [*of_number(world, numbers)]:
            process.kill()
            if back_s is not None:
                world.at(world.now + round(back_s * SECOND), world.start, process.number)

    return at(seconds, begin)


def step(seconds: float, by_s: float) -> Act:
    """Step the clocks of the stores by *by_s*."""

    def begin(world: World) -> None:
        for server in world.servers:
            server.offset += round(by_s * SECOND)
            world.note("clock steps" if by_s > -60 else "clock far back", server=server)

    return at(seconds, begin)


def flush(seconds: float) -> Act:
    return at(seconds, lambda world: [server.lose_state() for server in world.servers])


def pause(seconds: float, for_s: float) -> Act:
    """Pause each limit, as an operator does, from a running process."""

    def pause_all(process: Any) -> None:
        with suppress(StoreUnavailable):
            for limit in process.world.plan.limits:
                process.limiter.pause(limit, for_s)

    def begin(world: World) -> None:
        for process in [each for each in world.living if world.now >= each.hangs_until][:1]:
            world.scheduler.spawn(process, pause_all, process)

    return at(seconds, begin)


# One limit, a backlog


def rates(name: str, rate: float, burst: int, *acts: Act, **options: Any) -> None:
    SCENARIOS[name] = lambda choose: backlog(rate, burst, *acts, **options)


rates("slow1", 1, 1, seconds=60)
rates("r10b1", 10, 1)
rates("r50b1", 50, 1)
rates("r50b10", 50, 10)
rates("legs_b1", 50, 1, leg=(MS // 2, 20 * MS))
rates("legs_b10", 50, 10, leg=(MS // 2, 20 * MS))
rates("fast1000", 1000, 100, seconds=6, processes=16)
rates("lost_bells", 50, 10, lost(wakes=0.05))
rates("no_bells", 50, 10, lost(wakes=1))
rates("lost_answers", 50, 10, lost(answers=0.02))
rates("many_processes", 1, 1, seconds=120, processes=200, threads=1)
rates("clock_back", 50, 10, step(6, -1), step(12, 60))
rates("flushed", 50, 10, flush(8), until=40, more=lambda run: {"left": run.left})
rates(
    "rolling",
    50,
    10,
    *(kill(5 + n, range(n, n + 1), 2) for n in range(30)),
    seconds=35,
    processes=50,
    threads=4,
    redelivered_in=10 * SECOND,
)


def use(begin: float, end: float) -> Callable[[Run], dict[str, float]]:
    """Add the use from *begin* to *end*, the time just after a fault, to the numbers."""
    return lambda run: {"after": run.use(run.scenario.plan.limits[0], run.scenario.rate, begin, end)}


rates("clock_back_and_hung", 50, 1, step(8, -600), hang(8, range(4), 60), seconds=25, more=use(9, 13))
rates("dead_for_good", 50, 10, kill(10, range(4)), seconds=30, redelivered_in=10 * SECOND, more=use(10, 12))
rates("hung", 1, 1, hang(10, range(4), 60), seconds=90, more=use(10, 30))
rates("paused", 50, 10, pause(8, 6), seconds=25, begin=14, more=use(14, 16))


@scenario
def paused_slow(choose: random.Random) -> Scenario:
    """At 1/s, the bucket fills in a pause, and many jobs are sent when it ends."""
    limit = TokenBucket("partner", "1/s", burst=20)
    late = jobs(100, 4 * MS)
    for job in late:
        job.sent_us += 34_900 * MS
    return Scenario(plan(in_order_sent(jobs(40), late), limit, faults=[pause(5, 30)]), 100, 1, 35)


@scenario
def costs(choose: random.Random) -> Scenario:
    """Jobs that cost 1 to 10 of a burst of 10."""
    limit = TokenBucket("partner", "50/s", burst=10, cost=cost_of)
    return Scenario(plan(in_order_sent(jobs(350, cost=lambda n: choose.randint(1, 10))), limit), 20, 50)


@scenario
def expiring(choose: random.Random) -> Scenario:
    """Jobs are sent four times as fast as they may run, each with a `max_wait` of 3 s."""
    limit = TokenBucket("partner", "50/s", burst=10)
    return Scenario(plan(in_order_sent(jobs(200 * 20, SECOND // 200, max_wait=3)), limit), 20, 50, 5)


@scenario
def keys(choose: random.Random) -> Scenario:
    """100 keys of 1/s each, all with a backlog."""
    limit = TokenBucket("own", "1/s", burst=1, key="{key}")
    some = in_order_sent(jobs(100 * 20, 50, key=lambda n: f"k{n % 100}"))

    def more(run: Run) -> dict[str, float]:
        each = [run.numbers(limit, 1, 5, 15, f"k{number}") for number in range(100)]
        uses = [found["use"] for found in each]
        return {
            "use": sum(uses) / 100,
            "worst key": min(uses),
            "decisions": sum(found["decisions"] for found in each) / 100,
            "late %": max(found["late %"] for found in each),
        }

    return Scenario(plan(some, limit, threads=16), 15, 1, 5, more=more)


# Tenants


SHARED = TokenBucket("partner", "50/s", burst=10, share=Share("{tenant}"))


def flooded(choose: random.Random, **more: Any) -> Scenario:
    heavy = jobs(1200, tenant="heavy")
    light = jobs(60, 0, tenant=lambda n: f"light{n % 10}")
    for job in light:
        job.sent_us = choose.randrange(2 * SECOND, 18 * SECOND)
    return Scenario(
        plan(in_order_sent(heavy, light), SHARED, **more), 20, 50, more=lambda run: {"light p99": run.waits("light")}
    )


@scenario
def flood(choose: random.Random) -> Scenario:
    """A heavy tenant has a backlog, and the jobs of ten light tenants are sent one by one."""
    return flooded(choose)


@scenario
def expiring_tenant(choose: random.Random) -> Scenario:
    """Two equal tenants. The jobs of one are sent three times as fast as they may run, and wait for at most 3 s."""
    brief, patient = (
        jobs(75 * 25, SECOND // 75, tenant=tenant, max_wait=wait) for tenant, wait in (("brief", 3), ("patient", None))
    )

    def more(run: Run) -> dict[str, float]:
        granted = [job for *_, job in run.of(SHARED, 8, 25) if job.kwargs["tenant"] == "brief"]
        return {"brief use": len(granted) / (25 * 17)}

    return Scenario(plan(in_order_sent(brief, patient), SHARED), 25, 50, 8, more=more)


@scenario
def classes(choose: random.Random) -> Scenario:
    """Strict priorities: jobs of the first class are granted before a backlog of the second."""
    share = Share("{tenant}", weight={"high": 2}, strict=True)
    high = jobs(150, 0, tenant="high")
    for job in high:
        job.sent_us = choose.randrange(2 * SECOND, 18 * SECOND)
    limit = TokenBucket("partner", "50/s", burst=10, share=share)
    some = in_order_sent(jobs(1200, tenant="low"), high)
    return Scenario(plan(some, limit), 20, 50, more=lambda run: {"high p99": run.waits("high")})


@scenario
def zipf(choose: random.Random) -> Scenario:
    """300 tenants send twice as many jobs as may run."""
    some = jobs(2000, SECOND // 100, tenant=lambda n: f"t{min(299, int(300 ** choose.random()) - 1)}")
    return Scenario(plan(in_order_sent(some), SHARED), 20, 50, 5)


# Slots


@scenario
def slots(choose: random.Random) -> Scenario:
    limit = Concurrency("slots", 8, lease=30)
    return Scenario(plan(in_order_sent(jobs(1800, body=lambda n: choose.randint(80, 120) * MS)), limit), 20, 80)


@scenario
def one_slot(choose: random.Random) -> Scenario:
    return Scenario(plan(in_order_sent(jobs(150, body_us=200 * MS)), Concurrency("slots", 1, lease=30)), 20, 5)


@scenario
def workflows(choose: random.Random) -> Scenario:
    """60 workflows of three jobs, all queued at once, hold two slots."""
    limit = Concurrency("flows", 2, lease=3600, held_by="{workflow}")
    some = in_order_sent(jobs(180, body_us=200 * MS, workflow=lambda n: f"w{n % 60}"))
    flows = [Workflow(limit, 3) for _ in range(60)]
    for number, job in enumerate(some):
        job.workflow = flows[number % 60]
    return Scenario(
        plan(some, limit, processes=4, threads=4),
        20,
        1,
        0,
        more=lambda run: {"left": run.left, "seconds": max(run.began.values()) / SECOND},
    )


@scenario
def rate_and_slots(choose: random.Random) -> Scenario:
    """20/s, and four slots that bodies of 0.15 s hold: the rate binds, and the slots almost do."""
    rate, four = TokenBucket("rate", "20/s", burst=2), Concurrency("slots", 4, lease=30)
    some = in_order_sent(jobs(500, body=lambda n: choose.randint(120, 180) * MS))
    return Scenario(plan(some, rate, four), 20, 20, 5)


# Several limits


def two(**more: Any) -> Scenario:
    """A limit for all jobs and one for each key: one key has more jobs than its limit admits."""
    shared, own = TokenBucket("shared", "50/s", burst=10), TokenBucket("own", "10/s", burst=5, key="{key}")
    heavy = jobs(40 * 25, SECOND // 40, key="k0", tenant="k0")
    light = [jobs(8 * 25, SECOND // 8, key=f"k{key}", tenant=f"k{key}") for key in range(1, 4)]
    none = jobs(30 * 25, SECOND // 30, tenant="none", limits=(shared,))

    def heavy_key(run: Run) -> dict[str, float]:
        found = run.numbers(own, 10, 8, 25, "k0")
        return {"heavy key": found["use"], "heavy late %": found["late %"], "heavy decisions": found["decisions"]}

    return Scenario(plan(in_order_sent(heavy, *light, none), shared, own, **more), 25, 50, 8, more=heavy_key)


@scenario
def two_limits(choose: random.Random) -> Scenario:
    return two()


@scenario
def two_stores(choose: random.Random) -> Scenario:
    """As `two_limits`, with the keys' limits in another store."""
    return two(stores=2)


@scenario
def fast_and_slow(choose: random.Random) -> Scenario:
    """A fast limit with a small burst, and one with a burst of 1, for which half of the jobs are granted early."""
    fast, slow = TokenBucket("fast", "1000/s", burst=10), TokenBucket("slow", "200/s", burst=1)
    some = in_order_sent(jobs(5000, limits=lambda n: (fast,) if n % 4 else (fast, slow)))
    return Scenario(plan(some, fast, slow), 4, 1000, 1)


# Jobs that are redelivered after a delay


def by_delays(
    name: str, lateness: float, burst: int, *, held: int = 0, rate: int = 50, new: float = 0, left: float = 1.2
) -> None:
    """
    Add a scenario whose jobs are redelivered after a delay.

    Args:
        lateness: How many seconds late a job is redelivered at most.
        held: How many jobs are held by their processes for each job that is redelivered.
        new: The part of the rate that is sent as new jobs all the time, in addition to a backlog.
    """

    def make(choose: random.Random) -> Scenario:
        limit = TokenBucket("partner", (rate, 1), burst=burst)
        first = jobs(rate * (10 if new else 24), style=lambda n: "holds" if n % (held + 1) else "")
        more = jobs(int(20 * rate * new), round(SECOND / (rate * new)) if new else 0)
        return Scenario(plan(in_order_sent(first, more), limit, style="delays", lateness=lateness), 20, rate, 5)

    SCENARIOS[name] = make


def slots_by_delays(name: str, lateness: float, held: int) -> None:
    """Add the same scenario for slots, which bodies of 0.1 s hold."""

    def make(choose: random.Random) -> Scenario:
        some = jobs(
            80 * 24, body=lambda n: choose.randint(80, 120) * MS, style=lambda n: "holds" if n % (held + 1) else ""
        )
        limit = Concurrency("slots", 8, lease=30)
        return Scenario(plan(in_order_sent(some), limit, style="delays", lateness=lateness), 20, 80, 5)

    SCENARIOS[name] = make


for _late in (0.05, 2.1):
    for _burst in (10, 1):
        by_delays(f"late_{_late}_b{_burst}", _late, _burst)
        by_delays(f"late_{_late}_b{_burst}_mixed", _late, _burst, held=1)
        by_delays(f"late_{_late}_b{_burst}_few", _late, _burst, held=9)
        by_delays(f"late_{_late}_b{_burst}_over", _late, _burst, new=1.2)
        by_delays(f"late_{_late}_b{_burst}_slow", _late, _burst, rate=5)
    for _kind, _held in (("", 0), ("_mixed", 1), ("_few", 9)):
        slots_by_delays(f"late_slots_{_late}{_kind}", _late, _held)


@scenario
def late_two_limits(choose: random.Random) -> Scenario:
    return two(style="delays")


@scenario
def late_two_stores(choose: random.Random) -> Scenario:
    return two(style="delays", stores=2)


rates("late_paused", 50, 10, pause(8, 6), seconds=25, begin=14, style="delays")


@scenario
def late_flood(choose: random.Random) -> Scenario:
    return flooded(choose, style="delays")


def losing(name: str, burst: int) -> None:
    """Add a scenario in which three of four denied jobs are never redelivered."""

    def make(choose: random.Random) -> Scenario:
        limit = TokenBucket("partner", "50/s", burst=burst)
        some = in_order_sent(jobs(1000, lost_if_denied=lambda n: n % 4 > 0))

        def more(run: Run) -> dict[str, float]:
            return {"left": run.left, "seconds": max(run.began.values()) / SECOND}

        return Scenario(plan(some, limit, style="delays"), 60, 50, 0, more=more)

    SCENARIOS[name] = make


losing("late_lost_b10", 10)
losing("late_lost_b1", 1)


# Everything at once


def everything(name: str, seed: int, stores: int) -> None:
    """
    Add a scenario with random faults in the first 25 s: processes are killed and hang, wake messages and answers are
    lost, the stores lose their state, their clocks step, and the limits are paused. Each job runs in the end.
    """

    def make(_: random.Random) -> Scenario:
        choose = random.Random(seed)
        limit, other = TokenBucket("partner", "50/s", burst=10, cost=cost_of), TokenBucket("own", "30/s", burst=5)
        some = jobs(
            600,
            0,
            cost=lambda n: choose.randint(1, 3),
            limits=lambda n: (limit, other) if choose.random() < 0.3 else (limit,),
        )
        for job in some:
            job.sent_us = choose.randrange(13 * SECOND)
        acts = [lost(0.02, 0.02), lost(from_s=25)]
        for _ in range(12):
            when, process = choose.uniform(2, 16), choose.randrange(8)
            one = range(process, process + 1)
            acts.append(
                choose.choice(
                    (
                        kill(when, one, 2),
                        hang(when, one, 3),
                        flush(when),
                        step(when, choose.uniform(-2, 2)),
                        pause(when, 2),
                    )
                )
            )
        found = plan(in_order_sent(some), limit, other, stores=stores, faults=acts, redelivered_in=5 * SECOND)
        return Scenario(found, 120, 50, 0, more=lambda run: {"left": run.left})

    SCENARIOS[name] = make


for _seed in range(8):
    for _stores in (1, 2):
        everything(f"everything_{_seed}_{_stores}", _seed, _stores)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the scenarios to run; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print only the names")
    options = parser.parse_args()
    for name in options.names or SCENARIOS:
        print(name if options.list else json.dumps({"name": name, **measure(name, options.seed)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
