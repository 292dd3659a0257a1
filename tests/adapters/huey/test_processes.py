"""Real `huey_consumer` processes that die in a flood: no job is lost. Other floods: fleet/test_floods.py."""

from __future__ import annotations

from typing import Any

import pytest

from support.flood.checks import assert_bound, starts_of
from support.flood.run import FloodLimit
from support.huey.flood import HueyFlood, HueyFlooding
from support.servers.flood import Servers
from support.waiting import wait_until

pytestmark = pytest.mark.workers


@pytest.mark.parametrize("how", [{}, {"worker_type": "process", "queue_sorted": True}], ids=["threads", "processes"])
def test_kills_lose_no_waiting_job(on_redis: Servers, how: dict[str, Any]) -> None:
    """
    Every worker is killed with SIGKILL, amid the first denials and later. Each job that had not begun runs once.

    A job that was granted and had not recorded its begin counts as begun: huey itself loses a job that a killed worker
    runs.
    """
    flood = HueyFlood(limits=(FloodLimit("one", "50/s", 10),), jobs=200, settle=12.0, **how)
    with HueyFlooding(flood, on_redis) as flooding:
        flooding.send_backlog()
        for begun in (1, 12, 60):
            flooding.start()
            wait_until(lambda least=begun: len(flooding.starts()) >= least, description=f"{begun} jobs have begun")
            flooding.kill()
        flooding.start()
        wait_until(lambda: flooding.left() == 0, description="no job waits any more", timeout=90)
        record = flooding.stop()
    starts = starts_of(record)
    assert set(starts.values()) == {1}
    assert 200 - len(starts) <= len(record.grants) - len(starts)
    assert_bound(record, "one", 20_000, 10, unrecorded=3 * 8)
