"""The pages keep their form: they are short and searchable, show public names only, and name only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.markdown import FRAMEWORKS, ROOT, Page, all_pages

_SHARED = [
    "Set up",
    "Where limits are declared",
    "What happens to a denied job",
    "Maximum wait",
    "Concurrency limits",
    "Handle 429 responses",
    "When Redis is unavailable",
    "Shutdown and killed workers",
    "Errors",
    "Known limitations",
]
_PATH = re.compile(r"`((?:throttlekit\w*|adapters|lua|tests|docs)/[\w/.]*)`")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_have_the_same_headings(framework: str) -> None:
    """A reader who knows the page of one framework finds the same sections, in the same order, on the others."""
    assert re.findall(r"^## (.+)$", Page(f"docs/{framework.lower()}.md").text, re.MULTILINE) == _SHARED


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.path)
def test_tabs_of_frameworks_are_in_one_order(page: Page) -> None:
    """A framework's tab is in the same place on every page."""
    for tabs in page.tab_sets():
        if set(tabs) <= set(FRAMEWORKS):
            assert tabs == [framework for framework in FRAMEWORKS if framework in tabs]


@pytest.mark.parametrize(
    ("subject", "page"),
    [
        ("concurrency-limits", "limit-concurrency"),
        ("handle-429-responses", "limit-429"),
        ("when-redis-is-unavailable", "store"),
    ],
)
def test_a_subject_has_the_same_heading_on_every_page(subject: str, page: str) -> None:
    """A subject's own page and the guarantees use the same heading as the pages of the frameworks."""
    for each in (page, "guarantees"):
        assert subject in Page(f"docs/{each}.md").anchors()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("api-*.md")), ids=lambda path: path.stem)
def test_the_api_pages_show_public_names_only(path: Path) -> None:
    """No object of a page has a private module in its path, and the overview links to the page."""
    shown = re.findall(r"^::: (\S+)$", path.read_text("utf-8"), re.MULTILINE)
    assert shown
    assert path.name in Page("docs/api.md").links()
    assert [name for name in shown if "._" in name] == []


@pytest.mark.parametrize("path", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_the_page_names_exists(path: str) -> None:
    """A page that describes the code names no file or folder that was moved or renamed."""
    named = set(_PATH.findall(Page(path).text))
    assert named
    assert [
        name for name in sorted(named) if not (ROOT / name).exists() and not (ROOT / "adapters" / name).exists()
    ] == []
