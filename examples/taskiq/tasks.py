"""Tasks that call a partner API. The lines that end in `# throttlekit` are what throttlekit adds to them."""

import os
import urllib.request

from taskiq import SimpleRetryMiddleware
from taskiq_redis import RedisStreamBroker

from throttlekit import Limiter, TokenBucket  # throttlekit
from throttlekit_taskiq import Throttle  # throttlekit

PARTNER_URL = os.environ.get("PARTNER_URL", "http://localhost:8000")

broker = RedisStreamBroker(
    os.environ.get("REDIS_URL", "redis://localhost:6379/0"),
    consumer_id="0",  # the first worker also receives what was sent before it started
    xread_count=10,  # messages that a worker takes at a time: few, so that the workers keep the order together
)
broker.add_middlewares(SimpleRetryMiddleware())

limiter = Limiter(os.environ.get("THROTTLEKIT_URL", "redis://localhost:6379/1"))  # throttlekit
partner = TokenBucket("partner-api", "10/s", burst=10)  # throttlekit
broker.add_middlewares(Throttle(limiter))  # throttlekit


@broker.task(
    retry_on_error=True,
    max_retries=20,
    throttle=[partner],  # throttlekit
)
def call_partner(account_id: int) -> None:
    urllib.request.urlopen(f"{PARTNER_URL}/accounts/{account_id}", timeout=10).close()
