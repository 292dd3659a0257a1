"""Fixtures that the tests of Celery's worker share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import celery.signals
import pytest

from support.celery.site import CelerySite, celery_site
from support.flood.slot_record import LONG_LEASE, SlotRecord
from support.servers.processes import patient
from throttlekit_celery._host import worker_state


@pytest.fixture
def make_site(stack: ExitStack, redis_base: str, request: pytest.FixtureRequest) -> Callable[..., CelerySite]:
    """Return a function that makes a site on a broker of the given kind, with Redis for the results."""

    def make(kind: str = "redis", **options: Any) -> CelerySite:
        broker = redis_base if kind == "redis" else request.getfixturevalue("rabbitmq_url")
        return stack.enter_context(celery_site(kind, broker, redis_base, **options))

    return make


@pytest.fixture
def make_slots(
    make_site: Callable[..., CelerySite], stack: ExitStack, redis_base: str
) -> Callable[..., tuple[CelerySite, SlotRecord]]:
    """Return a function that makes a site with slots, and the record of its bodies and their partner."""
    defaults: dict[str, Any] = {
        "module": "support.celery.slots",
        "store": patient(f"{redis_base}/12"),
        "amount": 1,
        "lease": LONG_LEASE,
        "rate": "1000/s",
        "burst": 1000,
    }

    def make(kind: str = "redis", **options: Any) -> tuple[CelerySite, SlotRecord]:
        site = make_site(kind, **{**defaults, **options})
        return site, stack.enter_context(closing(SlotRecord(site.settings["record"], site.queue)))

    return make


@pytest.fixture
def reserved() -> Iterator[Any]:
    """The process's own set of reserved requests in Celery, emptied for the test."""
    known: Any = worker_state().reserved_requests
    before = list(known)
    known.clear()
    yield known
    known.clear()
    known.update(before)


@pytest.fixture
def restore_signals() -> Iterator[None]:
    """Restore the receivers of Celery's signals afterwards."""
    signals = [celery.signals.task_received, celery.signals.task_prerun, celery.signals.task_postrun]
    before = [list(signal.receivers) for signal in signals]
    yield
    for signal, receivers in zip(signals, before, strict=True):
        signal.receivers[:] = receivers
        signal.sender_receivers_cache.clear()
