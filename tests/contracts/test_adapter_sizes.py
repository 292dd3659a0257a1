"""How large an adapter may be, and what the docs say of it."""

from __future__ import annotations

import pytest

from contracts.tree import ROOT
from support.adapter_sizes import ADAPTERS, MARKED, sizes, statements


@pytest.mark.parametrize(("name", "most"), [("huey", 400), ("taskiq", 350)])
def test_a_new_framework_takes_few_statements(name: str, most: int) -> None:
    """What two adapters would both write is in `throttlekit.adapter`: little is left that is one framework's own."""
    assert statements(ROOT / "adapters" / f"throttlekit_{name}") < most


def test_the_docs_say_how_large_the_adapters_are() -> None:
    """Its table in docs/promises.md is that of today: `tests/adapters/contract/table.py … --sizes` prints it anew."""
    (shown,) = MARKED.findall((ROOT / "docs" / "promises.md").read_text("utf-8"))
    assert shown == sizes()
    assert len(shown.splitlines()) == 2 + len(ADAPTERS)
