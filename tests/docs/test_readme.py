"""The README is short, and agrees with the pages that repeat it and with the benchmarks."""

from __future__ import annotations

import re

from support.markdown import FRAMEWORKS, Page

_README, _FIRST_PAGE = Page("README.md"), Page("docs/index.md")
_MEASURED = {
    "peers": (
        "round trips of a decision, 1, 2 or 3 limits",
        "latency of one limit, allowed, × INCR",
        "latency of a job that waits, × INCR",
        "server CPU of one limit, allowed, × INCR",
        "bytes a tenant",
    ),
    "backlog": tuple(f"{name}: denials of a job, with 1 000, 10 000" for name in ("dramatiq", "rq", "celery")),
}
"""The rows of the benchmarks' summary that the README repeats, in its order."""


def test_the_readme_is_short() -> None:
    """A new reader needs three minutes for it."""
    assert len(_README.text.splitlines()) <= 120


def test_the_first_page_shows_the_same_snippets() -> None:
    """The first page has the README's snippet of each framework, in the same order and with the same text."""
    shown = _FIRST_PAGE.blocks("python")
    assert [block.tab for block in shown] == list(FRAMEWORKS)
    assert [block.text for block in shown] == [block.text for block in _README.blocks("python")]


def test_the_skill_shows_the_same_snippets() -> None:
    """Each snippet of the README is in docs/SKILL.md, which a coding agent reads. That page is short."""
    skill = Page("docs/SKILL.md")
    shown = [block.text for block in skill.blocks("python")]
    assert shown[: len(FRAMEWORKS)] == [block.text for block in _README.blocks("python")]
    assert len(skill.text.split()) <= 700


def test_both_pages_state_the_same_problem() -> None:
    """The paragraph below the titles is the same."""
    assert _FIRST_PAGE.text.split("\n\n")[:2] == _README.text.split("\n\n")[:2]


def test_the_costs_are_those_of_the_benchmarks() -> None:
    """
    Each figure in the README's table of costs is in the summary of docs/results/decisions.md, and the table has no
    others.
    """
    text = Page("docs/results/decisions.md").text
    measured: dict[tuple[str, str], str] = {}
    for by, what, figure in re.findall(r"^\| (\w+) \| (.+?) \| (.+?) \|", text, re.MULTILINE):
        measured.setdefault((by, what), figure)  # peers.py runs again, with hiredis
    last = [measured[by, what].rpartition("→ ")[2] for by, names in _MEASURED.items() for what in names]
    table = _README.text.partition("## What it costs")[2].partition("\n## ")[0]
    cells = re.findall(r"\| (\d[^|]*) \|$", table, re.MULTILINE)
    assert re.findall(r"\d+(?:\.\d+)?", " ".join(cells)) == [f"{float(re.split('[ ;]', each)[0]):.3g}" for each in last]
    incr = re.search(r"^INCR took (\d+) µs", text, re.MULTILINE)
    assert incr
    assert f"`INCR` of {incr[1]} µs" in table
