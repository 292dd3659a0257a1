"""
The cost of a view of `throttlekit web` for the store, by its own COMMANDSTATS. Prints a table.

    python tests/benchmarks/web_cost.py [--keys 100000] [--limits 100] [--quick]

A new server gets --keys keys of one limit, each with a bucket, a third with a waitlist, all reported by workers, and 99
more limits. Each view is read as by a browser, without the cache of the previous view. The server measures the time of
each command; the time of a script includes the commands that it calls, so only commands that were sent count. The
figures are medians. --quick reads each view once with few keys, and judges nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from top_cost import LIMIT, fill

from support.reports.command import parser_of
from support.servers.processes import redis_server
from throttlekit import Concurrency, Control, Job, Limiter, TokenBucket
from throttlekit._core.storage_keys import limit_id
from throttlekit.stores.redis import RedisStore
from throttlekit_web import Request, Site

ROUNDS = 9
BUDGET_MS = 5.0


class Counting(RedisStore):
    """A store that counts the commands that it sends; a peek is one EVALSHA."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=60)
        self.sent: Counter[str] = Counter()

    def commands(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        self.sent.update(str(each[0]) for each in commands)
        return super().commands(commands)

    def decide(self, claims: Any, requester: Any, now_us: int | None = None, *, attempt: str = "") -> Any:
        self.sent["EVALSHA"] += 1
        return super().decide(claims, requester, now_us, attempt=attempt)


def served(client: Any, store: Counting, site: Site, path: str) -> tuple[Counter[str], float]:
    """Return the commands of one view, and the milliseconds that the server needed for them."""
    site._reader.forget()
    client.config_resetstat()
    store.sent.clear()
    response = site.handle(Request(path=path.partition("?")[0], query=path.partition("?")[2]))
    if response.status != 200:
        raise SystemExit(f"{path}: {response.body.decode()}")
    stats = client.info("commandstats")
    took = sum(count * stats[f"cmdstat_{name.lower()}"]["usec_per_call"] for name, count in store.sent.items())
    return Counter(store.sent), took / 1000


def main() -> int:
    parser = parser_of(__doc__, quick="small: is it all there?")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--limits", type=int, default=100)
    options = parser.parse_args()
    keys, rounds = (2_000, 1) if options.quick else (options.keys, ROUNDS)
    with redis_server() as base:
        url = f"{base}/0"
        with redis.Redis.from_url(url) as client, Limiter(url) as limiter, Control(url) as control:
            fill(client, keys)
            limits = [TokenBucket(f"limit-{number}", "10/minute", burst=10) for number in range(options.limits - 2)]
            assert limiter.fleet is not None
            for place, limit in enumerate([*limits, Concurrency("slots", 5)]):
                if place % 50 == 0:  # a report has 100 limits at most
                    limiter.fleet.activity.report()
                for number in range(12):
                    limiter.acquire(limit, job=Job(id=f"job-{number}"))
            limiter.fleet.activity.report()
            control.pause("limit-1", duration=600)
            id = quote(limit_id(LIMIT.name, LIMIT.fingerprint))
            store = Counting(url)
            site = Site(store, token=None, show_keys=True)
            first = json.loads(site.handle(Request(path="/api/keys", query=f"id={id}")).body)
            views = {
                "Limits, sorted by longest waits": "/api/limits?order=wait",
                "Limits, sorted by fullest": "/api/limits?order=use",
                "One limit": f"/api/limit?id={id}",
                "One limit: a page of all keys": f"/api/keys?id={id}&cursor={first['cursor']}",
                "One limit: one request of a key search that finds nothing": f"/api/keys?id={id}&search=nothing",
                "Job": "/api/job?id=job-11",
                "Rules and history": "/api/changes",
            }
            print(f"{keys:,} keys, {len(limits) + 2} limits.\n\n| view | commands | store's time (ms) |\n|---|---|---|")
            most = 0.0
            for name, path in views.items():
                served(client, store, site, path)  # loads the scripts of the view
                found = [served(client, store, site, path) for _ in range(rounds)]
                took = statistics.median(each for _, each in found)
                commands = ", ".join(f"{count} {command}" for command, count in found[-1][0].most_common())
                most = max(most, took)
                print(f"| {name} | {commands} | {took:.1f} |")
            store.close()
    if options.quick:
        return 0
    print(f"\n{'Within' if most <= BUDGET_MS else 'Over'} the budget of {BUDGET_MS:g} ms of the store's time a view.")
    return 0 if most <= BUDGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
