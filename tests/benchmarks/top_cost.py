"""
The cost of `throttlekit top` for the server. Prints a table.

    python tests/benchmarks/top_cost.py [--keys 1000000] [--quick]

A new server gets --keys keys of one limit, each with a bucket, a third with a waitlist, and all in reports to the fleet
as workers send them. Then `throttlekit top --once` runs as for an operator. The server's time is its CPU time (INFO
cpu), including the cost of the connection. The figures are medians. --quick runs each command once, and judges only
that it succeeds.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.flood.meters import cpu_of_redis
from support.reports.command import parser_of
from support.servers.processes import redis_server
from throttlekit import TokenBucket
from throttlekit._core.serialize import plain
from throttlekit._core.storage_keys import bucket_name, limit_id, wait_names
from throttlekit.fleet.activity import _REPORT, KEYS

LIMIT = TokenBucket("per-tenant", "10/minute", burst=10, key="{tenant}")
AT_ONCE = 100
ROUNDS = 5
WAYS = [(), ("--filter", "tenant"), ("--sort", "denied"), ("--sort", "use"), ("--limit", "500")]


def fill(client: Any, keys: int) -> None:
    """Add *keys* buckets, every third with a waitlist, and reports of 100 keys each."""
    seconds, micros = client.time()
    now_us = seconds * 1_000_000 + micros
    name = limit_id(LIMIT.name, LIMIT.fingerprint)
    definition = json.dumps({**plain(LIMIT, "", 0), "keyed": True})
    script = client.register_script(_REPORT)
    for begin in range(0, keys, AT_ONCE):
        reported, pipeline = [], client.pipeline(transaction=False)
        for tenant in range(begin, min(keys, begin + AT_ONCE)):
            bucket = bucket_name(LIMIT.name, str(tenant), LIMIT.fingerprint)
            waits = tenant % 3 == 0
            last_us = now_us + 600_000_000 + tenant * 1000
            pipeline.set(bucket, now_us + 60_000_000 * waits, px=900_000)
            if waits:
                record = wait_names(bucket)[0]
                pipeline.hset(record, mapping={"epoch": "ab", "n": 1})
                pipeline.pexpire(record, 900_000)
            reported.append((bucket, waits, last_us))
        pipeline.execute()
        report = {
            "process": ["", "worker:1 dramatiq 400"],
            "limits": [[name, definition]],
            "keys": [[bucket, 5, 3 * waits, last_us * waits] for bucket, waits, last_us in reported],
            "counts": [
                [f"a {name}", 500],
                [f"u {name}", 500],
                *([f"e {bucket}", 3] for bucket, waits, _ in reported if waits),
            ],
            "waits": [[f"w {bucket}", 1_000_000] for bucket, waits, _ in reported if waits],
            "rates": [],
            "jobs": [],
        }
        script(keys=KEYS, args=[json.dumps(report)])


def measure(client: Any, url: str, times: int, *options: str) -> tuple[float, float, float]:
    """Return the medians for `top --once`: the server's CPU, the time of the whole command, and that of its queries."""
    from throttlekit.fleet.snapshot import look
    from throttlekit_cli.store import open_store

    command = [sys.executable, "-m", "throttlekit_cli", "top", "--once", "--url", url, *options]
    served, lasted, queried = [], [], []
    for _ in range(times):
        before, began = cpu_of_redis(client), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        lasted.append(time.perf_counter() - began)
        served.append(1000 * (cpu_of_redis(client) - before))
        with contextlib.closing(open_store(url)) as store:
            began = time.perf_counter()
            look(store)
            queried.append(time.perf_counter() - began)
    return statistics.median(served), statistics.median(lasted), statistics.median(queried)


def main() -> int:
    parser = parser_of(__doc__, quick="small: is it all there?")
    parser.add_argument("--keys", type=int, default=1_000_000)
    options = parser.parse_args()
    with redis_server() as base:
        url = f"{base}/0"
        with redis.Redis.from_url(url) as client:
            began = time.perf_counter()
            fill(client, options.keys)
            filled = time.perf_counter() - began
            reports = client.info("commandstats")["cmdstat_evalsha"]
            memory = sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter("tk1:{fleet}:*"))
            print(f"{options.keys:,} keys, {client.dbsize():,} names in the store, filled in {filled:.0f} s.")
            print(
                f"What the fleet was told takes {memory / 1e6:.1f} MB; a report of {AT_ONCE} keys takes the server "
                f"{reports['usec_per_call'] / 1000:.2f} ms.\n"
            )
            print("| `throttlekit top --once` | server's CPU, ms | questions, ms | whole command, s |")
            print("|---|---|---|---|")
            ok = True
            for arguments in WAYS[:2] if options.quick else WAYS:
                served, lasted, queried = measure(client, url, 1 if options.quick else ROUNDS, *arguments)
                ok &= (served < 50 and lasted < 1) or arguments == ("--limit", "500")
                print(f"| {' '.join(arguments) or '(as it is)'} | {served:.1f} | {queried * 1000:.1f} | {lasted:.2f} |")
    if not options.quick:
        print("\nWithin the budget." if ok else "\nOver the budget of 50 ms of the server, and 1 s in all.")
    return 0 if ok or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
