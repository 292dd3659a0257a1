"""Examine the installation and the store, then each framework, and then the limits of the imported code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from throttlekit import ConfigurationError, StoreUnavailable
from throttlekit_cli.doctor.findings import Finding
from throttlekit_cli.doctor.imports import import_target
from throttlekit_cli.doctor.installation import examine_installation
from throttlekit_cli.doctor.store import examine_store

__all__ = ["examine"]


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
        from throttlekit_cli.doctor.same_store import examine_reports

        findings += _of_fleet(url, examine_reports)
    if where := named["dramatiq"]:
        from throttlekit_cli.doctor.dramatiq import examine_dramatiq

        findings += examine_dramatiq(where, url)
    if where := named["celery"]:
        from throttlekit_cli.doctor.celery import examine_celery

        findings += examine_celery(where, url)
    if where := named["taskiq"]:
        from throttlekit_cli.doctor.taskiq import examine_taskiq

        findings += examine_taskiq(where, url)
    if where := named["huey"]:
        from throttlekit_cli.doctor.huey import examine_huey

        findings += examine_huey(where, url)
    if where := named["rq"]:
        from throttlekit_cli.doctor.rq import examine_rq

        findings += examine_rq(where, url)
    if url is not None and is_sound:
        from throttlekit_cli.doctor.definitions import compare_definitions, declared_limits

        declared = declared_limits()
        findings += _of_fleet(url, lambda store: compare_definitions(store, declared))
    return findings


def _of_fleet(url: str, examine: Callable[[Any], Iterable[Finding]]) -> list[Finding]:
    from throttlekit_cli.store import open_store

    try:
        with contextlib.closing(open_store(url)) as store:
            return list(examine(store))
    except (ConfigurationError, StoreUnavailable):  # a plugin's store, which is not one that a fleet reports to
        return []
