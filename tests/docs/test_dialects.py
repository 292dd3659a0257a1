"""The page on response headers shows every dialect that is read."""

from __future__ import annotations

from support.markdown import ROOT
from throttlekit._engine.response_headers import DIALECTS


def test_the_page_has_the_table_of_dialects() -> None:
    """Row for row, in the order in which they are believed."""
    page = (ROOT / "docs" / "how-to-headers.md").read_text("utf-8")
    table = page.split("| dialect | example | described in |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [f"| {each.name} | {each.says} | [{each.source}]({each.url}) |" for each in DIALECTS]
    assert table.splitlines() == rows
