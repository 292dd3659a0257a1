"""The quick forms of the benchmarks of `docs/results` complete, and print their tables and promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def run_script(script: str, *options: str) -> str:
    """Return the output of the benchmark. Its quick form checks the promises about bounds, losses and round trips."""
    command = [sys.executable, str(_HERE / script), "--quick", *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


_ONE_DECISION = ["redis-py: INCR", "throttlekit 3 × `TokenBucket`"]


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (["peers.py", "--only", "TokenBucket"], _ONE_DECISION),
        (["one_core.py", "--only", "TokenBucket"], _ONE_DECISION),
        (["tails.py", "--only", "TokenBucket"], _ONE_DECISION),
        pytest.param(["throughput.py", "--only", "Dramatiq, Redis"], ["Dramatiq, Redis"], marks=pytest.mark.workers),
        pytest.param(
            ["backlog.py", "--only", "dramatiq"], ["dramatiq, 40", "dramatiq, 400"], marks=pytest.mark.workers
        ),
        pytest.param(["campaign.py"], ["1.25"], marks=pytest.mark.workers),
        pytest.param(
            ["waiting_jobs.py", "--workers", "Dramatiq, Redis"], ["Dramatiq, Redis"], marks=pytest.mark.workers
        ),
        pytest.param(["many_keys.py", "--network", "1"], ["10 keys + 1 ms"], marks=pytest.mark.workers),
    ],
    ids=lambda value: value[0].removesuffix(".py"),
)
def test_benchmark_prints_rows_and_promises(command: Sequence[str], rows: Sequence[str]) -> None:
    """The output has each row of a small run, and a table of promises with the script's name."""
    text = run_script(*command)
    for row in (*rows, f"{command[0].removesuffix('.py')} |"):
        assert f"\n| {row}" in text


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (["top_cost.py", "--keys", "1000"], ["(as it is) |", "--filter tenant |"]),
        (["web_cost.py"], ["Limits, sorted by longest waits |", "One limit |", "One limit: a page of all keys |"]),
    ],
    ids=lambda value: value[0].removesuffix(".py"),
)
def test_views_are_timed(command: Sequence[str], rows: Sequence[str]) -> None:
    """The benchmarks of `top` and the web page print the cost of every view."""
    text = run_script(*command)
    for row in rows:
        assert f"\n| {row}" in text


@pytest.mark.workers
def test_hidden_limits_are_measured_and_collected(tmp_path: Path) -> None:
    """Rows run on workers and on callers without a framework, and the page of the docs is written from them."""
    for way in ("adapt=`, Dramatiq", "AIMD"):
        run_script(
            *("adapt.py", "--only", "token bucket", "--way", way),
            *("--results", str(tmp_path / "rows"), "--write", str(tmp_path)),
        )
    page = (tmp_path / "results/adapt.md").read_text("utf-8")
    for row in ("token bucket | `adapt=`, Dramatiq | ", " | AIMD in each process | ", "refuses beyond 20 | "):
        assert f"\n| {row}" in page
    assert (tmp_path / "adapt.svg").read_text("utf-8").startswith("<svg")


@pytest.mark.workers
def test_shares_are_measured_and_collected(tmp_path: Path) -> None:
    """A row runs, its table is printed, and the page of the docs is written from it."""
    text = run_script("shares.py", "--only", "share=", "--results", str(tmp_path / "rows"), "--write", str(tmp_path))
    row = "\n| `share=` | Dramatiq, Redis | "
    assert row in text
    assert row in (tmp_path / "results/shares.md").read_text("utf-8")
    assert (tmp_path / "shares.svg").read_text("utf-8").startswith("<svg")
