"""`.ci/run` succeeds if each call of `make` does, and fails if one fails. `make` and `apt-get` are stand-ins."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci/run"
Run = Callable[..., "subprocess.CompletedProcess[str]"]

MAKE = """#!/bin/sh
echo "make $*"
[ -z "$FAILING" ] || ! echo "$*" | grep -q -- "$FAILING"
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a copy of `.ci/run`, in which the calls of `make` that match *failing* fail."""
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci/run"
    script.write_text(CI.read_text("utf-8"))
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in {"make": MAKE, "apt-get": "#!/bin/sh\n", "sudo": '#!/bin/sh\nexec "$@"\n'}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)

    def run(failing: str = "") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "FAILING": failing}
        return subprocess.run(["bash", script], env=environment, capture_output=True, text=True, timeout=60)

    return run


def test_it_succeeds_if_every_step_does(run: Run) -> None:
    done = run()

    assert done.returncode == 0, done.stderr
    assert {"make lint docs test-bare", "make test-oldest", "make test"} <= {
        re.sub(" --keep-going| PROCESSES=[0-9]", "", line) for line in done.stdout.splitlines()
    }


@pytest.mark.parametrize("failing", ["made-lint", "lint docs", "test-oldest", "--collect-only", "^test$"])
def test_it_fails_if_one_step_does(run: Run, failing: str) -> None:
    assert run(failing).returncode != 0
