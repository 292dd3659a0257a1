"""Each command that the pages name exists, and the help of each command is its manual."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from support.markdown import ROOT, all_pages
from throttlekit_cli._commands import cli


def _commands(program: str) -> Iterator[tuple[str, str]]:
    for page in all_pages():
        for block in page.blocks("console"):
            for command, _ in block.commands():
                if command.startswith(f"{program} "):
                    yield page.path, command.partition(" #")[0].strip()


def _read(line: str) -> None:
    """Parse a command line as the shell would pass it, without running the command."""
    name, *rest = shlex.split(line.partition(" | ")[0])
    with contextlib.suppress(click.exceptions.Exit):  # after --help
        cli.commands[name].make_context(name, rest).close()


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variable for the store, since examples can leave out --url."""
    monkeypatch.setenv("THROTTLEKIT_URL", "redis://localhost:6379/1")


@pytest.mark.parametrize(("page", "command"), sorted(set(_commands("throttlekit"))))
def test_every_command_line_of_the_pages_can_be_parsed(page: str, command: str) -> None:
    """Each `throttlekit …` of a page is an existing command, with options and arguments that it accepts."""
    _read(command.removeprefix("throttlekit "))


def test_every_command_that_the_text_names_exists() -> None:
    """Each `throttlekit …` in a sentence begins with an existing command."""
    for page in all_pages():
        for name in re.findall(r"`throttlekit ([a-z-]+)\b", page.text):
            assert name in cli.commands, page.path


def test_the_pages_install_from_a_checkout_only() -> None:
    """No package index has this distribution. A package named `throttlekit` there belongs to another project."""
    commands = [
        (page.path, command)
        for page in all_pages()
        for command in re.findall(r"pip install [^`\n]*", page.text)
        if "throttlekit" in command and page.path != "docs/mistakes.md"  # its commands are those of error messages
    ]
    assert commands == []


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_the_help_of_a_command_is_its_manual(name: str) -> None:
    """The help describes the command, its options, variables and exit codes, and has examples that can be parsed."""
    command = cli.commands[name] if name else cli
    with command.make_context(name, [], resilient_parsing=True) as context:
        text = command.get_help(context)
    assert "Exit codes:" in text
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert all(option.help and (option.show_envvar or not option.envvar) for option in options)
    examples = re.findall(r"^ +throttlekit ((?:\S+ )*?\S+)(?: {2,}.*)?$", text.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        _read(example)


@pytest.mark.parametrize(("page", "command"), sorted(set(_commands("make"))))
def test_every_make_of_the_pages_is_a_target(page: str, command: str) -> None:
    """Each `make …` of a page is a target of the Makefile."""
    assert re.search(rf"^{shlex.split(command)[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
