"""
Capture `throttlekit top` and `explain` during a flood on Dramatiq and RQ at once, and write them into a page.

    python tests/benchmarks/top_capture.py [--into docs/top.md] [--seconds 20]

A Redis, two worker processes of Dramatiq and two of RQ, one store: three limits, and more jobs than they admit. The
page gets the exact output of the commands. Next to the page, top-80.svg and top-150.svg are pictures of the same flood
in terminals of these widths.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.dramatiq.workers import workers
from support.reports.command import parser_of
from support.reports.svg import terminal
from support.rq.workers import Fleet, rq_worker
from support.servers.processes import redis_server

_JOBS = 1200
_WIDTHS = (80, 150)
_REFRESHES = 12
_BLOCK = "<!-- captured: {} -->\n"


def run(*arguments: str, check: bool = True) -> str:
    """Return the output of `throttlekit …`, at 100 columns."""
    command = [sys.executable, "-m", "throttlekit_cli", *arguments]
    environment = {**os.environ, "COLUMNS": "100"}
    shown = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=check, env=environment)
    return "\n".join(line.rstrip() for line in shown.stdout.splitlines())


def pictures(url: str) -> dict[int, str]:
    """`top` in terminals of 80 and 150 columns after some refreshes, as SVG."""
    from throttlekit_cli.store import name_store, open_store
    from throttlekit_cli.top.watch import View

    drawn: dict[int, str] = {}
    for width in _WIDTHS:
        with contextlib.closing(open_store(url)) as store:
            view = View(order="wait", most=6, name="", show_keys=False, store=name_store(store, "staging"))
            for _ in range(_REFRESHES):
                shown = view.screen(view.look(store), width, live=True)
                time.sleep(0.5)
        drawn[width] = terminal("throttlekit top", f"top{width}", width, lambda on, shown=shown: on.print(shown))
    return drawn


def flood(url: str) -> list[str]:
    """Send jobs to both frameworks, and return the ids of those that were sent to RQ."""
    import redis

    from support.jobs import top as top_jobs
    from throttlekit_rq import ThrottledQueue

    sent: list[str] = []
    with contextlib.closing(redis.Redis.from_url(url)) as connection:
        queue = ThrottledQueue("work", connection=connection, limiter=top_jobs.limiter)
        for number in range(_JOBS):
            account = f"account-{number % 12 if number % 3 else 0}"
            top_jobs.partner.send(account)
            if number % 2 == 0:
                throttle = [top_jobs.ACCOUNT, top_jobs.PARTNER]
                sent.append(queue.enqueue(top_jobs.call, account=account, throttle=throttle).id)
            if number % 3 == 0:
                top_jobs.report.send()
    return sent


def captured(seconds: float) -> tuple[dict[str, str], dict[int, str]]:
    """Return the output of `top` and `explain` after *seconds* of the flood, and pictures of `top`."""
    with redis_server() as base:
        store, broker, queues = f"{base}/0", f"{base}/1", f"{base}/2"
        environment = {"TK_TOP_STORE": store, "TK_TOP_BROKER": broker}
        os.environ.update(environment)
        kind = "throttlekit_rq.ThrottledWorker"
        commands = [rq_worker(queues, "work", kind=kind, options=("-c", "support.jobs.top")) for _ in range(2)]
        sent = flood(queues)
        with workers("support.jobs.top", environment, processes=2, threads=4), Fleet(commands, environment):
            time.sleep(seconds)
            shown = run("top", "--once", "--url", store, "--limit", "6")
            # For an unknown job, `explain` exits with an error.
            explanations = (run("explain", job_id, "--url", store, check=False) for job_id in reversed(sent))
            explained = next(text for text in explanations if "its turn       in" in text)
            return {"top": shown, "explain": explained}, pictures(store)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    found, drawn = captured(options.seconds)
    for text in found.values():
        print(f"{text}\n")
    if options.into:
        page = options.into.read_text("utf-8")
        for name, text in found.items():
            begin, opened, rest = page.partition(_BLOCK.format(name) + "\n```text\n")
            if not opened:
                raise SystemExit(f"{options.into} has no place for what {name} shows")
            page = begin + opened + text + "\n```" + f"\n{rest}".partition("\n```")[2]
        options.into.write_text(page, "utf-8")
        for width, svg in drawn.items():
            options.into.with_name(f"top-{width}.svg").write_text(svg, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
