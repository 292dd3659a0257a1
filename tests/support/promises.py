"""The promises of every adapter, and which sites keep them, as a page of the docs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.adapter_sizes import ADAPTERS, sizes
from support.reports.tables import table

__all__ = ["Outcomes", "page", "promises", "sites"]

_CONTRACT = Path(__file__).resolve().parents[1] / "adapters" / "contract"
_FRAMEWORKS = {**ADAPTERS, "toy": "A toy queue"}


def promises() -> dict[str, str]:
    """Return the sentence of each promise, by the name of its test, in the order of the suite."""
    from throttlekit.testing import AdapterConformance  # after pytest, because throttlekit has a plugin for it

    suite: Any = AdapterConformance
    parts = [part for part in suite.__mro__ if part.__module__.startswith("throttlekit.testing.")]
    return {
        name: " ".join(test.__doc__.split())
        for part in parts
        for name, test in vars(part).items()
        if name.startswith("test_")
    }


def sites() -> list[str]:
    """Return the sites of the suite: every test class of the contract's tests, as "Framework: Class"."""
    return [
        label(path.stem, name)
        for path in sorted(_CONTRACT.glob("test_*.py"))
        for name in re.findall(r"^class Test(\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    ]


def label(module: str, name: str) -> str:
    framework = _FRAMEWORKS[module.removeprefix("test_")]
    return framework if name.lower() in framework.replace(" ", "").lower() else f"{framework}: {name}"


class Outcomes:
    """A plugin of pytest that records the outcome of each promise on each site."""

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
    """Return the page with the sites of the suite, and for each promise the sites that do not keep it, with reasons."""
    numbers = dict[str, int]()

    def exceptions(test: str) -> str:
        found = dict[str, list[str]]()
        for site in sites():
            reason = reasons.get((test, site))
            if reason is not None:
                found.setdefault(f"({numbers.setdefault(reason, len(numbers) + 1)})", []).append(site)
            elif (outcome := kept.get((test, site), "NOT RUN")) != "✓":
                found.setdefault(outcome, []).append(site)
        return ", ".join(f"{_short(where)} {why}" for why, where in found.items())

    rows = [[_name(test), text, exceptions(test)] for test, text in promises().items()]
    notes = "\n".join(f"{number}. {reason[0].upper()}{reason[1:]}." for reason, number in numbers.items())
    return f"""# Promises and frameworks

Every adapter keeps the same promises, and `throttlekit.testing.AdapterConformance` has a test for each.
[Write an adapter](write-an-adapter.md#test-it) shows how to use it.
`python tests/adapters/contract/table.py docs/promises.md` tests these, with real brokers, and writes this page:
{_short(sites())}.

The last column has the exceptions, with numbered reasons.

{table(["promise", "what", "not on"], rows)}

{notes}

## Versions and sizes

`make test` runs with the newest version of each framework, and `make test-oldest` with the older ones.
A statement counts once, however many lines it has.
Imports, docstrings and comments do not count, and neither does `throttlekit.adapter`, which all adapters share.

<!-- sizes -->

{sizes()}

<!-- sizes: end -->
"""


def _short(where: Sequence[str]) -> str:
    """
    Return sites by their frameworks. A framework whose sites are all included has only its name, unless all frameworks
    are included.
    """
    of_framework = dict[str, list[str]]()
    for site in where:
        framework, _, kind = site.partition(": ")
        of_framework.setdefault(framework, []).append(kind)
    everywhere = len(where) == len(sites())
    return ", ".join(
        framework
        if kinds == [""] or (not everywhere and len(kinds) == sum(s.startswith(f"{framework}:") for s in sites()))
        else f"{framework} ({', '.join(kinds)})"
        for framework, kinds in of_framework.items()
    )


def _name(test: str) -> str:
    return f"**{test.removeprefix('test_').replace('_', ' ')}**"
