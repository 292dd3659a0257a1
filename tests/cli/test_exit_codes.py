"""Each exit code that the help of a command lists is tested."""

from __future__ import annotations

import contextlib
import re

import pytest
from click.testing import CliRunner

from throttlekit import Job, Limiter, TokenBucket
from throttlekit_cli._commands import cli
from throttlekit_cli.top import watch

NOWHERE = ["--url", "redis://127.0.0.1:1/0"]
# command: {exit code: [the commands before, the command's own words]}; the store has limit "api"
CASES: dict[str, dict[int, list[list[str]]]] = {
    "pause": {0: [["api"]], 2: [["apu"]]},
    "resume": {0: [["pause", "api"], ["api"]], 1: [["api"]], 2: [["api", *NOWHERE]]},
    "set": {0: [["api", "5/s"]], 2: [["api", "4"]]},
    "unset": {0: [["set", "api", "5/s"], ["api"]], 1: [["api"]], 2: [["api", *NOWHERE]]},
    "shadow": {0: [["api"]], 2: [["api", "--for", "soon"]]},
    "enforce": {0: [["shadow", "api"], ["api"]], 1: [["api"]], 2: [["api", *NOWHERE]]},
    "weight": {0: [["api", "acme", "2"]], 1: [["api", "acme", "--unset"]], 2: [["apu", "acme", "2"]]},
    "scale": {0: [["a*", "0.5"]], 1: [["a*", "--unset"]], 2: [["b*", "0.5"]]},
    "reset": {0: [["api"]], 1: [["reset", "api"], ["api"]], 2: [["api", *NOWHERE]]},
    "clear-waitlist": {0: [["api"]], 1: [["clear-waitlist", "api"], ["api"]], 2: [["api", *NOWHERE]]},
    "history": {0: [["pause", "api"], []], 1: [[]], 2: [NOWHERE]},
    "rules": {0: [["pause", "api"], []], 1: [[]], 2: [NOWHERE]},
    "top": {0: [["--once"]], 2: [["--once", *NOWHERE]], 130: [[]]},
    "explain": {0: [["j"]], 1: [["k"]], 2: [["j", *NOWHERE]]},
    "doctor": {0: [[]], 1: [["--url", "memory://"]], 2: [NOWHERE]},
}  # tests/cli/test_demo.py has those of the demo, tests/adapters/rq/test_waker.py of `wake`, tests/web of `web`


@pytest.mark.parametrize(("name", "code"), [(name, code) for name, codes in CASES.items() for code in codes])
def test_command_ends_with_its_exit_code(redis_url: str, monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """The exit code is 0, 1, 2 or 130, as the command's help lists."""
    with contextlib.closing(Limiter(redis_url)) as limiter:
        for _ in range(2):
            limiter.acquire(TokenBucket("api", "1/day", share=lambda _: "acme"), job=Job(id="j"))
    if code == 130:
        monkeypatch.setattr(watch, "top", _interrupted)
    *before, words = CASES[name][code]
    for each in before:
        assert CliRunner().invoke(cli, each, env={"THROTTLEKIT_URL": redis_url}).exit_code == 0
    outcome = CliRunner().invoke(cli, [name, *words], env={"THROTTLEKIT_URL": redis_url})
    assert outcome.exit_code == code, outcome.output
    assert not isinstance(outcome.exception, Exception)
    assert "Traceback" not in outcome.output


ALL = {**CASES, "demo": {0, 1, 2, 130}, "wake": {0, 2}, "web": {0, 2}}


@pytest.mark.parametrize("name", cli.commands)
def test_help_states_the_exit_codes_that_are_tested(name: str) -> None:
    """The help lists these exit codes and no others."""
    text = CliRunner().invoke(cli, [name, "--help"]).stdout.partition("Exit codes:")[2].partition("Examples:")[0]
    assert {int(code) for code in re.findall(r"^ {4}(\d+) ", text, re.MULTILINE)} == set(ALL[name])


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
