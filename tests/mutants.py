"""
Mutants of the Lua scripts, by hand: each changes one thing, and the fast tests must notice. Those of Python are made by
mutmut (see CONTRIBUTING.md).

    python tests/mutants.py                 all of them
    python tests/mutants.py acquire.lua -n 2    those whose file or text has "acquire.lua" in it, two at a time

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

sys.path.insert(0, str(Path(__file__).parent))

from support import mutants_lua
from support.servers.processes import redis_server

ROOT = Path(__file__).parents[1]

MUTANTS = {f"lua/throttlekit_lua/{name}": mutants for name, mutants in mutants_lua.MUTANTS.items()}

# Which of the random histories are most likely to notice, by file; of others, the mixtures.
LIKELY = {
    "concurrency": "concurrency",
    "latency": "adaptive-concurrency",
    "lease": "concurrency",
    "fast_bucket": "token-bucket",
    "fast_line": "token-bucket",
    "fixed_window": "fixed-window",
    "gcra": "token-bucket",
    "sliding_log": "sliding-log",
    "sliding_window": "sliding-window",
    "token_bucket": "token-bucket",
}
PARITY = "tests/parity/test_lua.py"
WAITS = "tests/parity/test_waitlists.py"
OF_WAITLISTS = ("ask", "at_once", "claims")
CASES = ["tests/parity/test_lines.py", "tests/parity/test_numbers.py"]
HISTORY = f"{PARITY}::test_long_random_histories[{{}}]"
STORES = [f"tests/conformance/test_stores.py::Test{kind}Store" for kind in ("Memory", "Redis")]
QUICKLY = [
    *("-x", "-q", "--tb=no", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-profile", "unshrunk"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
]
BRIEF = {"THROTTLEKIT_TEST_HISTORIES": "10000"}


def stages(name: str) -> list[list[str]]:
    """The tests that a mutant of the file *name* meets, until one notices."""
    stem = Path(name).stem
    likely = [HISTORY.format(LIKELY.get(stem, "mixtures"))]
    exact = [PARITY, *CASES, "-k", "not long_random_histories"]
    if stem == "latency":
        exact = ["tests/parity/test_latency.py"]
    if stem in OF_WAITLISTS or stem.startswith("wait"):
        return [[WAITS], [WAITS]]  # what is rare is met by one of many histories
    rest = [*STORES, "tests/conformance/test_redis_store.py", HISTORY.format("mixtures")]
    if stem == "clear_line":  # no history empties a line
        rest = ["tests/conformance/test_redis_store.py", "tests/conformance/test_control.py"]
    if stem == "sliding_log":  # few histories move more than a piece
        rest.append("tests/conformance/test_bounded_scripts.py::test_units_that_move_keep_their_instants")
    return [likely, exact, rest]


def stale() -> list[str]:
    """Those whose text is not there, or more than once: nobody knows what they would change."""
    return [
        f"{name}: {old!r} is there {count} times, not once"
        for name, mutants in MUTANTS.items()
        for old, new in mutants
        if (count := (ROOT / name).read_text("utf-8").count(old)) != 1 or old == new
    ]


def _begin(places: multiprocessing.SimpleQueue[tuple[str, str]]) -> None:
    """In each process: a copy of the tree and a Redis of its own, and all that never changes imported once."""
    folder, url = places.get()
    for name in ("throttlekit", "lua", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
        shutil.copytree(ROOT / name, Path(folder, name), ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    os.chdir(folder)
    sys.path[:0] = found = [folder, str(Path(folder, "lua"))]
    os.environ.update({"PYTHONPATH": os.pathsep.join(found), "THROTTLEKIT_TEST_REDIS": url, **BRIEF})
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


def _meet(number: int, name: str, old: str, new: str) -> tuple[bool, float]:
    """Whether the mutant survives, and how long that took, in seconds."""
    started, original = time.monotonic(), (ROOT / name).read_text("utf-8")

    def write(text: str, second: int) -> None:
        Path(name).write_text(text, "utf-8")
        os.utime(name, (second, second))  # compiled modules are known by the second of their text and its length

    write(original.replace(old, new), 10**9 + number)
    try:
        return all(_passes(tests) for tests in stages(name)), time.monotonic() - started
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
        (number, name, old, new)
        for name, mutants in MUTANTS.items()
        for number, (old, new) in enumerate(mutants, 1)
        if not options.words or any(word in f"{name} {old} {new}" for word in options.words)
    ]
    survivors: list[str] = []
    context = multiprocessing.get_context("spawn")
    places = context.SimpleQueue()
    with ExitStack() as stack:
        for _ in range(options.n):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tk-mutants-"))
            places.put((folder, stack.enter_context(redis_server())))
        pool = stack.enter_context(ProcessPoolExecutor(options.n, context, _begin, (places,)))
        met = {tuple(tests): None for _, name, *_ in wanted for tests in stages(name)}
        if failing := [tests for tests, passes in zip(met, pool.map(_passes, met), strict=True) if not passes]:
            print("without any mutant these fail:", *map(" ".join, failing), sep="\n")
            return 2
        for each, (survived, seconds) in zip(wanted, pool.map(_meet, *zip(*wanted, strict=True)), strict=True):
            number, name, old, new = each
            told = f"{Path(name).name} {number:2}  {old!r} -> {new!r}"
            print(f"{'SURVIVED' if survived else 'dead':8}  {seconds:5.1f} s  {told}", flush=True)
            survivors += [told] if survived else []
    print(f"\n{len(survivors)} of {len(wanted)} survived", *survivors, sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
