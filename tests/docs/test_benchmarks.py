"""The page of benchmarks repeats the raw tables, and its charts are drawn from them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.markdown import ROOT, Page

_PAGE = Page("docs/benchmarks.md")
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:/[\d.]+)?")


def test_each_number_is_in_its_table() -> None:
    """Each figure of a row is in the raw table that the row links to, and the row's command is an existing script."""
    rows = re.findall(
        r"^\| [^|]+ \| ([^|]+) \| `(\w+\.py)`, \[table\]\((results/\w+\.md)\) \|$", _PAGE.text, re.MULTILINE
    )
    assert len(rows) == _PAGE.text.count("[table](")
    for measured, script, page in rows:
        assert (ROOT / "tests/benchmarks" / script).exists()
        raw = Page(f"docs/{page}").text
        for number in _NUMBER.findall(re.sub(r"`[^`]+`", "", measured)):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", raw), (number, page)


def test_each_number_of_a_finding_is_in_its_table() -> None:
    """Each figure with decimals in a sentence is in the raw table that the sentence links to."""
    for line in _PAGE.text.splitlines():
        if (link := re.search(r"\]\((results/\w+\.md)\)\)\.$", line)) and not line.startswith("|"):
            for number in re.findall(r"\d+\.\d+", line):
                assert number in Page(f"docs/{link[1]}").text, (number, link[1])


def test_the_charts_are_drawn_from_the_tables(tmp_path: Path) -> None:
    """The script of the charts writes the images that the page shows."""
    command = [sys.executable, str(ROOT / "tests/benchmarks/charts.py"), "--docs", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert sorted(drawn) == sorted(re.findall(r"\((benchmarks-\w+\.svg)\)", _PAGE.text))
    assert drawn == {name: (ROOT / "docs" / name).read_text("utf-8") for name in drawn}
