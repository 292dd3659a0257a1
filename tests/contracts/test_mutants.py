"""Whether the mutants that are written by hand still name a line each: one that does not is never met by a test."""

from __future__ import annotations

from mutants import stale


def test_each_mutant_changes_a_text_that_stands_there_once() -> None:
    """A change of a line that a mutant names changes that mutant too, in tests/support/mutants_lua.py or _python.py."""
    assert stale() == []
