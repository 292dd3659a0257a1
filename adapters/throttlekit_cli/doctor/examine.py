"""Examine the installation and the store, then each framework, and then the limits of the imported code."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from throttlekit import ConfigurationError, StoreUnavailable
from throttlekit_cli.doctor.definitions import compare_definitions, declared_limits
from throttlekit_cli.doctor.findings import Finding, findings_about
from throttlekit_cli.doctor.imports import import_target
from throttlekit_cli.doctor.same_store import examine_reports
from throttlekit_cli.doctor.store import examine_store
from throttlekit_cli.store import open_store

__all__ = ["examine", "examine_installation"]

_OWN, _NAME = "throttlekit-jobs", "throttlekit"
_, _, _warning, _ = findings_about("install")


def examine(url: str | None, named: Mapping[str, str | None], apps: Sequence[str] = ()) -> list[Finding]:
    """
    Examine the store at *url*, the frameworks that are *named*, and the limits of their modules and of *apps*.

    Raises:
        ExaminationError: A named broker, app, module or server cannot be examined.
        ConfigurationError: The store's URL is not valid.
    """
    findings = list(examine_installation())
    findings += [] if url is None else examine_store(url)
    is_sound = url is not None and not url.startswith("memory:") and all(each.grade != "fault" for each in findings)
    for module in apps:
        import_target(module)
    if url is not None and is_sound:
        findings += _of_fleet(url, examine_reports)
    for framework, where in named.items():
        if where:
            checks: Any = importlib.import_module(f"throttlekit_cli.doctor.{framework}")  # needs the framework
            findings += checks.examine(where, url)
    if url is not None and is_sound:
        declared = declared_limits()
        findings += _of_fleet(url, lambda store: compare_definitions(store, declared))
    return findings


def examine_installation() -> Iterator[Finding]:
    """Check that no other distribution has a package named `throttlekit`, which would overwrite files of this one."""
    owners = metadata.packages_distributions().get(_NAME, ())
    for other in sorted({each.lower().replace("_", "-").replace(".", "-") for each in owners} - {_OWN}):
        yield _warning(
            f"The distribution {other!r} installs a package named {_NAME!r} too. The one that was installed last has "
            "overwritten files of the other.",
            f"pip uninstall {other}, then pip install --force-reinstall {_OWN}",
        )


def _of_fleet(url: str, examine: Callable[[Any], Iterable[Finding]]) -> list[Finding]:
    try:
        with contextlib.closing(open_store(url)) as store:
            return list(examine(store))
    except (ConfigurationError, StoreUnavailable):  # a plugin's store, which is not one that a fleet reports to
        return []
