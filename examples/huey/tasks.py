"""Tasks that call a partner API. The lines that end in `# throttlekit` are what throttlekit adds to them."""

import os
import urllib.request

from huey import RedisHuey

from throttlekit import Limiter, TokenBucket  # throttlekit
from throttlekit_huey import install  # throttlekit

PARTNER_URL = os.environ.get("PARTNER_URL", "http://localhost:8000")

huey = RedisHuey("tasks", url=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))

limiter = Limiter(os.environ.get("THROTTLEKIT_URL", "redis://localhost:6379/1"))  # throttlekit
partner = TokenBucket("partner-api", "10/s", burst=10)  # throttlekit
install(huey, limiter)  # throttlekit


@huey.task(
    retries=20,
    retry_delay=1,
    throttle=[partner],  # throttlekit
)
def call_partner(account_id):
    urllib.request.urlopen(f"{PARTNER_URL}/accounts/{account_id}", timeout=10).close()
