"""A settings module that imports what jobs need, so that a work-horse finds it there."""

from __future__ import annotations

from support.rq import jobs as rq_jobs

__all__ = ["rq_jobs"]
