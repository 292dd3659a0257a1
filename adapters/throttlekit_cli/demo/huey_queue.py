"""The huey for `huey_consumer`, made from the environment."""

from __future__ import annotations

from throttlekit_cli.demo.huey_jobs import make_huey
from throttlekit_cli.demo.plan import Settings

__all__ = ["queue"]

queue = make_huey(Settings.of_environment())
