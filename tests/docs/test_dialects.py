"""The page on headers shows every header format that is supported."""

from __future__ import annotations

from support.markdown import ROOT
from throttlekit._engine.response_headers import DIALECTS


def test_the_page_has_the_table_of_dialects() -> None:
    """The page's table has the rows of the supported formats, in the order of precedence."""
    page = (ROOT / "docs" / "how-to-headers.md").read_text("utf-8")
    table = page.split("| dialect | example | described in |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [f"| {each.name} | {each.says} | [{each.source}]({each.url}) |" for each in DIALECTS]
    assert table.splitlines() == rows
