"""
Real processes that share one limit by its waitlist, on a real Redis server, without a job framework.

    python tests/benchmarks/waitlist_workers.py [--rate 50] [--burst 10] [--jobs 1000] [--processes 4] [--kill]

Each process takes jobs from a Redis list, asks when a thread is free, and holds what is denied; a job's body writes
down when it began. Printed are the part of the limit that was used, the questions and the store's commands a job, how
far jobs were out of order, and by how much the bound was exceeded in any window.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.servers.processes import redis_server
from throttlekit import Job, Limiter, TokenBucket
from throttlekit._engine.call import Delivery, Waiting
from throttlekit._engine.waker import Waker


def work(told: dict[str, Any]) -> None:
    limit = TokenBucket("partner", f"{told['rate']}/s", burst=told["burst"])
    limiter, client = Limiter(told["url"]), redis.Redis.from_url(told["url"])
    owner, threads = f"w{os.getpid()}", told["threads"]
    idle = threading.Semaphore(0)
    ready: queue.SimpleQueue[str] = queue.SimpleQueue()
    lock, count = threading.Lock(), {"free": threads}
    waker: Waker[str] = limiter.make_waker(lambda: max(0, count["free"] - ready.qsize()), lambda id, _: ready.put(id))
    waker.begin()

    def run() -> None:
        while True:
            try:
                id = ready.get(timeout=0.002 if not client.llen("jobs") else 0)
            except queue.Empty:
                text: Any = client.lpop("jobs")
                if text is None:
                    continue
                id = text.decode()
                client.zadd("held:" + owner, {id: 0})
            with lock:
                count["free"] -= 1
            asked = time.monotonic()
            if limiter.acquire(limit, job=Job(id=id), delivery=Delivery(waits=Waiting(waker, id))):
                client.rpush("ran", json.dumps([time.time(), id, owner, time.monotonic() - asked]))
                client.zrem("held:" + owner, id)
                waker.done(id)
            with lock:
                count["free"] += 1
            waker.freed()

    for _ in range(threads):
        threading.Thread(target=run, daemon=True).start()
    idle.acquire()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--burst", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    with redis_server() as url, redis.Redis.from_url(url) as client:
        for number in range(options.jobs):
            client.rpush("jobs", f"job{number:06d}")
        told = {"url": url, **{name: getattr(options, name) for name in ("rate", "burst", "threads")}}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, __file__, "--worker", json.dumps(told)])

        workers = [start() for _ in range(options.processes)]
        deadline, killed = time.monotonic() + options.jobs / options.rate * 2 + 30, 0.0
        while client.llen("ran") < options.jobs and time.monotonic() < deadline:
            time.sleep(0.2)
            if options.kill and time.monotonic() > killed + 2 and client.llen("ran") > options.rate:
                killed = time.monotonic()
                victim = workers.pop(0)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                for id in client.zrange(f"held:w{victim.pid}", 0, -1):
                    client.rpush("jobs", id)
                client.delete(f"held:w{victim.pid}")
                workers.append(start())
        stats = {name: value["calls"] for name, value in client.info("commandstats").items()}
        for each in workers:
            each.kill()
            each.wait()
        ran = sorted(map(json.loads, client.lrange("ran", 0, -1)))
    report(ran, options, stats)


def report(ran: list, options: argparse.Namespace, stats: dict) -> None:  # type: ignore[type-arg]
    times = [each[0] for each in ran]
    begin, end = times[0] + 1, times[-1] - 0.5
    inside = [at for at in times if begin <= at < end]
    lowest, worst = 0.0, -1e9
    for passed, at in enumerate(times):
        came = (at - times[0]) * options.rate
        lowest = min(lowest, passed - came)
        worst = max(worst, passed + 1 - came - lowest - options.burst)
    ids = [each[1] for each in ran]
    order = [int(id[3:]) for id in ids]
    ranks = {number: rank for rank, number in enumerate(sorted(order))}
    print(f"ran {len(set(ids))} of {options.jobs}, twice {len(ids) - len(set(ids))}")
    print(f"use {len(inside) / (options.rate * (end - begin)):.3f} · excess {worst:.2f} units")
    scripts, bells = (stats.get(f"cmdstat_{name}", 0) / options.jobs for name in ("evalsha", "publish"))
    print(f"scripts a job {scripts:.2f} · bells a job {bells:.2f}")
    print(f"furthest out of order {max(abs(ranks[n] - place) for place, n in enumerate(order))} places")


if __name__ == "__main__":
    main()
