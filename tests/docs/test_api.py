"""The page of the API shows what users call."""

from __future__ import annotations

import inspect
import re

import throttlekit
from support.markdown import ROOT

_HIDDEN = re.search(r'"!\^\(([\w|]+)\)\$"', (ROOT / "docs" / "api.md").read_text("utf-8"))


def _classes() -> list[type]:
    return [each for name in throttlekit.__all__ if inspect.isclass(each := getattr(throttlekit, name))]


def test_what_adapters_use_is_not_on_the_page() -> None:
    """A name whose docstrings all say so is left out; and each name that is left out exists."""
    assert _HIDDEN is not None
    hidden, of_adapters = set(_HIDDEN[1].split("|")), dict[str, bool]()
    for each in _classes():
        for name, member in inspect.getmembers(each, inspect.isfunction):
            if not name.startswith("_"):
                says_so = (inspect.getdoc(member) or "").startswith("For adapters")
                of_adapters[name] = says_so and of_adapters.get(name, True)
    assert {name for name, only in of_adapters.items() if only} <= hidden
    assert {name for name in hidden if not any(hasattr(each, name) for each in _classes())} == set()
