"""An app that configures throttlekit in each process: `rqworker` imports no settings module of throttlekit."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings

from throttlekit import Limiter, TokenBucket
from throttlekit_rq import configure


class SiteConfig(AppConfig):
    name = "support.rq.django_site"

    def ready(self) -> None:
        reports = TokenBucket("reports", "1/hour", burst=1)
        configure(Limiter(settings.TK["store"]), queues={"reports": reports})
