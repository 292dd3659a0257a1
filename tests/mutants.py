"""
Mutants of the Lua scripts, the engine and the adapters, by hand: each changes one thing, and the fast tests must
notice. Those of the pure core in Python are made by mutmut (see CONTRIBUTING.md).

    python tests/mutants.py                 all of them
    python tests/mutants.py decide.lua -n 2    those whose file or text has "decide.lua" in it, two at a time
    python tests/mutants.py .py                 those in Python

Works on copies of the tree, each with a Redis of its own. The tests that are most likely to notice are run first, the
others only if they do not. Prints a line for each, survivors once more at the end; exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from support import mutants_lua, mutants_python
from support.servers.processes import redis_server

ROOT = Path(__file__).parents[1]

# Which of the random histories are most likely to notice, by file; of others, the mixtures.
LIKELY = {
    "concurrency": "concurrency",
    "latency": "adaptive-concurrency",
    "fixed_window": "fixed-window",
    "sliding_log": "sliding-log",
    "sliding_window": "sliding-window",
    "token_bucket": "token-bucket",
}
WAITS = "tests/parity/test_waitlists.py"
OF_WAITLISTS = ("decide", "at_once", "claims", "one_record")
CASES = ["tests/parity/test_numbers.py", "tests/conformance/test_redis_store.py"]
HISTORY = f"{WAITS}::test_random_histories[{{}}]"
STORES = [f"tests/conformance/test_stores.py::Test{kind}Store" for kind in ("Memory", "Redis")]
QUICKLY = [
    *("-x", "-q", "--tb=no", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-profile", "unshrunk"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
]


class Mutant(NamedTuple):
    """A text of the file *name*, and what takes its place. It meets one stage of tests after the other."""

    number: int
    name: str
    old: str
    new: str
    stages: list[list[str]]


def stages(name: str) -> list[list[str]]:
    """The tests that a mutant of the script *name* meets, until one notices."""
    stem = Path(name).stem
    likely = [HISTORY.format(LIKELY.get(stem, "mixtures"))]
    if stem == "latency":
        return [likely, ["tests/parity/test_latency.py"], [*STORES, *CASES, HISTORY.format("mixtures")]]
    if stem in OF_WAITLISTS or stem.startswith("wait"):
        return [[WAITS], CASES, [WAITS]]  # what is rare is met by one of many histories
    rest = [*STORES, HISTORY.format("mixtures")]
    if stem == "sliding_log":  # few histories move more than a piece
        rest.append("tests/conformance/test_bounded_scripts.py::test_moved_units_keep_their_times")
    return [likely, CASES, rest]


MUTANTS = [
    *(
        Mutant(number, f"lua/throttlekit_lua/{name}", old, new, stages(name))
        for name, mutants in mutants_lua.MUTANTS.items()
        for number, (old, new) in enumerate(mutants, 1)
    ),
    *(
        Mutant(number, name, old, new, [tests])
        for name, mutants in mutants_python.MUTANTS.items()
        for number, (old, new, tests) in enumerate(mutants, 1)
    ),
]


def stale() -> list[str]:
    """Those whose text is not there, or more than once: nobody knows what they would change."""
    return [
        f"{each.name}: {each.old!r} is there {count} times, not once"
        for each in MUTANTS
        if (count := (ROOT / each.name).read_text("utf-8").count(each.old)) != 1 or each.old == each.new
    ]


def _begin(places: multiprocessing.SimpleQueue[tuple[str, str]]) -> None:
    """In each process: a copy of the tree and a Redis of its own, and all that never changes imported once."""
    folder, url = places.get()
    for name in ("throttlekit", "lua", "adapters", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
        shutil.copytree(ROOT / name, Path(folder, name), ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    os.chdir(folder)
    sys.path[:0] = found = [folder, *(str(Path(folder, name)) for name in ("lua", "adapters"))]
    os.environ.update({"PYTHONPATH": os.pathsep.join(found), "THROTTLEKIT_TEST_REDIS": url})
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(folder, "pyc"))
    for module in ("pytest", "hypothesis.strategies", "redis.asyncio"):
        importlib.import_module(module)


def _passes(tests: Sequence[str]) -> bool:
    sys.stdout.flush()
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code not in (0, 1, 2, 4):  # 2, 4: a module, or a test's, could not even be imported
            raise RuntimeError(f"pytest {' '.join(tests)} ended with {code}")
        return code == 0
    code = 70
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import pytest

        code = int(pytest.main([*QUICKLY, *tests]))
    finally:
        os._exit(code)


def _meet(mutant: Mutant) -> tuple[bool, float]:
    """Whether the mutant survives, and how long that took, in seconds."""
    started, original = time.monotonic(), (ROOT / mutant.name).read_text("utf-8")

    def write(text: str, second: int) -> None:
        Path(mutant.name).write_text(text, "utf-8")
        os.utime(mutant.name, (second, second))  # compiled modules are known by the second of their text and its length

    write(original.replace(mutant.old, mutant.new), 10**9 + mutant.number)
    try:
        return all(_passes(tests) for tests in mutant.stages), time.monotonic() - started
    finally:
        write(original, 10**9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants whose file or text has one of these in it")
    parser.add_argument("-n", type=int, default=1, help="how many at a time (default: 1)")
    options = parser.parse_args()
    if faults := stale():
        raise SystemExit("\n".join(faults))
    wanted = [
        each
        for each in MUTANTS
        if not options.words or any(word in f"{each.name} {each.old} {each.new}" for word in options.words)
    ]
    survivors: list[str] = []
    context = multiprocessing.get_context("spawn")
    places = context.SimpleQueue()
    with ExitStack() as stack:
        for _ in range(options.n):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tk-mutants-"))
            places.put((folder, stack.enter_context(redis_server())))
        pool = stack.enter_context(ProcessPoolExecutor(options.n, context, _begin, (places,)))
        met = {tuple(tests): None for each in wanted for tests in each.stages}
        if failing := [tests for tests, passes in zip(met, pool.map(_passes, met), strict=True) if not passes]:
            print("without any mutant these fail:", *map(" ".join, failing), sep="\n")
            return 2
        for each, (survived, seconds) in zip(wanted, pool.map(_meet, wanted), strict=True):
            told = f"{Path(each.name).name} {each.number:2}  {each.old!r} -> {each.new!r}"
            print(f"{'SURVIVED' if survived else 'dead':8}  {seconds:5.1f} s  {told}", flush=True)
            survivors += [told] if survived else []
    print(f"\n{len(survivors)} of {len(wanted)} survived", *survivors, sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
