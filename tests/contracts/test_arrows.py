"""The layers of modules: a module imports from its own layer and from those below it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from contracts.tree import MODULES, ROOT, parsed

# A module may import modules of its own group, and of the groups that are listed before it.
LAYERS = [
    ("errors", ["throttlekit.errors", "throttlekit._util"]),
    ("scripts", ["throttlekit_lua"]),
    ("_core", ["throttlekit._core"]),
    ("stores", ["throttlekit.stores"]),
    ("hookspecs", ["throttlekit.hookspecs"]),
    ("waiting", [f"throttlekit._engine.{name}" for name in ("call", "room", "waker", "relay")]),
    ("headers", ["throttlekit._engine.response_headers"]),
    ("calls", [f"throttlekit._engine.{name}" for name in ("registry", "claims", "rate_limited")]),
    ("events", [f"throttlekit._engine.{name}" for name in ("events", "plugins")]),
    ("layers", [f"throttlekit._engine.{name}" for name in ("stores", "fallback", "prefetch", "leases")]),
    ("pipeline", ["throttlekit._engine.pipeline"]),
    (
        "running",
        ["throttlekit._engine", *(f"throttlekit._engine.{name}" for name in ("apply_response", "running", "hold"))],
    ),
    ("fleet", ["throttlekit.fleet"]),  # optional: the limiter passes its layer to the engine
    ("limiter", ["throttlekit._wiring", "throttlekit.limiter"]),
    (
        "face",
        [
            "throttlekit",
            "throttlekit._unlimited",
            "throttlekit.adapter",
            "throttlekit.aio",
            "throttlekit.control",
            "throttlekit.metrics",
            "throttlekit.plugins",
            "throttlekit.testing",
        ],
    ),
    (
        "adapters",
        [
            "throttlekit_dramatiq",
            "throttlekit_rq",
            "throttlekit_celery",
            "throttlekit_taskiq",
            "throttlekit_huey",
            "throttlekit_pytest",
            "throttlekit_httpx",
            "throttlekit_requests",
            "throttlekit_fastapi",
            "throttlekit_django",
            "throttlekit_flask",
        ],
    ),
    ("cli", ["throttlekit_cli", "throttlekit_web"]),
    ("project", ["throttlekit_django.admin", "throttlekit_django.management"]),
]
FRAMEWORKS = {"dramatiq", "rq", "celery", "taskiq", "huey", "httpx", "requests", "fastapi", "django", "flask"}
PURE = {
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "datetime",
    "difflib",
    "enum",
    "functools",
    "hashlib",
    "inspect",
    "itertools",
    "math",
    "re",
    "string",
    "types",
    "typing",
    "typing_extensions",
    "urllib",
}
CALENDAR = "throttlekit._core.time_zone"
ALGORITHMS = {name.rpartition(".")[2] for name in MODULES if name.startswith("throttlekit._core.algorithms.")}
SERIALIZE = "throttlekit._core.serialize"
COMMON = [
    name
    for name in MODULES
    if name.startswith(("throttlekit._core.", "throttlekit.stores")) and ".algorithms" not in name and name != SERIALIZE
]


def _imports(module: str) -> Iterator[tuple[str, list[str]]]:
    """Return every import of *module*, nested ones too, as (module, names)."""
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
    """Return the layer with the longest prefix of *module*."""
    found = [
        (len(prefix), rank)
        for rank, (_, prefixes) in enumerate(LAYERS)
        for prefix in prefixes
        if module == prefix or module.startswith(f"{prefix}.")
    ]
    return max(found)[1]


def test_every_module_has_a_layer() -> None:
    """Every module is listed in one layer explicitly, so that no new module gets its package's layer by accident."""
    listed = {prefix for _, prefixes in LAYERS for prefix in prefixes} - {"throttlekit"}
    unlisted = [
        name
        for name in MODULES
        if name != "throttlekit" and not any(f"{name}.".startswith(f"{prefix}.") for prefix in listed)
    ]
    assert unlisted == []


def test_every_layer_lists_modules_that_exist() -> None:
    """A module that was removed from the tree is removed from its layer as well."""
    assert [prefix for _, prefixes in LAYERS for prefix in prefixes if prefix not in MODULES] == []


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_from_its_own_and_lower_layers(module: str) -> None:
    """A module imports from its own layer and from those below it."""
    wrong = [name for name, _ in _imports(module) if name.startswith("throttlekit") and _layer(name) > _layer(module)]
    assert wrong == []


def _cycles() -> list[set[str]]:
    """Sets of modules that import each other, nested imports and those for type checkers included."""
    reached = {name: {other for other, _ in _imports(name) if other in MODULES and other != name} for name in MODULES}
    changed = True
    while changed:
        changed = False
        for name, others in reached.items():
            more = others.union(*(reached[other] for other in others))
            changed = changed or more != others
            reached[name] = more
    in_cycles = [name for name in MODULES if name in reached[name]]
    cycles = [{other for other in in_cycles if other in reached[name] and name in reached[other]} for name in in_cycles]
    return [cycle for number, cycle in enumerate(cycles) if cycle not in cycles[:number]]


def test_no_import_cycle_between_files() -> None:
    """No module imports itself through others: each can be read and tested after those that it imports."""
    assert _cycles() == []


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("throttlekit._core")])
def test_core_is_pure(module: str) -> None:
    """_core imports only values and arithmetic: no clock, I/O, client, logging or plugins."""
    for name, names in _imports(module):
        top = name.partition(".")[0]
        own = {"zoneinfo"} if module == CALENDAR else set()
        assert top in PURE | own or name.startswith(("throttlekit._core.", "throttlekit.errors")), name
        if top == "datetime" and module != CALENDAR:
            assert {*names} <= {"timedelta", "tzinfo"}, "a datetime can read the clock"
        if top == "urllib":
            assert name == "urllib.parse"
    calls = {
        node.func.id
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "exec", "eval", "__import__"}
    methods = {
        node.func.attr
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert not methods & {
        "now",
        "utcnow",
        "today",
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "localtime",
        "gmtime",
    }


def test_time_zones_are_read_only_when_a_limit_names_one() -> None:
    """Time zone files are read only when a limit names a zone, not on import."""
    at_import = {name for node in parsed(CALENDAR).body for name in _of(node)}
    assert "zoneinfo" not in at_import
    assert "zoneinfo" in {name for name, _ in _imports(CALENDAR)}


def _of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or ""


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_algorithm_imports_no_other_algorithm(algorithm: str) -> None:
    """An algorithm imports the shared modules, and no other algorithm except the one that it builds on."""
    imported = {name.rpartition(".")[2] for name, _ in _imports(f"throttlekit._core.algorithms.{algorithm}")}
    builds_on = {"token_bucket": {"gcra"}}
    assert imported & ALGORITHMS == builds_on.get(algorithm, set())


@pytest.mark.parametrize("module", COMMON)
def test_common_modules_import_no_algorithm(module: str) -> None:
    """
    The decision, the waitlist, the base of all limits and the stores import no algorithm, so that a new algorithm is
    one new module, its script, and no other change. Only the table that maps names in messages to algorithms imports
    them.
    """
    assert not [name for name, _ in _imports(module) if name.startswith("throttlekit._core.algorithms.")]


def test_decide_imports_no_limit_and_no_job() -> None:
    """decide.py imports the protocol of algorithms and the waitlists, but no limits or jobs."""
    imported = {name for name, _ in _imports("throttlekit._core.decide") if name.startswith("throttlekit")}
    names = ("algorithm", "answer", "claim", "late", "slowdown", "storage_keys", "waitlist")
    assert imported == {f"throttlekit._core.{name}" for name in names}


def test_errors_import_nothing() -> None:
    """errors.py imports no module of throttlekit."""
    assert [name for name, _ in _imports("throttlekit.errors")] == ["__future__"]


@pytest.mark.parametrize("module", [name for name in MODULES if name.partition(".")[0] == "throttlekit"])
def test_core_imports_no_framework(module: str) -> None:
    """Nothing in throttlekit imports a framework or an adapter."""
    tops = {name.partition(".")[0] for name, _ in _imports(module)}
    assert not tops & (FRAMEWORKS | {f"throttlekit_{framework}" for framework in FRAMEWORKS})


ADAPTERS = [name for name in MODULES if _layer(name) == _layer("throttlekit_dramatiq")]


@pytest.mark.parametrize("module", ADAPTERS)
def test_adapter_imports_one_framework_and_no_store(module: str) -> None:
    """An adapter imports its own framework, and neither Redis, nor the scripts, nor another adapter."""
    own = module.partition(".")[0].removeprefix("throttlekit_")
    others = FRAMEWORKS - {own}
    tops = {name.partition(".")[0] for name, _ in _imports(module)}
    assert not tops & (others | {f"throttlekit_{other}" for other in others} | {"redis"})


@pytest.mark.parametrize("module", ADAPTERS)
def test_adapters_import_public_names_only(module: str) -> None:
    """An adapter could live in another repository: it imports no module and no name with an underscore."""
    own = module.partition(".")[0]
    private = [
        f"{name}.{each}"
        for name, names in _imports(module)
        if name.startswith("throttlekit") and name.partition(".")[0] != own
        for each in names or [""]
        if any(part.startswith("_") for part in f"{name}.{each}".split("."))
    ]
    assert private == []
    floor = {
        "throttlekit",
        "throttlekit.adapter",
        "throttlekit.adapter.loop",  # a separate module, because it imports asyncio
        "throttlekit.errors",
        "throttlekit.stores",
        "throttlekit.testing",
        "throttlekit_lua",
    }
    assert {
        name for name, _ in _imports(module) if name.startswith("throttlekit") and not name.startswith(own)
    } <= floor


_NAMED_TUPLE = {"_asdict", "_fields", "_replace"}
"""Documented attributes of named tuples, despite the underscore."""


def test_core_reads_no_private_attribute_of_the_standard_library() -> None:
    """gevent, or a later Python, may replace a class with one that lacks its private attributes."""
    nodes = [(name, node) for name in MODULES if _layer(name) < _layer("throttlekit_dramatiq") for node in _nodes(name)]
    reads = {
        (name, node.attr)
        for name, node in nodes
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    own = {node.name for _, node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.id for _, node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for _, node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    assert sorted((name, attribute) for name, attribute in reads if attribute not in own | _NAMED_TUPLE) == []


def _nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(parsed(module)))


REDIS = ("bells", "pool", "errors", "client", "from_client", "cluster", "redis", "redis_server", "sentinel")


@pytest.mark.parametrize(
    ("package", "importers"),
    [
        ("redis", {f"throttlekit.stores.{name}" for name in REDIS}),
        (
            "throttlekit_lua",
            {
                "throttlekit.stores.wire",
                *(f"throttlekit.fleet.{each}" for each in ("activity", "downstream", "history", "shares", "tenants")),
            },
        ),
    ],
)
def test_only_redis_stores_import_redis(package: str, importers: set[str]) -> None:
    """Only the Redis stores import redis; only those stores and the fleet import the scripts."""
    assert importers == {
        module
        for module in MODULES
        if _layer(module) < _layer("throttlekit_dramatiq")
        for name, _ in _imports(module)
        if name.partition(".")[0] == package
    }


HEAVY = {
    "asyncio",
    "concurrent.futures",
    "decimal",
    "email",
    "http",
    "importlib.metadata",
    "importlib.resources",
    "ipaddress",
    "json",
    "redis",
    "secrets",
    "socket",
    "ssl",
    "statistics",
    "subprocess",
    "urllib.parse",
    "uuid",
    "zoneinfo",
}


def _loaded_by(use: str) -> set[str]:
    """Return the modules that the script *use* loads, without those that Python has loaded before."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lua")])}
    script = f"import sys; before = set(sys.modules)\n{use}\nprint(' '.join(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return set(loaded.stdout.split())


def test_import_loads_no_slow_module() -> None:
    """`import throttlekit` loads no slow module; the code that needs one imports it on first use."""
    assert not HEAVY & _loaded_by("from throttlekit import Limiter, TokenBucket")


@pytest.mark.parametrize("use", ["", "limiter.acquire(throttlekit.TokenBucket('a', '1/s'))"])
def test_import_loads_no_redis_and_no_framework(use: str) -> None:
    """`import throttlekit`, and an in-memory limiter, load neither a client nor a framework."""
    loaded = _loaded_by(f"import throttlekit\nlimiter = throttlekit.Limiter()\n{use}")
    tops = {name.partition(".")[0] for name in loaded}
    assert "throttlekit" in tops
    assert not tops & (FRAMEWORKS | {"redis", "throttlekit_lua", "pytest", "click", "rich"})
