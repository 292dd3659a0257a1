"""Neither the product nor its documentation contains words that a reader has to decode."""

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
    r"stakes?": "tenant share",
    r"moulds?": "template",
    r"fallen": "reduced",
    r"let pass": "admitted",
    r"for [^.,;]{1,30}\d ?(s|m|h|minutes|seconds) yet": "for another 20 s",
}

FORBIDDEN_IN_CORE = {
    r"stands?|stood": "is, waits, or the name of the relation",
    r"comes? back|came back|goes? back": "is redelivered, retries, or is returned",
    r"brings?|brought": "has, or sends",
    r"tells?": "reports, or returns",
    r"gate_us|guest_us|probe_us": "tat_us, next_retry_us, TRIAL_US",
}


@cache
def _read() -> dict[str, str]:
    kinds, tops = {".py", ".lua", ".js", ".html", ".md"}, {"throttlekit", "adapters", "lua", "examples", "docs"}
    paths = [path.relative_to(ROOT) for path in tracked() if path.suffix in kinds]
    read = [path for path in paths if path.parts[0] in tops or str(path) == "README.md"]
    return {str(path): (ROOT / path).read_text("utf-8") for path in read}


@pytest.mark.parametrize("words", FORBIDDEN)
def test_no_text_has_words_of_the_private_dialect(words: str) -> None:
    """Each of these words has a plain replacement: see the table above, and CONTRIBUTING.md."""
    assert _lines_with(words, ("",)) == [], f"write: {FORBIDDEN[words]}"


@pytest.mark.parametrize("words", FORBIDDEN_IN_CORE)
def test_core_and_scripts_use_the_words_of_the_field(words: str) -> None:
    """The core and its scripts contain none of the further private words."""
    assert _lines_with(words, ("throttlekit/", "lua/")) == [], f"write: {FORBIDDEN_IN_CORE[words]}"


def _lines_with(words: str, tops: tuple[str, ...]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in _read().items()
        if name.startswith(tops)
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"\b({words})\b", line, re.IGNORECASE)
    ]
