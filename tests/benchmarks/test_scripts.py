"""Each benchmark of `docs/results/decisions.md` runs to its end, and prints its table and its promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (["peers.py", "--quick", "--only", "TokenBucket"], ["redis-py: INCR", "throttlekit 3 × `TokenBucket`"]),
        (["one_core.py", "--quick", "--only", "TokenBucket"], ["redis-py: INCR", "throttlekit 3 × `TokenBucket`"]),
        (["tails.py", "--quick", "--only", "TokenBucket"], ["redis-py: INCR", "throttlekit 3 × `TokenBucket`"]),
        pytest.param(
            ["throughput.py", "--quick", "--only", "Dramatiq, Redis"], ["Dramatiq, Redis"], marks=pytest.mark.workers
        ),
        pytest.param(
            ["backlog.py", "--quick", "--only", "dramatiq"],
            ["dramatiq, 40", "dramatiq, 400"],
            marks=pytest.mark.workers,
        ),
        pytest.param(["campaign.py", "--quick"], ["1.25"], marks=pytest.mark.workers),
        pytest.param(
            ["waiting_jobs.py", "--quick", "--workers", "Celery, Redis"], ["Celery, Redis"], marks=pytest.mark.workers
        ),
        pytest.param(["many_keys.py", "--quick", "--network", "1"], ["10 keys + 1 ms"], marks=pytest.mark.workers),
        pytest.param(
            ["control.py", "--quick"],
            ["pause: the last job starts", "resume: the first job starts"],
            marks=pytest.mark.workers,
        ),
    ],
    ids=lambda value: value[0].removesuffix(".py"),
)
def test_it_runs_and_tells(command: list[str], rows: list[str]) -> None:
    """Small as it is, it breaks no promise that is judged: of bounds, losses and round trips."""
    ran = subprocess.run(
        [sys.executable, str(_HERE / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for row in rows:
        assert f"\n| {row}" in ran.stdout
    assert f"\n| {command[0].removesuffix('.py')} | " in ran.stdout


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (["top_cost.py", "--keys", "1000", "--quick"], ["| (as it is) |", "| --filter tenant |", "| allowed |"]),
        (["web_cost.py", "--quick"], ["| all limits |", "| one limit |", "| a page of its keys |"]),
    ],
    ids=lambda value: value[0].removesuffix(".py"),
)
def test_looking_is_timed(command: list[str], rows: list[str]) -> None:
    """What `top` and the web page cost over some keys, in every way to look; and what counting a decision takes."""
    ran = subprocess.run(
        [sys.executable, str(_HERE / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for row in rows:
        assert f"\n{row}" in ran.stdout


@pytest.mark.workers
def test_hidden_limits_are_measured_and_gathered(tmp_path: Path) -> None:
    """Rows are run, on workers and on callers without a framework, and the page of the docs is written of them."""
    for way in ("adapt=`, Dramatiq", "AIMD"):
        ran = subprocess.run(
            [
                sys.executable, str(_HERE / "adapt.py"), "--quick", "--only", "token bucket", "--way", way, "--results",
                str(tmp_path / "rows"), "--write", str(tmp_path),
            ],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (tmp_path / "results/adapt.md").read_text("utf-8")
    assert "\n| token bucket | `adapt=`, Dramatiq | " in page
    assert "\n|  | AIMD in each process | " in page
    assert "\n| refuses beyond 20 | " in page
    assert (tmp_path / "adapt.svg").read_text("utf-8").startswith("<svg")


@pytest.mark.workers
def test_shares_are_measured_and_gathered(tmp_path: Path) -> None:
    """A row is run, its table is printed, and the page of the docs is written of it."""
    ran = subprocess.run(
        [
            sys.executable, str(_HERE / "shares.py"), "--quick", "--only", "share=", "--results",
            str(tmp_path / "rows"), "--write", str(tmp_path),
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\n| `share=` | Dramatiq, Redis | " in ran.stdout
    assert "\n| `share=` | Dramatiq, Redis | " in (tmp_path / "results/shares.md").read_text("utf-8")
    assert (tmp_path / "shares.svg").read_text("utf-8").startswith("<svg")
