"""The page on headers shows every header format that is supported."""

from __future__ import annotations

import re

from support.markdown import ROOT
from throttlekit._engine.response_headers import DIALECTS


def test_the_page_has_the_table_of_dialects() -> None:
    """The page's table has the supported formats in the order of precedence, each with an example and its source."""
    page = (ROOT / "docs" / "how-to-headers.md").read_text("utf-8")
    table = page.split("| dialect | example | described in |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [re.fullmatch(r"\| (.+?) \| .+ \| \[.+\]\(https://\S+\) \|", row) for row in table.splitlines()]
    assert [row and row[1] for row in rows] == [each.name for each in DIALECTS]
