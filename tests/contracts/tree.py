"""The source tree that the contract tests check."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

__all__ = [
    "ADAPTERS_LUA",
    "FLEET_LUA",
    "LUA",
    "MODULES",
    "ROOT",
    "parsed",
    "read",
    "section",
    "split_script",
    "tracked",
]

ROOT = Path(__file__).parents[2]

_PACKAGES = [ROOT / "throttlekit", *(ROOT / "lua").glob("throttlekit_*"), *(ROOT / "adapters").glob("throttlekit_*")]


def _name(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: dict[str, Path] = {
    _name(package, path): path for package in _PACKAGES for path in sorted(package.rglob("*.py"))
}
"""Every shipped module, by its import name."""

_LUA = sorted((ROOT / "lua" / "throttlekit_lua").glob("*.lua"))

ADAPTERS_LUA = [path for path in _LUA if path.name.startswith(("rq_", "huey_", "taskiq_"))]
"""The scripts that write an adapter's decisions into its framework's own data."""

FLEET_LUA = [path for path in _LUA if path.name.startswith("fleet_")]
"""The scripts that write the reports of processes, and read them."""

LUA = [path for path in _LUA if path not in (*ADAPTERS_LUA, *FLEET_LUA)]
"""The scripts of the store: those that decide, and those of waitlists."""


@cache
def read(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(read(MODULES[name]))


def split_script(script: Path) -> tuple[str, str]:
    """Return the header of a script, and its code without comments."""
    header, closed, body = read(script).partition("]]")
    assert header.startswith("--[[\n")
    assert closed
    return header, re.sub(r"--.*", "", body)


def section(header: str, word: str) -> str:
    """Return the section of a script's header that begins with *word*."""
    match = re.search(rf"^  {word}  .*\n(?:    .*\n|\n)*", header, re.MULTILINE)
    assert match, f"the header has no {word}"
    return match.group()


def tracked() -> list[Path]:
    """Return every text file of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    paths = [ROOT / name for name in names if name] or [p for p in ROOT.rglob("*") if ".git" not in p.parts]
    return [path for path in paths if path.is_file() and path.suffix not in {".png", ".gif", ".svg", ".ico"}]
