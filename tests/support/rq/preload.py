"""A settings module that imports the jobs' modules, so that a work-horse need not."""

from __future__ import annotations

from support.rq import jobs as rq_jobs

__all__ = ["rq_jobs"]
