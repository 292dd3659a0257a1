"""The promises of every adapter, and which sites keep them, as a page of the docs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.adapter_sizes import ADAPTERS, sizes
from support.reports.tables import table

__all__ = ["Outcomes", "page", "promises", "sites"]

_CONTRACT = Path(__file__).resolve().parents[1] / "adapters" / "contract"
_FRAMEWORKS = {**ADAPTERS, "toy": "A toy queue"}


def promises() -> dict[str, str]:
    """Each promise in a sentence, by the name of its test, in the order of the suite."""
    from throttlekit.testing import AdapterConformance  # pytest must come first: throttlekit has a plugin for it

    suite: Any = AdapterConformance
    parts = [part for part in suite.__mro__ if part.__module__.startswith("throttlekit.testing.")]
    return {
        name: " ".join(test.__doc__.split())
        for part in parts
        for name, test in vars(part).items()
        if name.startswith("test_")
    }


def sites() -> list[str]:
    """What the suite runs on: every test class of the contract's tests, as "Framework: Class"."""
    return [
        label(path.stem, name)
        for path in sorted(_CONTRACT.glob("test_*.py"))
        for name in re.findall(r"^class Test(\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    ]


def label(module: str, name: str) -> str:
    framework = _FRAMEWORKS[module.removeprefix("test_")]
    return framework if name.lower() in framework.replace(" ", "").lower() else f"{framework}: {name}"


class Outcomes:
    """A plugin of pytest that keeps what became of each promise on each site."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.reasons: dict[tuple[str, str], str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        file, name, test = report.nodeid.split("::")
        where = test, label(Path(file).stem, name.removeprefix("Test"))
        if report.skipped:
            self.reasons[where] = str(report.longrepr[2]).partition("unsupported: ")[2] or str(report.longrepr[2])
        elif report.failed:
            self.kept[where] = "✗"
        elif report.when == "call":
            self.kept.setdefault(where, "✓")


def page(kept: Mapping[tuple[str, str], str], reasons: Mapping[tuple[str, str], str]) -> str:
    """The page: a table, and the reason for each promise that cannot be asked for."""
    columns, numbers = sites(), dict[str, int]()

    def cell(test: str, site: str) -> str:
        reason = reasons.get((test, site))
        if reason is None:
            return kept.get((test, site), "NOT RUN")
        return f"unsupported ({numbers.setdefault(reason, len(numbers) + 1)})"

    rows = [[_sentence(test, text), *(cell(test, site) for site in columns)] for test, text in promises().items()]
    notes = "\n".join(f"{number}. {reason[0].upper()}{reason[1:]}." for reason, number in numbers.items())
    return f"""# Promises and frameworks

Every adapter keeps the same promises.
`throttlekit.testing.AdapterConformance` has one test for each.
[Write an adapter](write-an-adapter.md) says how to run it on an adapter of your own.
`python tests/adapters/contract/table.py` runs it on real brokers and prints this table.

{table(["promise", *columns], rows)}

Where a promise is unsupported, the framework cannot be asked for it:

{notes}

## Versions and sizes

`make test` runs with the newest version of each framework, and `make test-oldest` with the older ones.
A statement is counted once, however many lines it has; imports, docstrings and comments are none.
Lines of code are all others but blank ones, comments and docstrings.
What all adapters share is in `throttlekit.adapter`, and is not counted here.

<!-- sizes -->

{sizes()}

<!-- sizes: end -->
"""


def _sentence(test: str, text: str) -> str:
    return f"**{test.removeprefix('test_').replace('_', ' ')}**: {text}"
