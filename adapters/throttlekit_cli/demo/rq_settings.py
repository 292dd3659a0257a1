"""The settings module of the demo's RQ workers."""

from __future__ import annotations

from throttlekit_cli.demo.rq_jobs import set_up

__all__: list[str] = []

set_up()
