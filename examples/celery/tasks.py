"""Tasks that call a partner API. The lines that end in `# throttlekit` are what throttlekit adds to them."""

import os
import urllib.error
import urllib.request

from celery import Celery

from throttlekit import Limiter, TokenBucket  # throttlekit
from throttlekit_celery import install  # throttlekit

PARTNER_URL = os.environ.get("PARTNER_URL", "http://localhost:8000")

app = Celery("tasks", broker=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))

limiter = Limiter(os.environ.get("THROTTLEKIT_URL", "redis://localhost:6379/1"))  # throttlekit
partner = TokenBucket("partner-api", "10/s", burst=10)  # throttlekit
install(app, limiter)  # throttlekit


@app.task(
    autoretry_for=(urllib.error.HTTPError,),
    max_retries=20,
    retry_backoff=True,
    retry_backoff_max=8,
    throttle=[partner],  # throttlekit
)
def call_partner(account_id):
    urllib.request.urlopen(f"{PARTNER_URL}/accounts/{account_id}", timeout=10).close()
