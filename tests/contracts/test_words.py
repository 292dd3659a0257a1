"""Words that a reader has to decode stand neither in the product nor in its documentation."""

from __future__ import annotations

import re
from functools import cache

import pytest

from contracts.tree import ROOT, tracked

FORBIDDEN = {
    r"anew": "again, or renewed",
    r"told": "reported, known, or the name of the thing",
    r"heard": "received, or applied",
    r"of downstream": "from the partner",
    r"for ever": "without end, or without a time-out",
    r"whoever": "the program, or the user",
    r"aside": "removed, or absent",
    r"lanes?": "waitlist",
    r"tidied|genuine": "removed, or present",
    r"for [^.,;]{1,30}\d ?(s|m|h|minutes|seconds) yet": "for another 20 s",
}


@cache
def _read() -> dict[str, str]:
    kinds, tops = {".py", ".lua", ".js", ".html", ".md"}, {"throttlekit", "adapters", "lua", "examples", "docs"}
    paths = [path.relative_to(ROOT) for path in tracked() if path.suffix in kinds]
    read = [path for path in paths if path.parts[0] in tops or str(path) == "README.md"]
    return {str(path): (ROOT / path).read_text("utf-8") for path in read}


@pytest.mark.parametrize("words", FORBIDDEN)
def test_no_text_has_words_that_nobody_searches_for(words: str) -> None:
    """Each has a plain word: see the table above, and CONTRIBUTING.md."""
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in _read().items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"\b({words})\b", line, re.IGNORECASE)
    ]
    assert found == [], f"write: {FORBIDDEN[words]}"
