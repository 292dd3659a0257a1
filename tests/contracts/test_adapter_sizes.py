"""The maximum size of an adapter, and the sizes that the documentation states."""

from __future__ import annotations

import pytest

from contracts.tree import ROOT
from support.adapter_sizes import ADAPTERS, MARKED, sizes, statements


@pytest.mark.parametrize(("name", "most"), [("huey", 400), ("taskiq", 350)])
def test_a_new_framework_takes_few_statements(name: str, most: int) -> None:
    """Code that two adapters would share is in `throttlekit.adapter`: an adapter has only code of its own framework."""
    assert statements(ROOT / "adapters" / f"throttlekit_{name}") < most


def test_docs_state_the_current_sizes_of_the_adapters() -> None:
    """
    The table in docs/promises.md shows the current sizes: `tests/adapters/contract/table.py … --sizes` prints it again.
    """
    (shown,) = MARKED.findall((ROOT / "docs" / "promises.md").read_text("utf-8"))
    assert shown == sizes()
    assert len(shown.splitlines()) == 2 + len(ADAPTERS)
