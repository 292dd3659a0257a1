"""The app for `celery -A`, made from the environment."""

from __future__ import annotations

from throttlekit_cli.demo.celery_jobs import make_app
from throttlekit_cli.demo.plan import Settings

__all__ = ["app"]

app = make_app(Settings.of_environment())
