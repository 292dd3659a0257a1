"""Each hand-written mutant still matches one text of the product: no test can find a mutant that matches none."""

from __future__ import annotations

from mutants import stale


def test_each_mutant_changes_a_text_that_occurs_once() -> None:
    """If a line that a mutant names changes, change the mutant in tests/support/mutants_lua.py or mutants_python.py."""
    assert stale() == []
