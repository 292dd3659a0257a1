"""`.ci/run` fails exactly if one of its steps fails. `make` and `apt-get` are stand-ins."""

import os
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci/run"

MAKE = """#!/bin/sh
echo "make $*"
[ -z "$FAILING" ] || ! echo "$*" | grep -q -- "$FAILING"
"""


@pytest.fixture
def run(tmp_path):
    """Runs a copy of `.ci/run` in which the calls of `make` that match `failing` fail."""
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci/run"
    script.write_text(CI.read_text())
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in {"make": MAKE, "apt-get": "#!/bin/sh\n", "sudo": '#!/bin/sh\nexec "$@"\n'}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)

    def run(failing=""):
        environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "FAILING": failing}
        return subprocess.run(["bash", script], env=environment, capture_output=True, text=True, timeout=60)

    return run


def test_it_succeeds_if_every_step_does(run):
    done = run()

    assert done.returncode == 0, done.stderr
    assert {"make lint docs test-bare", "make test-oldest", "make test"} <= {
        line.replace("--keep-going ", "").replace(" PROCESSES=2", "") for line in done.stdout.splitlines()
    }


@pytest.mark.parametrize("failing", ["made-lint", "lint docs", "test-oldest", "--collect-only", "^test$"])
def test_it_fails_if_one_step_does(run, failing):
    assert run(failing).returncode != 0
