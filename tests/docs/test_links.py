"""Every link has a target, and every page is in the navigation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.markdown import ROOT, Page, all_pages


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.path)
def test_every_link_has_its_target(page: Page) -> None:
    """A link leads to an existing file, and to a heading in that file."""
    for link in page.links():
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page.path).parent / path if path else ROOT / page.path
        assert target.exists(), link
        if anchor:
            assert anchor in Page(str(target.resolve().relative_to(ROOT))).anchors(), link


_NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]


def _pages(nav: list[dict[str, Any]]) -> Iterator[str]:
    yield from (page for _, page in _pages_with_titles(nav))


def _pages_with_titles(nav: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each page of the navigation, with its title there."""
    for entry in nav:
        ((title, below),) = entry.items()
        if isinstance(below, str):
            yield title, below
        else:
            yield from _pages_with_titles(below)


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs.yml names each page of docs once, and no other page."""
    assert sorted(_pages(_NAV)) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_llms_txt_lists_every_page() -> None:
    """docs/llms.txt has a line for each page, with its title and in the order of the navigation."""
    text = (ROOT / "docs/llms.txt").read_text("utf-8")
    assert re.findall(r"^- \[(.+?)\]\((.+?)\): .+$", text, re.MULTILINE) == list(_pages_with_titles(_NAV))
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [title for section in _NAV for title in section]


def test_the_first_page_leads_to_every_guide() -> None:
    """The first page also links to every page for operators, so a reader finds a feature without the navigation."""
    linked = {link.partition("#")[0] for link in Page("docs/index.md").links()}
    for section in _NAV:
        ((name, _),) = section.items()
        if name in ("Start", "Limits", "Guides", "Frameworks", "Migrate", "Operate"):
            assert set(_pages([section])) - linked == {"index.md"} & set(_pages([section])), name


def test_no_page_links_out_of_the_site() -> None:
    """A page in docs/ links only to pages in docs/, so that the site has them too."""
    for page in all_pages():
        if not page.path.startswith("docs/"):
            continue
        for link in page.links():
            assert not link.startswith(".."), f"{page.path}: {link}"
