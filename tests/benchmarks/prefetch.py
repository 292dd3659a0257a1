"""
The gain of token leases: decisions a second of one process, and the server's CPU, compared with direct calls.

    python tests/benchmarks/prefetch.py [--rounds 15]

Every figure is a ratio from one run on one new server, of interleaved rounds in random order. The limits never bind.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.reports.command import parser_of
from support.reports.tables import Promise, about, print_results, ratios, spread, table
from support.servers.processes import redis_server
from throttlekit import Job, Limiter, TokenBucket

_TITLES = ("a job asks", "decisions a second, × direct", "server CPU", "client CPU", "calls a job")
DIRECT = "direct, one call a job"
ENOUGH = 20_000  # decisions of a round; a tenth of them where each is a request to the store


@dataclass
class Kind:
    """One kind of request, and its cost per decision, by round."""

    limit: TokenBucket
    job: Job | None = None
    decisions: int = ENOUGH
    wall: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)


def kinds() -> dict[str, Kind]:
    def bucket(tokens: int | None, key: str | None = None) -> TokenBucket:
        name = f"lease-{tokens}-{key or 'all'}"
        return TokenBucket(name, "10000000/s", burst=10_000_000, prefetch=tokens, key=key)

    job = Job(id="1", name="call", kwargs={"account_id": "42"})
    found = {DIRECT: Kind(bucket(None), decisions=ENOUGH // 10)}
    found.update({f"`prefetch={tokens}`": Kind(bucket(tokens)) for tokens in (5, 50, 200)})
    found["direct, by the job's key"] = Kind(bucket(None, "{account_id}"), job, ENOUGH // 10)
    found["`prefetch=50`, by the job's key"] = Kind(bucket(50, "{account_id}"), job)
    return found


def measure(limiter: Limiter, server: Any, kind: Kind) -> None:
    limit, job, acquire = kind.limit, kind.job, limiter.acquire
    for _ in range(300):  # the lease grows to its size
        acquire(limit, job=job)
    before, cpu = server.info("all"), time.process_time()
    began = time.perf_counter()
    for _ in range(kind.decisions):
        acquire(limit, job=job)
    kind.wall.append((time.perf_counter() - began) / kind.decisions)
    kind.client.append((time.process_time() - cpu) / kind.decisions)
    after = server.info("all")
    cpu = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    kind.server.append(cpu / kind.decisions)
    kind.calls.append((after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"]) / kind.decisions)


def rows(found: dict[str, Kind]) -> Iterator[tuple[str, ...]]:
    """
    Speed as a multiple of the direct calls of the same round. The server's time is over all rounds, because its
    resolution is too coarse for one round.
    """
    base = found[DIRECT]
    for name, kind in found.items():
        server, client = sum(base.server) / max(sum(kind.server), 1e-9), sum(base.client) / sum(kind.client)
        yield (
            name,
            spread(ratios(base.wall, kind.wall), 1),
            f"1/{server:.1f}",
            f"1/{client:.1f}",
            f"{statistics.median(kind.calls):.3f}",
        )


def judged(found: dict[str, Kind]) -> Iterator[Promise]:
    base, fifty = found[DIRECT], found["`prefetch=50`"]
    # With leases of 50, one decision in 50 is a round trip: 50 × is the maximum.
    for tokens, least in ((50, 20), (200, 40)):
        faster = ratios(base.wall, found[f"`prefetch={tokens}`"].wall)
        kept = statistics.median(faster) >= least
        yield Promise(f"decisions a second with leases of {tokens}, × direct", spread(faster, 1), f">= {least}", kept)
    cheaper = sum(base.server) / max(sum(fifty.server), 1e-9)
    yield Promise("server CPU with leases of 50, × direct", f"1/{cheaper:.1f}", "<= 1/20", cheaper >= 20)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with redis_server() as url:
        server, limiter, found = redis.Redis.from_url(url, decode_responses=True), Limiter(f"{url}/0"), kinds()
        for _ in range(options.rounds):
            for kind in random.sample(list(found.values()), len(found)):
                measure(limiter, server, kind)
        version = server.info("server")["redis_version"]
        limiter.close()
        server.close()
    head = about("redis", servers=[f"Redis {version}"])
    head += f"\n{options.rounds} rounds of {ENOUGH} decisions, a tenth where each asks; one process, one thread."
    print_results("prefetch", head, [table(_TITLES, rows(found))], judged(found))


if __name__ == "__main__":
    main()
