"""Whether the pages keep to their form: short, searchable, public names only, and no file that is gone."""

from __future__ import annotations

import re

import pytest

from support.markdown import ROOT, Page

_FRAMEWORKS = ("dramatiq", "rq", "celery", "huey")
_SHARED = (
    "where-limits-are-declared",
    "what-happens-to-a-denied-job",
    "maximum-wait",
    "concurrency-limits",
    "handle-429-responses",
    "when-redis-is-unavailable",
    "shutdown-and-killed-workers",
    "errors",
    "set-up",
)
_PATH = re.compile(r"`((?:throttlekit\w*|adapters|lua|tests|docs)/[\w/.]*)`")


@pytest.mark.parametrize("framework", _FRAMEWORKS)
def test_frameworks_have_the_same_headings(framework: str) -> None:
    """A reader who knows the page of one framework finds the same subjects on the others."""
    shared = set(_SHARED) - ({"set-up"} if framework == "rq" else set())  # RQ needs none: limits come with the job
    assert shared <= Page(f"docs/{framework}.md").anchors()


@pytest.mark.parametrize("subject", ["concurrency-limits", "handle-429-responses", "when-redis-is-unavailable"])
def test_a_subject_has_the_same_heading_on_every_page(subject: str) -> None:
    """The reference and the guarantees name it as the frameworks do."""
    for page in ("limits", "guarantees"):
        assert subject in Page(f"docs/{page}.md").anchors()


def test_the_readme_is_short() -> None:
    """A newcomer reads it in three minutes, and of the frameworks only one."""
    assert len(Page("README.md").text.splitlines()) < 180


def test_the_api_page_shows_public_names_only() -> None:
    """No object of the page has a private module in its path."""
    shown = re.findall(r"^::: (\S+)$", Page("docs/api.md").text, re.MULTILINE)
    assert shown
    assert [name for name in shown if "._" in name] == []


@pytest.mark.parametrize("path", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_the_page_names_is_there(path: str) -> None:
    """A page that shows the way through the code names no file or folder that was moved or renamed."""
    named = set(_PATH.findall(Page(path).text))
    assert named
    assert [
        name for name in sorted(named) if not (ROOT / name).exists() and not (ROOT / "adapters" / name).exists()
    ] == []
