"""The pages about adapters agree with the conformance suite and with the toy adapter."""

from __future__ import annotations

import ast

from support.markdown import ROOT, Page
from support.promises import page, promises, sites

_PAGE = Page("docs/promises.md")


def test_the_page_names_every_promise_and_every_framework() -> None:
    """
    The table has a row for each promise, with its text, and the page names every site. No promise is broken or left
    out.
    """
    shown, as_printed = _rows(_PAGE.text), _rows(page({}, {}))
    assert [row[:2] for row in shown] == [row[:2] for row in as_printed]
    assert len([row for row in shown if row[0].startswith("**")]) == len(promises())
    (line_of_sites,) = [line for line in page({}, {}).splitlines() if line.startswith("Celery (")]
    assert line_of_sites in _PAGE.text.splitlines()
    assert all(site.partition(": ")[2] in line_of_sites for site in sites())
    assert "✗" not in _PAGE.text
    assert "NOT RUN" not in _PAGE.text


def _rows(text: str) -> list[list[str]]:
    table = text.partition("## Versions")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]


def test_the_example_of_the_page_is_the_toy_adapter() -> None:
    """docs/write-an-adapter.md shows the adapter that passes the suite, word for word. The adapter is short."""
    code = (ROOT / "tests/support/toy/adapter.py").read_text("utf-8")
    (shown,) = [block for block in Page("docs/write-an-adapter.md").blocks("python") if block.title]
    assert shown.text == code
    assert len(code.splitlines()) < 150


def test_the_toy_adapter_uses_public_names_only() -> None:
    """The toy adapter imports from throttlekit and throttlekit.adapter, and uses no name with an underscore."""
    tree = ast.parse((ROOT / "tests/support/toy/adapter.py").read_text("utf-8"))
    ours = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("throttlekit")
        for alias in node.names
    ]
    assert {module for module, _ in ours} == {"throttlekit", "throttlekit.adapter"}
    assert not any(name.startswith("_") for _, name in ours)
