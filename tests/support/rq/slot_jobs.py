"""
The jobs of the workers of `support.rq.slots`: some hold a slot, and some call an angry partner.

This is also their settings module.
"""

from __future__ import annotations

import asyncio

from support.flood.slot_record import SlotRecord, settings
from support.rq.workers import Deferrals
from throttlekit import Limiter
from throttlekit_rq import configure

__all__ = ["call", "work", "work_async"]

_slots, _config = settings()
_record = SlotRecord(_config["record_url"])


configure(Limiter(_config["store_url"], plugins=[Deferrals(_record.count)]))


def work(index: str, seconds: float) -> None:
    """Hold a slot for *seconds*, and record when."""
    _record.count("deliveries")
    _record.hold(index, seconds)


async def work_async(index: str, seconds: float) -> None:
    _record.begin(index)
    await asyncio.sleep(seconds)
    _record.end(index)


def call(index: str, key: str) -> None:
    """Call the partner, once."""
    _record.call(key, index, _slots.body)
