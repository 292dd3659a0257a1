"""Enqueue jobs: `python send.py 200`."""

import os
import sys

from redis import Redis
from rq import Queue, Retry
from tasks import call_partner

queue = Queue(connection=Redis.from_url(os.environ.get("RQ_REDIS_URL", "redis://localhost:6379/0")))
count = int(sys.argv[1])
for account_id in range(count):
    queue.enqueue(call_partner, account_id, retry=Retry(max=20, interval=[1, 2, 4, 8]))
print(count, "jobs enqueued")
