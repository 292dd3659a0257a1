"""The API pages show exactly what users call."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from types import FunctionType

import throttlekit
from support.markdown import ROOT
from throttlekit import AsyncLimiter, Limiter

# What users call of each class. A new name is added here, or to the names that its page leaves out.
_SHOWN = {
    "Control": (
        "clear_waitlist close enforce history names pause reset resume rules scale set shadow tiers unset weight"
    ),
    "Decision": "final headers leases",
    "Job": "arguments",
    "Limit": "at",
    "Limiter": "acquire acquire_many apply_response cancel clear_waitlist close declare done hold limited pause peek "
    "release report_overload reset resume settle wait",
    "RateLimited": "from_response",
    "Running": "apply_response check done release report_overload settle",
}


@dataclass(frozen=True)
class _Part:
    """What a page shows of the package `throttlekit`: the names, and the methods that it leaves out."""

    names: frozenset[str]
    hidden: frozenset[str]

    @property
    def classes(self) -> list[type]:
        return [each for name in sorted(self.names) if inspect.isclass(each := getattr(throttlekit, name))]


def _parts() -> list[_Part]:
    blocks = re.findall(
        r"^::: throttlekit\n((?: {4}.*\n)+)",
        "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("api-*.md"))),
        re.MULTILINE,
    )
    return [
        _Part(
            frozenset(re.findall(r"^ {8}- (\w+)$", block, re.MULTILINE)),
            frozenset("|".join(re.findall(r'"!\^\(([\w|]+)\)\$"', block)).split("|")) - {""},
        )
        for block in blocks
    ]


def test_each_public_name_is_on_one_page() -> None:
    """The errors and `hookimpl` are on the pages of their modules. Every other public name is listed exactly once."""
    listed = sorted(name for part in _parts() for name in part.names)
    elsewhere = {*throttlekit.errors.__all__, "hookimpl"}
    assert listed == sorted(set(throttlekit.__all__) - elsewhere)


def test_methods_for_adapters_are_not_on_the_pages() -> None:
    """A method whose docstrings all mark it as for adapters is left out, and each method that is left out exists."""
    for part in _parts():
        of_adapters = dict[str, bool]()
        for each in part.classes:
            for name, member in inspect.getmembers(each, inspect.isfunction):
                if not name.startswith("_"):
                    is_excluded = (inspect.getdoc(member) or "").startswith("For adapters")
                    of_adapters[name] = is_excluded and of_adapters.get(name, True)
        assert {name for name, only in of_adapters.items() if only} <= part.hidden
        assert {name for name in part.hidden if not any(hasattr(each, name) for each in part.classes)} == set()


def test_methods_of_a_limiter_are_verbs_or_for_adapters() -> None:
    """Each public method of a limiter is a verb for users, or its docstring says that it is for adapters."""
    for limiter in (Limiter, AsyncLimiter):
        others = {name for name in dir(limiter) if not name.startswith("_")} - {*_SHOWN["Limiter"].split(), "in_memory"}
        docs = {name: inspect.getdoc(getattr(limiter, name)) or "" for name in others}
        assert [name for name in sorted(docs) if not docs[name].startswith("For adapters")] == []


def test_the_pages_show_what_users_call() -> None:
    """The pages show no internal name, and no new name that is missing from the list of this test."""
    shown = {
        each.__name__: " ".join(
            sorted(
                name
                for name, member in vars(each).items()
                if isinstance(member, (FunctionType, property, classmethod))
                and member.__doc__
                and not (name.startswith("_") or name.endswith("_us") or name in part.hidden)
            )
        )
        for part in _parts()
        for each in part.classes
    }
    coroutines = f"{_SHOWN['Limiter']} in_memory".split()
    assert {name: names for name, names in shown.items() if names} == {
        **_SHOWN,
        "AsyncLimiter": " ".join(sorted(coroutines)),
    }
