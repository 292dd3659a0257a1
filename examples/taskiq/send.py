"""Enqueue tasks: `python send.py 200`."""

import asyncio
import sys

from tasks import broker, call_partner


async def send(count: int) -> None:
    await broker.startup()
    for account_id in range(count):
        await call_partner.kiq(account_id)
    await broker.shutdown()
    print(count, "tasks enqueued")


asyncio.run(send(int(sys.argv[1])))
