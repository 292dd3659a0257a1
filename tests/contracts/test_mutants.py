"""The mutants are of today's code: what none of them can change any more, no test was shown to notice."""

from __future__ import annotations

from pathlib import Path

import mutants
from contracts.tree import LUA, ROOT


def test_what_a_mutant_changes_is_there_once() -> None:
    """The text of every mutant stands in its file exactly once, and is changed."""
    assert not mutants.stale()


def test_no_mutant_is_there_twice() -> None:
    """Of each file, no two mutants are the same."""
    for name, each in mutants.MUTANTS.items():
        assert len(set(each)) == len(each), name


def test_every_file_that_decides_has_mutants() -> None:
    """Every module of the core, and every script that decides, has mutants."""
    core = [path for path in (ROOT / "throttlekit" / "_core").glob("*.py") if path.name != "__init__.py"]
    assert {str(path.relative_to(ROOT)) for path in [*core, *LUA]} <= {*mutants.MUTANTS}
    assert all(each for each in mutants.MUTANTS.values())


def test_every_file_of_tests_that_mutants_meet_is_there() -> None:
    """The tests that a mutant meets are in the tree, by the names that the tool knows."""
    met = {test for name in mutants.MUTANTS for tests in mutants.stages(name) for test in tests if test.endswith(".py")}
    assert met
    assert [test for test in met if not Path(ROOT, test).exists()] == []
