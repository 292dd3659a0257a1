"""The page of the API shows what users call."""

from __future__ import annotations

import inspect
import re
from types import FunctionType

import throttlekit
from support.markdown import ROOT

_HIDDEN = re.search(r'"!\^\(([\w|]+)\)\$"', (ROOT / "docs" / "api.md").read_text("utf-8"))


# What users call of each class. A new name is added here, or to the names that the page leaves out.
_SHOWN = {
    "Control": "clear_line close enforce history names pause reset resume rules scale set shadow tiers unset weight",
    "Decision": "final headers leases",
    "Job": "arguments",
    "Limit": "at",
    "Limiter": "acquire acquire_many cancel clear_line close declare done heard hold limited overloaded pause peek "
    "release reset resume settle wait",
    "RateLimited": "from_response",
    "Running": "check done heard overloaded release settle",
}


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


def test_the_page_shows_what_users_call() -> None:
    """No name of the machinery is on it, and none that was added without a thought of the page."""
    assert _HIDDEN is not None
    hidden = set(_HIDDEN[1].split("|"))
    shown = {
        each.__name__: " ".join(
            sorted(
                name
                for name, member in vars(each).items()
                if isinstance(member, (FunctionType, property, classmethod))
                and member.__doc__
                and not (name.startswith("_") or name.endswith("_us") or name in hidden)
            )
        )
        for each in _classes()
    }
    coroutines = f"{_SHOWN['Limiter']} in_memory".split()
    assert {name: names for name, names in shown.items() if names} == {
        **_SHOWN, "AsyncLimiter": " ".join(sorted(coroutines))
    }  # fmt: skip
