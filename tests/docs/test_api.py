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
    """A method that says so in its docstring is left out; and each name that is left out exists."""
    assert _HIDDEN is not None
    hidden = set(_HIDDEN[1].split("|"))
    for each in _classes():
        for name, member in inspect.getmembers(each, inspect.isfunction):
            if not name.startswith("_") and (inspect.getdoc(member) or "").startswith("For adapters"):
                assert name in hidden, f"{each.__name__}.{name}"
    assert {name for name in hidden if not any(hasattr(each, name) for each in _classes())} == set()
