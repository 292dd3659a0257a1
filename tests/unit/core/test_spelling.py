"""Which known name a misspelt one probably means."""

from __future__ import annotations

import pytest

from throttlekit._core.spelling import similar_names, spelling_hint


@pytest.mark.parametrize(
    ("name", "of_unknown", "of_any"),
    [("throtle", ["throttle"], ["throttle"]), ("thrtl", ["throttle"], []), ("colour", [], [])],
)
def test_similar_names_are_found(name: str, of_unknown: list[str], of_any: list[str]) -> None:
    """A name that may be right is compared more strictly than one that is certainly wrong."""
    known = ["throttle", "max_wait"]
    assert similar_names(name, known) == of_unknown
    assert similar_names(name, known, unknown=False) == of_any


def test_the_most_similar_name_comes_first() -> None:
    """No more names are returned than were requested."""
    known = ["partner", "partner-api", "parts"]
    assert similar_names("partnr", known, most=3)[0] == "partner"
    assert len(similar_names("partnr", known, most=2)) == 2


def test_a_hint_ends_an_error() -> None:
    """The hint is empty if no name is similar."""
    assert spelling_hint("brust", ["rate", "burst"]) == ": did you mean 'burst'?"
    assert spelling_hint("colour", ["rate", "burst"]) == ""
