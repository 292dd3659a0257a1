"""The queue class of the project: with limits, and enqueued when the database transaction commits."""

from __future__ import annotations

from django_rq.queues import DjangoRQ  # type: ignore[import-untyped]

from throttlekit_rq import ThrottledQueue


class ThrottledDjangoQueue(DjangoRQ, ThrottledQueue):  # type: ignore[misc]
    """A queue that accepts `throttle=` in an enqueue call."""
