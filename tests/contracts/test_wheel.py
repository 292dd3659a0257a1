"""The tests run against the built wheel, which contains every package, script and type marker of the tree."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_REPOSITORY = "https://repository.invalid"
_ADAPTERS = "celery cli django dramatiq fastapi flask httpx huey pytest requests rq taskiq web"
_SOURCE_ROOTS = {
    "throttlekit": ".",
    "throttlekit_lua": "lua",
    **{f"throttlekit_{each}": "adapters" for each in _ADAPTERS.split()},
}


def _installed() -> Path:
    try:
        distribution = metadata.distribution("throttlekit-jobs")
    except metadata.PackageNotFoundError:
        if os.environ.get("THROTTLEKIT_REQUIRE_SERVERS"):
            raise
        pytest.skip("throttlekit-jobs is not installed: `make test` builds and installs the wheel")
    return Path(str(distribution.locate_file("")))


@pytest.mark.parametrize("package", _SOURCE_ROOTS)
def test_wheel_contains_every_file_of_the_tree(package: str) -> None:
    """Each source file of a package is in the installed wheel, byte for byte, one path prefix shorter."""
    site, root = _installed(), _ROOT / _SOURCE_ROOTS[package]
    sources = [path for path in (root / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sources
    for source in sources:
        installed = site / source.relative_to(root)
        assert installed.read_bytes() == source.read_bytes(), installed


def test_wheel_contains_the_examples() -> None:
    """`throttlekit demo` runs the examples where there is no checkout."""
    folder = _installed() / "throttlekit_cli" / "examples"
    sources = [path for path in (_ROOT / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(sources) > 15
    for source in sources:
        assert (folder / source.relative_to(_ROOT / "examples")).read_bytes() == source.read_bytes()


def test_wheel_contains_no_other_package() -> None:
    """Each top-level name may conflict with another distribution: CONTRIBUTING.md says why the wheel has these."""
    _installed()
    installed = {path.parts[0] for path in metadata.files("throttlekit-jobs") or () if ".." not in path.parts}
    assert {name for name in installed if not name.endswith(".dist-info")} == set(_SOURCE_ROOTS)


def test_tests_import_the_wheel() -> None:
    """The code under test is the installed one, not the checkout."""
    import throttlekit

    assert Path(str(throttlekit.__file__)).is_relative_to(_installed())


def test_wheel_has_the_extras_of_the_readme() -> None:
    """The distribution is called throttlekit-jobs, requires only pluggy, and has an extra per adapter and store."""
    _installed()
    requires = metadata.requires("throttlekit-jobs") or []
    assert [line for line in requires if "extra ==" not in line] == ["pluggy>=1.3"]
    more = {"demo", "opentelemetry", "prometheus", "redis"}
    extras = set(metadata.metadata("throttlekit-jobs").get_all("Provides-Extra") or ())
    assert extras == {*_ADAPTERS.split(), *more} - {"pytest"}


def test_long_description_has_only_absolute_links() -> None:
    """A package index shows only the README: each link is absolute, and leads to a file of the tree."""
    _installed()
    text = str(metadata.metadata("throttlekit-jobs").get_payload())
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    own = [link.removeprefix(f"{_REPOSITORY}/").split("/", 2) for link in links if link.startswith(_REPOSITORY)]
    assert [path for _, _, path in own if not (_ROOT / path.partition("#")[0]).exists()] == []
    pictures = [path for kind, _, path in own if kind == "raw"]
    assert pictures == re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (_ROOT / "README.md").read_text("utf-8"))


def test_repository_is_named_in_one_file() -> None:
    """The repository's placeholder is in pyproject.toml and the guide to publishing: one command replaces it."""
    listed = subprocess.run(["git", "-C", str(_ROOT), "grep", "-lF", _REPOSITORY], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    here = str(Path(__file__).relative_to(_ROOT))
    assert set(listed.stdout.split()) - {here} == {"pyproject.toml", "CONTRIBUTING.md"}


def test_pytest_finds_the_fixtures() -> None:
    """The wheel has one entry point for plugins of pytest: the module with the fixtures."""
    _installed()
    found = metadata.distribution("throttlekit-jobs").entry_points.select(group="pytest11")
    assert [(each.name, each.value) for each in found] == [("throttlekit_pytest", "throttlekit_pytest")]
