"""The demo, run for real: servers, worker processes, partner and all."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from support.waiting import wait_until

pytestmark = pytest.mark.workers

Demo = Callable[..., "subprocess.CompletedProcess[str]"]

FORGETFUL_LIMITER = """
import throttlekit.limiter as module

acquire = module.Limiter.acquire

def forget_and_acquire(self, *limits, **options):
    self.reset(*limits)
    return acquire(self, *limits, **options)

module.Limiter.acquire = forget_and_acquire
"""


def measured(output: str, name: str) -> str:
    """The number in the row of *name* in the table at the end."""
    (line,) = [line for line in output.splitlines() if line.startswith(name)]
    return re.split(r"\s{2,}", line)[1]


def test_with_throttlekit_every_promise_is_kept(run_demo: Demo, demo_folder: Path) -> None:
    """
    All jobs run once, without a 429; nothing is left in the temporary folder. With so few jobs the use of the limit is
    printed and not judged: it depends on the machine.
    """
    outcome = run_demo("--jobs", "84", "--rate", "30/s", "--workers", "2")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert measured(outcome.stdout, "jobs run") == "84 of 84"
    assert measured(outcome.stdout, "429s") == "0 of 84 calls"
    assert measured(outcome.stdout, "duplicates") == "0"
    assert float(measured(outcome.stdout, "share of the limit used").rstrip("%")) > 0
    assert float(measured(outcome.stdout, "burst that the calls came to")) <= 38
    assert list(demo_folder.iterdir()) == []


def test_without_a_terminal_it_prints_a_plain_line_every_second(run_demo: Demo) -> None:
    """Calls, 429s, waiting, running, progress and ETA; no escape sequences; the calls add up."""
    outcome = run_demo("--jobs", "90", "--rate", "30/s", "--workers", "2")
    seconds = re.findall(
        r"^ +(\d+) s   calls +(\d+)   429s +0   waiting +\d+   running +\d+   done \d+/90 \d+%   ETA (?:\d+ s|-)$",
        outcome.stdout, flags=re.MULTILINE,
    )  # fmt: skip
    numbers = [int(number) for number, _ in seconds]
    assert numbers == sorted({*numbers})
    assert numbers[0] >= 1
    assert sum(int(calls) for _, calls in seconds) == 90
    assert "\x1b" not in outcome.stdout


def test_in_a_terminal_the_display_is_live(run_in_terminal: Callable[..., tuple[int, str]]) -> None:
    """It is redrawn in place, ends with the table, and shows the cursor again."""
    code, written = run_in_terminal("--jobs", "60", "--rate", "30/s", "--workers", "1")
    assert code == 0, written
    assert written.count("answered") >= 5
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert "60 of 60" in written


def test_without_throttlekit_the_same_flood_meets_429s(run_demo: Demo) -> None:
    """The contrast: calls are refused and retried. Nothing was promised, so the exit code is 0."""
    outcome = run_demo("--jobs", "60", "--rate", "30/s", "--burst", "5", "--workers", "2", "--without")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    refused, calls = re.fullmatch(r"(\d+) of (\d+) calls", measured(outcome.stdout, "429s")).groups()  # type: ignore[union-attr]
    assert int(refused) >= 10
    assert int(calls) >= 60 + int(refused) - 20
    assert "nothing was promised" in outcome.stdout


def test_on_rq_every_promise_is_kept_and_a_server_is_left_as_it_was(run_demo: Demo, redis_url: str) -> None:
    """
    The same on RQ, on a user's server with other queues of RQ: every key of the run is deleted afterwards. With so few
    jobs the use of the limit is not judged: how fast workers fork depends on the machine.
    """
    client: redis.Redis = redis.Redis.from_url(redis_url)
    client.sadd("rq:queues", "rq:queue:theirs")
    client.rpush("rq:queue:theirs", "a job of theirs")
    outcome = run_demo("--framework", "rq", "--jobs", "26", "--rate", "20/s", "--workers", "2", "--url", redis_url)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert measured(outcome.stdout, "jobs run") == "26 of 26"
    left = [key for key in client.scan_iter() if client.ttl(key) == -1]  # a lock of RQ 3's for all workers expires
    assert sorted(left) == [b"rq:queue:theirs", b"rq:queues"]
    assert client.smembers("rq:queues") == {b"rq:queue:theirs"}
    client.close()


def test_on_rq_without_throttlekit_the_same_flood_meets_429s(run_demo: Demo) -> None:
    """The contrast on RQ: refused calls, and RQ's own retries."""
    outcome = run_demo("--framework", "rq", "--jobs", "40", "--rate", "2/s", "--burst", "5", "--without")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert int(measured(outcome.stdout, "429s").split()[0]) >= 10
    assert "throttlekit demo --framework rq" in outcome.stdout


@pytest.mark.parametrize(
    ("framework", "theirs"), [("celery", b"celery"), ("taskiq", b"taskiq"), ("huey", b"huey.redis.theirs")]
)
def test_every_promise_is_kept_and_a_server_is_left_as_it_was(
    run_demo: Demo, redis_url: str, framework: str, theirs: bytes
) -> None:
    """The same flood on the workers of another framework keeps the same promises, and leaves no key behind."""
    client: redis.Redis = redis.Redis.from_url(redis_url)
    client.rpush(theirs, "a message of theirs")
    outcome = run_demo("--framework", framework, "--jobs", "80", "--rate", "32/s", "--workers", "2", "--url", redis_url)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert measured(outcome.stdout, "jobs run") == "80 of 80"
    assert client.keys() == [theirs]
    client.close()


def test_a_limiter_that_forgets_breaks_a_promise(run_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With a limiter that admits everything, the partner answers 429 and the exit code is 1."""
    folder = tmp_path_factory.mktemp("forgetful")
    (folder / "sitecustomize.py").write_text(FORGETFUL_LIMITER)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    outcome = run_demo("--jobs", "60", "--rate", "20/s", "--burst", "5", "--workers", "2", PYTHONPATH=path)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert re.search(r"^429s .*none: BROKEN$", outcome.stdout, flags=re.MULTILINE)
    assert re.search(r"^Broken: 429s", outcome.stdout, flags=re.MULTILINE)


def test_a_users_server_is_left_as_it_was(run_demo: Demo, redis_url: str) -> None:
    """With --url, every key of the run is deleted afterwards, and the user's keys are still there."""
    client: redis.Redis = redis.Redis.from_url(redis_url)
    client.set("theirs", "kept")
    client.rpush("dramatiq:default", "a message of theirs")
    outcome = run_demo("--jobs", "60", "--rate", "30/s", "--workers", "2", "--url", redis_url)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert sorted(client.keys()) == [b"dramatiq:default", b"theirs"]
    assert client.get("theirs") == b"kept"
    client.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_no_process_behind(
    started_demo: subprocess.Popen[str],
    processes_of_demo: Callable[[], list[str]],
    demo_folder: Path,
    number: signal.Signals,
    code: int,
) -> None:
    """Ctrl-C, a kill, a closed terminal: server, partner, workers and guard end with the demo."""
    assert len(processes_of_demo()) >= 7, "demo, guard, server, partner, dramatiq and three workers"
    os.killpg(started_demo.pid, number)
    assert started_demo.wait(timeout=120) == code
    wait_until(lambda: not processes_of_demo(), description="every process is gone")
    assert [path.name for path in demo_folder.iterdir()] == ["output"]


def test_the_guard_cleans_up_after_a_demo_that_was_killed_outright(
    started_demo: subprocess.Popen[str], processes_of_demo: Callable[[], list[str]], demo_folder: Path
) -> None:
    """After a SIGKILL of the demo its guard kills the other processes, removes the folder, and ends."""
    started_demo.kill()
    started_demo.wait()
    wait_until(lambda: not processes_of_demo(), description="every process is gone")
    assert [path.name for path in demo_folder.iterdir()] == ["output"]
