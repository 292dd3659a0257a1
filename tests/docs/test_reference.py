"""Whether the reference names every public name, and the pages no command that is not there."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from support.pages import ROOT, Page, all_pages
from throttlekit_cli._commands import cli

_PACKAGES = (
    "throttlekit",
    "throttlekit.errors",
    "throttlekit.hookspecs",
    "throttlekit.stores",
    "throttlekit.testing",
    "throttlekit_celery",
    "throttlekit_dramatiq",
    "throttlekit_rq",
)
_NOT_FOR_USERS = {"PROJECT", "hookspec"}


@pytest.mark.parametrize("package", _PACKAGES)
def test_the_reference_has_every_public_name(package: str) -> None:
    """What a package exports stands in docs/api.md, under that package or the one that it comes from."""
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", Page("docs/api.md").text, re.MULTILINE)}
    assert set(importlib.import_module(package).__all__) - named - _NOT_FOR_USERS == set()


def _commands(program: str) -> Iterator[tuple[str, str]]:
    for page in all_pages():
        for block in page.blocks("console"):
            for command, _ in block.commands():
                if command.startswith(f"{program} "):
                    yield page.path, command.partition(" #")[0].strip()


@pytest.mark.parametrize(("page", "command"), sorted(set(_commands("throttlekit"))))
def test_every_command_line_of_the_pages_can_be_read(page: str, command: str) -> None:
    """Each `throttlekit …` of a page is a command that is there, with options and arguments that it takes."""
    name, *rest = shlex.split(command)[1:]
    with contextlib.suppress(click.exceptions.Exit):  # after --help
        cli.commands[name].make_context(name, rest).close()


def test_every_command_that_the_text_names_is_there() -> None:
    """Each `throttlekit …` within a sentence begins with a command that is there."""
    for page in all_pages():
        for name in re.findall(r"`throttlekit ([a-z]+)\b", page.text):
            assert name in cli.commands, page.path


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_the_help_of_a_command_is_its_manual(name: str) -> None:
    """It says what the command does, its options and exit codes, and gives examples, each of which can be read."""
    command = cli.commands[name] if name else cli
    with command.make_context(name, [], resilient_parsing=True) as context:
        text = command.get_help(context)
    assert "Exit codes:" in text
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))
    examples = re.findall(r"^ +throttlekit ((?:\S+ )*?\S+)(?: {2,}.*)?$", text.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        named, *rest = shlex.split(example)
        cli.commands[named].make_context(named, rest).close()


@pytest.mark.parametrize(("page", "command"), sorted(set(_commands("make"))))
def test_every_make_of_the_pages_is_a_target(page: str, command: str) -> None:
    """Each `make …` of a page is in the Makefile."""
    assert re.search(rf"^{shlex.split(command)[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
