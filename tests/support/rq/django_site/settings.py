"""The settings of a Django project with django-rq, whose servers $TK_DJANGO names."""

from __future__ import annotations

import json
import os
from typing import Any

TK: Any = json.loads(os.environ["TK_DJANGO"])
SECRET_KEY = "of a test"
INSTALLED_APPS = ["django_rq", "support.rq.django_site"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
RQ_QUEUES = {name: {"URL": TK["broker"]} for name in ("default", "reports")}
RQ = {
    "QUEUE_CLASS": "support.rq.django_site.queues.ThrottledDjangoQueue",
    "WORKER_CLASS": "throttlekit_rq.ThrottledWorker",
}
RQ_SHOW_ADMIN_LINK = False
