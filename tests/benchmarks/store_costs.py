"""
The cost of a limit for the server: memory per tenant, and CPU per decision, by algorithm. Prints two tables.

    python tests/benchmarks/store_costs.py [--tenants 200000] [--into docs/store.md]

Every figure is from one run on one new server. CPU is a ratio of medians of interleaved rounds.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.flood.meters import cpu_of_redis
from support.reports.command import parser_of
from support.servers.processes import redis_server
from support.servers.stores import Listed
from support.waiting import wait_until
from throttlekit import Adapt, Concurrency, FixedWindow, LeakyBucket, Limit, SlidingLog, SlidingWindow, TokenBucket
from throttlekit._core.answer import WITHOUT_JOB, Caller, Requester
from throttlekit._core.storage_keys import bucket_name, holder_name
from throttlekit.stores import Slowing, StoreClaim
from throttlekit.stores.redis import RedisStore

CHUNK = 2000
ROUNDS = 15
CALLS = 3000

ONE_OF_EACH: list[Limit] = [
    TokenBucket("partner-api", "1000000/s", burst=100_000),
    LeakyBucket("partner-api", "1000000/s"),
    FixedWindow("partner-api", "1000000/minute"),
    SlidingWindow("partner-api", "1000000/minute"),
    SlidingLog("partner-api", "100000/minute"),
]
"""They grant every call below. After one denial, jobs would wait, and each later call would cost more."""


class Recorder(Listed):
    """Returns the command of a decision, and sends nothing."""

    def command(self, limits: Sequence[Limit], tenant: str, cost: int = 1) -> tuple[Any, ...]:
        claims = []
        for limit in limits:
            charge = limit.bind(cost, 0, holder_name(str(uuid.uuid4()), secrets.token_hex(6), time.time_ns() // 1000))
            bucket = bucket_name(limit.name, tenant, limit.fingerprint)
            claims.append(StoreClaim(bucket, charge, cost))
        self.claims = len(claims)
        self.decide(claims, Requester(Caller.JOB, str(uuid.uuid4()), "owner"))
        return self.sent

    def _run(self, script: Any, arguments: list[Any]) -> Any:
        self.sent = ("EVALSHA", script.sha, *arguments)
        self.texts = {*getattr(self, "texts", ()), script.text}
        return b"0 0 1 1;" + b" ".join([b"0 1"] * self.claims) + b";;;;"


def memory_of(client: Any, write: Callable[[Any, int], None], tenants: int) -> float:
    """Bytes of `used_memory` per tenant, by writing *tenants* of them into an empty database."""
    client.flushall()
    before = client.info("memory")["used_memory"]
    for start in range(0, tenants, CHUNK):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + CHUNK, tenants)):
            write(pipeline, number)
        pipeline.execute()
    return (client.info("memory")["used_memory"] - before) / tenants


def memory_table(client: Any, recorder: Recorder, tenants: int) -> Iterator[str]:
    def tenant(number: int) -> str:
        return f"tenant:{number:07}"

    def name(number: int) -> str:
        return bucket_name("partner-api", tenant(number), ONE_OF_EACH[0].fingerprint)

    def integer(pipeline: Any, number: int) -> None:
        pipeline.set(name(number), 1_795_169_879_209_974, px=600_000)

    def requested(limit: Limit, cost: int = 1) -> Callable[[Any, int], None]:
        return lambda pipeline, number: pipeline.execute_command(*recorder.command([limit], tenant(number), cost))

    def holding(limit: Limit, holders: int) -> Callable[[Any, int], None]:
        def write(pipeline: Any, number: int) -> None:
            for _ in range(holders):
                pipeline.execute_command(*recorder.command([limit], tenant(number)))

        return write

    hundred = SlidingLog("partner-api", "100/d")
    few = max(1, tenants // 50)  # the limits are per day, so that none expires while the others are written
    rows: list[tuple[str, Callable[[Any, int], None], int]] = [
        ("one integer string with a time to live, the same key", integer, tenants),
        ("`TokenBucket`", requested(TokenBucket("partner-api", "100/d", burst=20)), tenants),
        ("`LeakyBucket`", requested(LeakyBucket("partner-api", "100/d")), tenants),
        ("`FixedWindow`", requested(FixedWindow("partner-api", "100/d")), tenants),
        ("`SlidingWindow`", requested(SlidingWindow("partner-api", "100/d")), tenants),
        ("`SlidingLog`, 1 unit used of 100", requested(hundred), tenants),
        ("`SlidingLog`, 100 units used of 100 (packed)", requested(hundred, 100), few),
        ("`Concurrency`, 1 slot held, by a job with an id of 36 characters", holding(Concurrency("db", 8), 1), few),
        ("`Concurrency`, 8 slots held", holding(Concurrency("db", 8), 8), few),
        ("`Concurrency`, 100 slots held", holding(Concurrency("db", 100), 100), few),
        ("`TokenBucket`, and 100 jobs that wait", holding(TokenBucket("partner-api", "1/d"), 101), few),
    ]
    counted = f"{tenants} keys; {few} of the logs of 100 and of the slots"
    yield f"| state of one key | bytes of `used_memory` ({counted}) |"
    yield "|---|---|"
    for label, write, count in rows:
        yield f"| {label} | {memory_of(client, write, count):.0f} |"
    client.flushall()


def slow_down(url: str, limit: Limit, tenant: str) -> None:
    """Slow *limit* down for a day, and wait until it grants again."""
    assert limit.adapt is not None
    with contextlib.closing(RedisStore(url)) as store:
        claim = StoreClaim(bucket_name(limit.name, tenant, limit.fingerprint), limit.bind(1, 0))
        store.slow([Slowing(claim, limit.adapt.refusal(limit.amount, limit.period_us, None))])
        wait_until(lambda: store.decide([claim], WITHOUT_JOB).allowed, description="the limit grants again")


def cpu_table(client: Any, recorder: Recorder, url: str) -> Iterator[str]:
    buckets = [TokenBucket(f"partner-{i}", "1000000/s", burst=100_000) for i in range(3)]
    denied, queued = TokenBucket("denied", "1/d"), LeakyBucket("queued", "1/d", queue=1000)
    adapting, slowed = (
        TokenBucket(name, "1000000/s", burst=100_000, adapt=Adapt("1000/s", span=86_400)) for name in ("adapts", "fell")
    )
    kinds: dict[str, Sequence[Limit]] = {
        "one `TokenBucket`": buckets[:1],
        "one with `adapt=`": [adapting],
        "one with `adapt=` that is slowed down": [slowed],
        "one `TokenBucket`, denied: thousands wait": [denied],
        "one `LeakyBucket`, denied: its queue is full": [queued],
        "three of them": buckets,
        "one `FixedWindow`": ONE_OF_EACH[2:3],
        "one `FixedWindow` of a time zone": [FixedWindow("zoned", "1000000/d", tz="Europe/Berlin")],
        "one `SlidingWindow`": ONE_OF_EACH[3:4],
        "one `SlidingLog` of 100, denied: thousands wait": [SlidingLog("hundred", "100/s")],
        "one `SlidingLog` of 100 000": ONE_OF_EACH[4:],
        "one `Concurrency`, allowed": [Concurrency("many", 1_000_000)],
        "one `Concurrency` of 8, denied": [Concurrency("few", 8)],
        "five limits of five algorithms": ONE_OF_EACH,
    }
    slow_down(url, slowed, "k")
    commands = {label: [recorder.command(limits, "k") for _ in range(CALLS)] for label, limits in kinds.items()}
    for text in recorder.texts:
        client.script_load(text)
    spent: dict[str, list[float]] = {label: [] for label in kinds}
    for _ in range(ROUNDS):
        for label, commands_of_label in commands.items():
            pipeline = client.pipeline(transaction=False)
            for command in commands_of_label:
                pipeline.execute_command(*command)
            before = cpu_of_redis(client)
            pipeline.execute()
            spent[label].append(cpu_of_redis(client) - before)
    base = statistics.median(spent["one `TokenBucket`"])
    yield "| a decision on | server CPU, ratio of medians | least and most |"
    yield "|---|---|---|"
    for label, seconds in spent.items():
        ratios = [each / base for each in seconds]
        yield f"| {label} | {statistics.median(ratios):.2f} | {min(ratios):.2f} … {max(ratios):.2f} |"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tenants", type=int, default=200_000)
    parser.add_argument("--into", type=Path, help="replace the text between the two marks of the file")
    options = parser.parse_args()
    with redis_server() as url:
        client = redis.Redis.from_url(url)
        recorder = Recorder(url)
        recorder.command(ONE_OF_EACH, "k")
        for limit in (*ONE_OF_EACH, Concurrency("db", 8)):
            recorder.command([limit], "k")
        for text in recorder.texts:
            client.script_load(text)
        server = client.info("server")
        lines = [f"Redis {server['redis_version']}, {server['os'].split()[0]}, {server['arch_bits']} bits.", ""]
        lines += [*memory_table(client, recorder, options.tenants), "", *cpu_table(client, recorder, url)]
        client.close()
    print("\n".join(lines))
    if options.into:
        text = options.into.read_text("utf-8")
        begin, end = "<!-- measured by store_costs.py -->", "<!-- end of measured -->"
        head, rest = text.split(begin)
        options.into.write_text(f"{head}{begin}\n{chr(10).join(lines)}\n{end}{rest.split(end)[1]}", "utf-8")


if __name__ == "__main__":
    main()
