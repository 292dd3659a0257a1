"""Examine the store, and then each framework."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from throttlekit import ConfigurationError, StoreUnavailable
from throttlekit_cli.doctor.findings import Finding
from throttlekit_cli.doctor.store import examine_store

__all__ = ["examine"]


def examine(url: str | None, named: Mapping[str, str | None]) -> list[Finding]:
    """
    Examine the store at *url*, and the frameworks that are *named*.

    Raises:
        ExaminationError: A named broker, app or server cannot be examined.
        ConfigurationError: The store's URL is not valid.
    """
    findings = [] if url is None else list(examine_store(url))
    if url is not None and not url.startswith("memory:") and not any(each.grade == "fault" for each in findings):
        findings += _reports(url)
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
    return findings


def _reports(url: str) -> list[Finding]:
    from throttlekit_cli.doctor.same_store import examine_reports
    from throttlekit_cli.store import open_store

    try:
        with contextlib.closing(open_store(url)) as store:
            return list(examine_reports(store))
    except (ConfigurationError, StoreUnavailable):  # a plugin's store, which is not one that a fleet reports to
        return []
