"""Jobs that call a partner API. The lines that end in `# throttlekit` are what throttlekit adds to them."""

import os
import urllib.request

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from throttlekit import Limiter, TokenBucket  # throttlekit
from throttlekit.metrics.prometheus import PrometheusMetrics  # throttlekit
from throttlekit_dramatiq import Throttle  # throttlekit

PARTNER_URL = os.environ.get("PARTNER_URL", "http://localhost:8000")

broker = RedisBroker(url=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
dramatiq.set_broker(broker)

limits = os.environ.get("THROTTLEKIT_URL", "redis://localhost:6379/1")  # throttlekit
limiter = Limiter(limits, plugins=[PrometheusMetrics()])  # throttlekit
partner = TokenBucket("partner-api", "10/s", burst=10)  # throttlekit
broker.add_middleware(Throttle(limiter))  # throttlekit


@dramatiq.actor(
    max_retries=20,
    min_backoff=500,
    max_backoff=8000,
    throttle=[partner],  # throttlekit
)
def call_partner(account_id):
    urllib.request.urlopen(f"{PARTNER_URL}/accounts/{account_id}", timeout=10).close()
