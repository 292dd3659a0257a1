"""A body that fails after denials is a failure like any other."""

from __future__ import annotations

from typing import Any

import pytest
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import StubBackend

from support.dramatiq.helpers import DenyBefore, Site, dead_letters
from throttlekit import Limiter, TokenBucket
from throttlekit_dramatiq import Throttle


def test_failures_are_reported_as_by_dramatiq(site: Site) -> None:
    """
    `on_failure` is called once for each failure of the body, and `on_retry_exhausted` once, whatever the denials in
    between. The reader of the result gets the body's own exception.
    """
    store, backend = DenyBefore(2), StubBackend()
    site.broker.add_middleware(Results(backend=backend))
    site.broker.add_middleware(Throttle(Limiter(store)))

    @site.actor
    def failure(message: dict[str, Any], error: dict[str, str]) -> None:
        site.ran.append(error["message"])

    @site.actor
    def exhausted(message: dict[str, Any], retries: dict[str, int]) -> None:
        site.ran.append(retries)

    @site.actor(
        throttle=TokenBucket("each", "1000/s", key="{n}"), store_results=True, max_retries=1, min_backoff=1,
        on_failure="failure", on_retry_exhausted="exhausted",
    )  # fmt: skip
    def job(n: int) -> None:
        raise RuntimeError("no")

    message = job.send(1)
    with site.working():
        site.until_ran(3)
        with pytest.raises(ResultFailure) as failed:
            message.get_result(backend=backend, block=True)
    assert (failed.value.orig_exc_type, failed.value.orig_exc_msg) == ("RuntimeError", "no")
    assert sorted(map(str, site.ran)) == ["no", "no", "{'retries': 1, 'max_retries': 1}"]
    assert (store.denials, store.grants) == (4, 2)
    assert [each.message_id for each in dead_letters(site.broker, site.queue)] == [message.message_id]
