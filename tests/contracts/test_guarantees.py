"""Every test that docs/guarantees.md names exists."""

from __future__ import annotations

import re

from contracts.tree import ROOT

_NAMED = re.compile(r"`(tests/[\w/]+\.py)?::(test_\w+)`")


def test_every_test_named_in_the_guarantees_exists() -> None:
    """Each test function, and each test file, that the page names is in the tree."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    found, path = 0, ""
    for file, name in _NAMED.findall(page):
        path = file or path
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"
        found += 1
    assert found > 50
    for file in re.findall(r"`(tests/[\w/]+\.py)`", page):
        assert (ROOT / file).is_file(), file
