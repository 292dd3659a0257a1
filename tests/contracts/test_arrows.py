"""Which module may import which: arrows run one way."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from contracts.tree import MODULES, ROOT, parsed

# Everything may import what stands above it, and its own group.
LAYERS = [
    ("errors", ["throttlekit.errors", "throttlekit._forks"]),
    ("scripts", ["throttlekit_lua"]),
    ("_core", ["throttlekit._core"]),
    ("stores", ["throttlekit.stores"]),
    (
        "hooks",
        [
            "throttlekit.hookspecs",
            "throttlekit._delivery",
            "throttlekit._plugins",
            "throttlekit._seldom",
            "throttlekit._waited",
            "throttlekit._wiring",
            "throttlekit.inline",
        ],
    ),
    ("limiter", ["throttlekit.limiter"]),
    ("face", ["throttlekit", "throttlekit.testing", "throttlekit._testing"]),
    ("adapters", ["throttlekit_dramatiq", "throttlekit_rq", "throttlekit_celery"]),
    ("cli", ["throttlekit_cli"]),
]
FRAMEWORKS = {"dramatiq", "rq", "celery"}
PURE = {
    "__future__", "collections", "dataclasses", "datetime", "enum", "hashlib", "inspect", "math", "re", "string",
    "typing", "urllib",
}  # fmt: skip


def _imports(module: str) -> Iterator[tuple[str, list[str]]]:
    """Every import of *module*, nested ones too, as (module, names)."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import: write it in full"
            name = node.module or ""
            submodules = [alias.name for alias in node.names if f"{name}.{alias.name}" in MODULES]
            yield from ((f"{name}.{submodule}", []) for submodule in submodules)
            names = [alias.name for alias in node.names if alias.name not in submodules]
            if names or not submodules:
                yield name, names


def _layer(module: str) -> int:
    """The layer with the longest prefix of *module*."""
    found = [
        (len(prefix), rank)
        for rank, (_, prefixes) in enumerate(LAYERS)
        for prefix in prefixes
        if module == prefix or module.startswith(f"{prefix}.")
    ]
    return max(found)[1]


def test_every_module_has_its_layer() -> None:
    """A new module of the core is put into a layer by hand: none falls to the package's by accident."""
    named = {prefix for _, prefixes in LAYERS for prefix in prefixes}
    core = {name for name in MODULES if name.startswith("throttlekit.")}
    assert {
        name for name in core if name not in named and name.rpartition(".")[0] not in named - {"throttlekit"}
    } == set()


@pytest.mark.parametrize("module", MODULES)
def test_arrows_run_one_way(module: str) -> None:
    """A module imports from its own layer and from those below it."""
    wrong = [name for name, _ in _imports(module) if name.startswith("throttlekit") and _layer(name) > _layer(module)]
    assert wrong == []


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("throttlekit._core")])
def test_the_core_is_pure(module: str) -> None:
    """_core imports no clock, no I/O, no client, no logging and no plugins: only values and arithmetic."""
    for name, names in _imports(module):
        top = name.partition(".")[0]
        assert top in PURE or name.startswith(("throttlekit._core.", "throttlekit.errors")), name
        if top == "datetime":
            assert names == ["timedelta"], "a datetime can tell the time"
        if top == "urllib":
            assert name == "urllib.parse"
    calls = {
        node.func.id
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "exec", "eval", "__import__"}


def test_errors_import_nothing() -> None:
    """errors.py is a leaf."""
    assert [name for name, _ in _imports("throttlekit.errors")] == ["__future__"]


@pytest.mark.parametrize("module", [name for name in MODULES if name.partition(".")[0] == "throttlekit"])
def test_the_core_knows_no_framework(module: str) -> None:
    """Nothing in throttlekit imports a framework or an adapter."""
    tops = {name.partition(".")[0] for name, _ in _imports(module)}
    assert not tops & (FRAMEWORKS | {f"throttlekit_{framework}" for framework in FRAMEWORKS})


@pytest.mark.parametrize("module", [name for name in MODULES if _layer(name) == _layer("throttlekit_dramatiq")])
def test_adapters_know_one_framework_and_no_store(module: str) -> None:
    """An adapter imports its own framework, and neither Redis, nor the scripts, nor another adapter."""
    own = module.partition(".")[0].removeprefix("throttlekit_")
    others = FRAMEWORKS - {own}
    tops = {name.partition(".")[0] for name, _ in _imports(module)}
    assert not tops & (others | {f"throttlekit_{other}" for other in others} | {"redis", "throttlekit_lua"})


def test_only_the_redis_store_knows_redis() -> None:
    """redis and the scripts are imported in one place."""
    knowing = {
        module
        for module in MODULES
        if _layer(module) < _layer("throttlekit_cli")
        for name, _ in _imports(module)
        if name.partition(".")[0] in ("redis", "throttlekit_lua")
    }
    assert knowing == {"throttlekit.stores.redis"}


@pytest.mark.parametrize("use", ["", "limiter.acquire(throttlekit.TokenBucket('a', '1/s'))"])
def test_import_brings_no_redis_and_no_framework(use: str) -> None:
    """`import throttlekit`, and a limiter in memory, load neither a client nor a framework."""
    script = f"import sys, throttlekit\nlimiter = throttlekit.Limiter()\n{use}\nprint(' '.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lua")])}
    loaded = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    tops = {name.partition(".")[0] for name in loaded.stdout.split()}
    assert "throttlekit" in tops
    assert not tops & (FRAMEWORKS | {"redis", "throttlekit_lua", "pytest", "click", "rich"})
