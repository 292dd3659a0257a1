"""Messages of the command about options that cannot work, and about packages that are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from throttlekit_cli._commands import cli

INSTALL = "pip install 'throttlekit-jobs[{}]'"


def throttlekit(*arguments: str, options: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-m", "throttlekit_cli", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", "0"], "0 is not in the range"),
        (["--workers", "17"], "17 is not in the range"),
        (["--framework", "celerity"], "is not one of"),
    ],
)
def test_an_option_that_cannot_work_is_one_line(options: list[str], message: str) -> None:
    """For an option that cannot work, the exit code is 2, and the reason is the last line, without a traceback."""
    outcome = CliRunner().invoke(cli, ["demo", *options])
    assert outcome.exit_code == 2
    assert message in outcome.stderr.splitlines()[-1]


def test_help_imports_no_framework() -> None:
    """`throttlekit --help` is fast: it loads neither dramatiq nor redis nor rich."""
    outcome = throttlekit("--help", options=("-X", "importtime"))
    assert outcome.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in outcome.stderr.splitlines()}
    assert "click" in loaded
    assert not loaded & {"dramatiq", "redis", "rich", "asyncio"}


def test_without_click_the_extra_is_named() -> None:
    """Without click, one line has the right name to install: `throttlekit` on the index belongs to others."""
    outcome = throttlekit("--help", options=("-S",), PYTHONPATH=_own_packages())
    assert outcome.returncode == 2
    assert outcome.stderr == f"Error: this needs click: {INSTALL.format('cli')}\n"


def test_without_dramatiq_the_extra_is_named(tmp_path: Path) -> None:
    """Without its packages, the demo names all that are missing at once."""
    import click
    import pluggy

    for package in (click, pluggy):  # pluggy comes with throttlekit itself
        (tmp_path / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    packages = os.pathsep.join([_own_packages(), str(tmp_path)])
    outcome = throttlekit("demo", options=("-S",), PYTHONPATH=packages)
    assert outcome.returncode == 2
    assert outcome.stderr == f"Error: this needs dramatiq, redis, rich: {INSTALL.format('demo')}\n"


def _own_packages() -> str:
    """Return a path with only the packages of this distribution, from a source tree."""
    import throttlekit
    import throttlekit_cli

    roots = [Path(str(package.__file__)).parents[1] for package in (throttlekit, throttlekit_cli)]
    if any("site-packages" in root.parts for root in roots):
        pytest.skip("the packages are installed beside the others")
    return os.pathsep.join(map(str, roots))


def test_aliases_and_misspelt_commands_are_recognized() -> None:
    """`why` is an alias of `explain`. For a misspelt command, the message names the right one."""
    assert CliRunner().invoke(cli, ["why", "--help"]).stdout.startswith("Usage: cli why [OPTIONS] JOB_ID")
    outcome = CliRunner().invoke(cli, ["paus", "partner-api"])
    assert (outcome.exit_code, "Did you mean 'pause'?" in outcome.stderr) == (2, True)
