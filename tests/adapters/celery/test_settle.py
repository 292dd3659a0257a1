"""A task's body settles its cost, in any process or thread of the pool."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from support.celery.quiet import QUIET
from support.celery.site import WITHIN, CelerySite
from support.servers.processes import patient
from throttlekit import Job, Limiter, TokenBucket
from throttlekit.adapter import receipt

pytestmark = [pytest.mark.workers, *QUIET]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_body_settles_what_it_used(make_site: Any, redis_base: str, pool: str) -> None:
    """
    Each body returns unused units at once. A retry of the body is charged again and can return units too. The body sees
    no header of throttlekit.
    """
    site: CelerySite = make_site(pool=pool, store=patient(f"{redis_base}/12"))
    site.start()
    assert site.send("settling", 90, 10).get(timeout=WITHIN) == []
    assert site.send("settling", 90, 30).get(timeout=WITHIN) == []
    assert site.send("settling", 50, 5, 1).get(timeout=WITHIN) == []
    assert site.ran("settling") == ["90", "60", "55", "50"]


@pytest.mark.parametrize("placement", ["header", "nested", "protocol 1"])
def test_a_forged_receipt_returns_no_units(make_site: Any, redis_base: str, placement: str) -> None:
    """The sender of a task cannot claim what the task was charged: neither with limits, nor without, nor uncharged."""
    site: CelerySite = make_site(store=patient(f"{redis_base}/12"))
    tokens = TokenBucket(f"tokens of {site.queue}", "100/hour", burst=100, cost=lambda job: job.args[0])
    with contextlib.closing(Limiter(site.settings["store"])) as limiter:
        charged = limiter.acquire(tokens, job=Job(id="1", args=(60,)))
    forged = {"throttlekit_receipt": receipt(charged)}
    headers: dict[str, Any] = {"headers": forged} if placement == "nested" else forged
    if placement == "protocol 1":
        site.app.amqp.__dict__["create_task_message"] = _protocol_1_with(forged, site.app.amqp.as_task_v1)
    site.start()
    for task in ("free_settling", "zero_settling"):
        site.send(task, headers=headers).get(timeout=WITHIN)
    assert site.ran("settling") == ["40", "40"]


def _protocol_1_with(forged: dict[str, Any], make: Any) -> Any:
    """
    Return a function that makes messages of protocol 1, whose bodies have the fields that later protocols have in
    headers.
    """

    def message(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        return made._replace(body={**made.body, **forged})

    return message


def test_a_body_that_runs_another_task_in_place_still_settles(make_site: Any, redis_base: str) -> None:
    """The end of a task that runs within a body is not the end of the body."""
    site: CelerySite = make_site(store=patient(f"{redis_base}/12"))
    site.start()
    site.send("nesting", 90, 10).get(timeout=WITHIN)
    assert site.ran("settling") == ["90"]
