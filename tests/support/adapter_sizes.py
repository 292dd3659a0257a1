"""
The supported versions and the size of each framework's adapter, as a table of docs/promises.md.

    python tests/adapters/contract/table.py docs/promises.md --sizes

prints only this table again.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.reports.tables import table

__all__ = ["ADAPTERS", "MARKED", "lines", "sizes", "statements"]

_ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = {"celery": "Celery", "dramatiq": "Dramatiq", "huey": "huey", "rq": "RQ", "taskiq": "taskiq"}
MARKED = re.compile(r"(?<=<!-- sizes -->\n\n).*?(?=\n\n<!-- sizes: end -->)", re.DOTALL)


def statements(package: Path) -> int:
    """
    Return the number of statements of a package: how much there is to understand, however the lines are formatted.

    Imports, docstrings and comments do not count. A function, class or branch is one statement, and each statement in
    it is another one.
    """
    return sum(
        isinstance(node, ast.stmt) and not isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_docstring(node)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def lines(package: Path) -> int:
    """Return the number of lines of a package without blank lines, comments and docstrings."""
    count = 0
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        documented = {
            number
            for node in ast.walk(ast.parse(text))
            if _is_docstring(node)
            for number in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        count += sum(
            bool(line.strip()) and not line.strip().startswith("#") and number not in documented
            for number, line in enumerate(text.splitlines(), 1)
        )
    return count


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def sizes() -> str:
    """Return the table."""
    project, makefile = (_ROOT / "pyproject.toml").read_text("utf-8"), (_ROOT / "Makefile").read_text("utf-8")
    rows = []
    for name, framework in ADAPTERS.items():
        (supported,) = re.findall(rf'^{name} = \["{name}([^"]+)"', project, re.MULTILINE)
        older = dict.fromkeys(re.findall(rf'"{name}==([\d.]+)\.\*"', makefile))
        package = _ROOT / "adapters" / f"throttlekit_{name}"
        tested = ", ".join([*older, "newest"])
        rows.append([framework, supported.replace(",", ", "), tested, statements(package), lines(package)])
    return table(["framework", "versions", "tested in CI", "statements", "lines of code"], rows)
