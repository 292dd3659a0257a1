"""Enqueue tasks: `python send.py 200`."""

import sys

from tasks import call_partner

count = int(sys.argv[1])
for account_id in range(count):
    call_partner(account_id)
print(count, "tasks enqueued")
