"""Public names, sizes of modules, and texts that must not appear."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.tree import ADAPTERS_LUA, FLEET_LUA, LUA, MODULES, ROOT, parsed, read, tracked
from throttlekit import AsyncLimiter, Limiter


def _targets(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, (ast.If, ast.Try)):
        for inner in node.body:
            yield from _targets(inner)


def _public(module: str) -> set[str]:
    """Return the public names that *module* defines; for a package's `__init__`, also those that it imports."""
    names = {name for node in parsed(module).body for name in _targets(node)}
    if MODULES[module].name == "__init__.py":
        typed = [inner for node in parsed(module).body if isinstance(node, (ast.If, ast.With)) for inner in node.body]
        for node in (*parsed(module).body, *typed):  # for type checkers, or within installed_by
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("throttlekit"):
                names |= {alias.asname or alias.name for alias in node.names}
    return {name for name in names if not name.startswith("_")}


def _declared(module: str) -> list[str] | None:
    for node in parsed(module).body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["__all__"]:
            names = ast.literal_eval(node.value)
            assert isinstance(names, list)
            return names
    return None


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if read(path).strip()])
def test_all_lists_exactly_the_public_names(module: str) -> None:
    """`__all__` of a module equals the set of public names that it defines."""
    declared = _declared(module)
    if declared is None:
        assert module.rpartition(".")[2] == "__main__" or not _public(module), "write an __all__"
        return
    assert len(declared) == len(set(declared))
    assert set(declared) == _public(module)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_attributes_of_a_limiter_are_documented(kind: type[Limiter | AsyncLimiter]) -> None:
    """An attribute of an instance is in the docstring of its class, or is private."""
    named = {name for line in _attributes(inspect.getdoc(kind) or "") for name in line.partition(":")[0].split(", ")}
    assert {name for name in {*dir(kind())} - {*dir(kind)} if not name.startswith("_")} == named


def _attributes(text: str) -> Iterator[str]:
    """Return the first line of each entry of a docstring's list of attributes."""
    entries = text.partition("\nAttributes:\n")[2].splitlines()
    return (line.strip() for line in entries if re.match(r"    \S", line))


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_not_too_long(module: str) -> None:
    """A module has at most 500 lines; the modules of the decision and of waitlists have higher limits."""
    longest = {"throttlekit._core.decide": 540, "throttlekit._core.waitlist": 505}.get(module, 500)
    assert read(MODULES[module]).count("\n") <= longest


@pytest.mark.parametrize("path", LUA + ADAPTERS_LUA + FLEET_LUA, ids=lambda path: path.name)
def test_scripts_are_not_too_long(path: Path) -> None:
    """A script has at most 160 lines, including its header; the scripts of waitlists have higher limits."""
    longest = {"waitlist.lua": 520, "decide.lua": 250}.get(path.name, 160)
    assert read(path).count("\n") <= longest


def test_no_code_is_exempt_from_the_formatter() -> None:
    """Every Python file is formatted as a whole: no comment turns the formatter off."""
    comment = re.compile(r"#\s*(?:fmt|yapf)\s*:\s*(?:skip|off|disable)\b")
    files = [path for path in tracked() if path.suffix in {".py", ".pyi"}]
    assert len(files) > 500
    assert [str(path.relative_to(ROOT)) for path in files if comment.search(path.read_text("utf-8"))] == []


def test_no_text_says_to_install_the_foreign_package() -> None:
    """No text says to install `throttlekit`: on the package index, that name belongs to another project."""
    wrong = re.compile(
        r"""\b(?:pip3?|pipx|uv|poetry|pdm)\s+(?:pip\s+)?(?:install|add)\s+(?:-\S+\s+)*["']?throttlekit(?!-jobs)\b"""
    )
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked()
        if path != Path(__file__)
        for match in wrong.finditer(path.read_text("utf-8", "replace"))
    ]
    assert found == []
