"""Every Python block of the README and of docs runs."""

from __future__ import annotations

import builtins
import dis
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import dramatiq
import pytest
from taskiq import InMemoryBroker

import throttlekit
import throttlekit_dramatiq
from support.markdown import Page, all_pages

_PAGES = [page for page in all_pages() if page.blocks("python") and page.path != "docs/tutorial.md"]
"""The pages with blocks. test_tutorial.py runs the tutorial as a whole."""


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.path)
def test_every_block_of_a_page_runs(page: Page, predefined: dict[str, Any], redis_url: str, importable: Path) -> None:
    """
    The blocks of a page run in order, in one namespace. A block with a title is a file, and is imported. Names that a
    tab defines are visible only in the tabs of that framework; those of the first framework are also visible in the
    text around the tabs.
    """
    if "add_middleware" not in page.text:
        dramatiq.get_broker().add_middleware(throttlekit_dramatiq.Throttle(predefined["limiter"]))
    blocks = [block for block in page.blocks("python") if not block.fragment]
    texts = [re.sub(r"redis://localhost:6379/\d+", redis_url, block.text) for block in blocks]
    for block, text in zip(blocks, texts, strict=True):
        if block.title:
            path = importable / block.title
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    missing: set[tuple[str, str]] = set()
    of_tab: dict[str, dict[str, Any]] = {"taskiq": {"broker": InMemoryBroker()}}
    for block, text in zip(blocks, texts, strict=True):
        dramatiq.get_broker().actors.clear()  # so that a page can declare an actor twice
        if block.title:
            importlib.import_module(block.title.removesuffix(".py").replace("/", "."))
        else:
            code = compile("\n" * block.line + text, page.path, "exec")
            if block.tab in (None, "Dramatiq"):
                exec(code, predefined)
            else:
                own = {**predefined, **of_tab.get(str(block.tab), {})}
                exec(code, own)
                of_tab[str(block.tab)] = {n: v for n, v in own.items() if predefined.get(n) is not v}
            own_names = of_tab.get(str(block.tab), {})
            missing.update((f"{page.path}:{block.line}", name) for name in _globals(code) if name not in own_names)
    known = {*predefined, *vars(builtins)}
    assert {(location, name) for location, name in missing if name not in known} == set()


def _globals(code: CodeType) -> Iterator[str]:
    """Return the global names that code uses, including those in the bodies of functions that no block calls."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.path)
def test_every_limit_in_a_sentence_can_be_created(page: Page, predefined: dict[str, Any]) -> None:
    """Text in backquotes that looks like a limit is a valid limit. Most of it is in tables."""
    algorithms = "TokenBucket|LeakyBucket|FixedWindow|SlidingWindow|SlidingLog|Concurrency"
    for text in re.findall(rf"`((?:{algorithms})\(.+?\))`", page.text):
        assert isinstance(eval(text, predefined), throttlekit.Limit)


def test_fragments_are_few() -> None:
    """A block that cannot run by itself has a comment before it with the reason, and is still valid Python."""
    fragments = [block for page in all_pages() for block in page.blocks("python") if block.fragment]
    assert len(fragments) <= 3
    for block in fragments:
        compile(block.text, str(block.fragment), "exec")
