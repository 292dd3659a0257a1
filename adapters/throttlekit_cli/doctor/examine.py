"""Examine the store, and then each framework."""

from __future__ import annotations

from collections.abc import Mapping

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
    if where := named["dramatiq"]:
        from throttlekit_cli.doctor.dramatiq import examine_dramatiq

        findings += examine_dramatiq(where)
    if where := named["celery"]:
        from throttlekit_cli.doctor.celery import examine_celery

        findings += examine_celery(where)
    if where := named["rq"]:
        from throttlekit_cli.doctor.rq import examine_rq

        findings += examine_rq(where)
    return findings
