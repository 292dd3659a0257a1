"""The Markdown pages for tests: their fenced blocks, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["FRAMEWORKS", "ROOT", "Block", "Page", "all_pages"]

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("Dramatiq", "RQ", "Celery", "taskiq", "huey")
"""The frameworks' names in the pages, in the order of their tabs."""
_FRAGMENT = re.compile(r"<!-- fragment: (.+?) -->")
_TITLE = re.compile(r'title="([^"]+)"')
_TAB = re.compile(r'^=== "(.+)"$')


@dataclass(frozen=True, slots=True)
class Block:
    """
    A fenced block.

    Attributes:
        line: The line at which its text begins, from 0.
        title: The name of the file that the block shows, if it has one.
        fragment: Why the block cannot run alone, if the comment before it has a reason.
        tab: The title of the content tab that it is in. None: it is in no tab.
    """

    language: str
    text: str
    line: int
    title: str | None
    fragment: str | None
    tab: str | None = None

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command of a console block, and its output lines in the block."""
        begun: tuple[str, list[str]] | None = None
        for line in self.text.replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                if begun:
                    yield begun
                begun = line[2:].strip(), []
            elif begun and line.strip():
                begun[1].append(line)
        if begun:
            yield begun


@dataclass(frozen=True, slots=True)
class Page:
    """A page, by its path from the project's folder."""

    path: str

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text("utf-8")

    def blocks(self, *languages: str, tab: str | None = None) -> list[Block]:
        """
        Return its fenced blocks in *languages*, in their order. With *tab*, only the blocks in tabs with this title,
        and the blocks in no tab.
        """
        found: list[Block] = []
        before, tabs = "", _tabs(self.text)
        for token in _tokens(self.text):
            if token.type == "fence" and token.info.split(" ")[0] in languages:
                language, _, rest = token.info.partition(" ")
                title, fragment = _TITLE.search(rest), _FRAGMENT.search(before)
                assert token.map
                found.append(
                    Block(
                        language,
                        token.content,
                        token.map[0] + 1,
                        title and title.group(1),
                        fragment and fragment.group(1),
                        tabs.get(token.map[0]),
                    )
                )
            before = token.content if token.type == "html_block" else ""
        return [block for block in found if tab is None or block.tab in (None, tab)]

    def tab_sets(self) -> list[list[str]]:
        """Return the titles of each set of tabs, in their order."""
        sets: list[list[str]] = []
        previous = ""
        for line in self.text.splitlines():
            if title := _TAB.match(line):
                if previous.startswith(("    ", "=== ")):
                    sets[-1].append(title[1])
                else:
                    sets.append([title[1]])
            previous = line or previous
        return sets

    def links(self) -> list[str]:
        return [
            str(inner.attrs["href"])
            for token in _tokens(self.text)
            for inner in token.children or ()
            if inner.type == "link_open"
        ]

    def anchors(self) -> set[str]:
        """Return the anchors of its headings, as GitHub and the site create them."""
        tokens = _tokens(self.text)
        titles = [inline.content for begin, inline in pairwise(tokens) if begin.type == "heading_open"]
        return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@cache
def _tokens(text: str) -> list[Token]:
    lines, tabs = text.split("\n"), _tabs(text)
    text = "\n".join(line.removeprefix("    ") if number in tabs else line for number, line in enumerate(lines))
    return MarkdownIt("commonmark").enable("table").parse(text)


@cache
def _tabs(text: str) -> dict[int, str]:
    """Return the number of each line in a tab, with the tab's title."""
    found: dict[int, str] = {}
    tab: str | None = None
    for number, line in enumerate(text.split("\n")):
        if title := _TAB.match(line):
            tab = title[1]
        elif line and not line.startswith("    "):
            tab = None
        elif tab is not None:
            found[number] = tab
    return found


def all_pages() -> list[Page]:
    """Return the README, CONTRIBUTING, the pages in docs, and the pages of the examples."""
    folders = [ROOT / "docs", ROOT / "examples", *sorted((ROOT / "examples").iterdir())]
    found = [path for folder in folders for path in sorted(folder.glob("*.md"))]
    return [Page("README.md"), Page("CONTRIBUTING.md"), *(Page(str(path.relative_to(ROOT))) for path in found)]
