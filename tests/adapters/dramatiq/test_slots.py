"""Real `dramatiq` worker processes whose jobs hold slots, or get a 429: checked by the jobs' own records."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
import redis

from support.dramatiq.slots import DramatiqSlotting, Slots
from support.servers.flood import Servers
from support.servers.processes import redis_server
from support.waiting import wait_until

pytestmark = pytest.mark.workers


@pytest.mark.parametrize(
    ("bodies", "costs"),
    [((0.1,), ("",)), ((0.02, 0.3, 0.02), ("",)), ((0.05,), ("", "*2", "", "*8"))],
    ids=["steady", "jumping", "costs"],
)
def test_never_more_at_once_than_the_limit_says_in_two_processes(
    flood_servers: Servers, bodies: tuple[float, ...], costs: tuple[str, ...]
) -> None:
    """
    Of 200 jobs with ten slots and sixteen threads in two processes, at most ten run at once. Each job runs once, none
    fails, and most are delivered once.
    """
    with DramatiqSlotting(Slots(amount=10), flood_servers) as slotting:
        jobs = [f"{n}{costs[n % len(costs)]}" for n in range(200)]
        for n, job in enumerate(jobs):
            slotting.work(job, bodies[n * len(bodies) // 200])
        slotting.start()
        slotting.until_ended(200)
        held = slotting.stop()
    assert held.most_at_once() <= 10
    assert held.starts == dict.fromkeys(jobs, 1)
    assert {event.more for event in held.events if event.what == "end"} == {"held"}
    assert (held.failures, held.left) == ([], 0)
    assert held.counts["deliveries"] <= 5 * 200


def test_the_slots_of_a_killed_process_are_free_after_its_lease_on_a_busy_key(on_redis: Servers) -> None:
    """
    A process that holds four of eight slots is killed while hundreds of jobs wait. After the lease, the other jobs have
    all eight slots, and never more. The jobs of the killed process run again, and none is lost.

    Dramatiq puts a due message back on its queue before it acknowledges the delayed one. A message for which a kill
    happens between the two runs twice, throttled or not.
    """
    with DramatiqSlotting(Slots(amount=8, lease=5.0), on_redis) as slotting:
        for n in range(4):
            slotting.work(f"long{n}", "600 2")
        doomed = slotting.start(processes=1, threads=4)
        wait_until(lambda: len(slotting.events()) == 4, description="the process holds four slots")
        process, heartbeats = slotting.events()[0].more, slotting.heartbeats()
        for n in range(300):
            slotting.work(n, 0.1)
        slotting.start(processes=1, threads=8)
        wait_until(lambda: len(slotting.events()) > 40, description="the other jobs run too")
        killed_us = slotting.now_us()
        doomed.kill()
        slotting.expire(heartbeats)
        for n in range(12):  # long enough for all slots to be in use together, on a busy machine too
            slotting.work(f"wide{n}", 2)
        slotting.until_ended(316)
        held = slotting.stop()
    assert held.most_at_once({process: killed_us}) <= 8
    times, at_once = held.at_once({process: killed_us})
    assert max(count for at, count in zip(times, at_once, strict=True) if at > killed_us) == 8, (
        "slots of the killed process stay lost"
    )
    names = [*map(str, range(300)), *(f"long{n}" for n in range(4)), *(f"wide{n}" for n in range(12))]
    assert set(held.ends) == set(held.starts) == set(names)
    twice = held.starts - Counter(names)
    assert {f"long{n}" for n in range(4)} <= set(twice), "the jobs of the killed process run again"
    # Each job has ended. A message that is left would run a second time.
    assert twice.total() + held.left <= 5


def test_an_outage_longer_than_the_lease_loses_slots_and_no_job(on_redis: Servers) -> None:
    """
    Bodies continue and can detect that their slots are lost. When the store is available again, each job runs once.
    """
    with (
        redis_server() as store,
        DramatiqSlotting(Slots(amount=2, lease=2.0, store_url=f"{store}/1"), on_redis) as slotting,
    ):
        client = redis.Redis.from_url(store)
        pid = client.info("server")["process_id"]
        for n in range(2):
            slotting.work(f"long{n}", 6)
        slotting.start()
        wait_until(lambda: len(slotting.events()) == 2, description="both slots are held")
        os.kill(pid, signal.SIGSTOP)
        try:
            for n in range(20):
                slotting.work(n, 0.02)
            lost_at = slotting.now_us() + 3_500_000
            wait_until(lambda: slotting.now_us() > lost_at, description="the leases are over")
            begun = [event.job for event in slotting.events() if event.what == "start"]
            assert len(begun) == 2, "no job is admitted while the store is unavailable"
        finally:
            os.kill(pid, signal.SIGCONT)
        slotting.until_ended(22)
        held = slotting.stop()
        client.close()
    assert [event.more for event in held.events if event.what == "end" and "long" in event.job] == ["lost", "lost"]
    assert held.most_at_once() <= 4
    assert held.starts == {f"long{n}": 1 for n in range(2)} | {str(n): 1 for n in range(20)}
    assert (held.failures, held.left) == ([], 0)


def test_one_429_in_a_flood_pauses_its_key_in_the_fleet(flood_servers: Servers) -> None:
    """
    The partner answers 429 with Retry-After 3 during the flood. At most one call of each thread follows until the pause
    is over, and none of a job that already got a 429. The rate resumes without a burst, no job fails, and another key
    continues.
    """
    rate, pause_us = 50, 3_000_000
    with DramatiqSlotting(Slots(rate=f"{rate}/s", burst=20), flood_servers) as slotting:
        slotting.partner.be_angry("one", pause_us / 1e6, from_call=60)
        for n in range(200):
            slotting.call(f"a{n}", "one")
            slotting.call(f"b{n}", "two")
        slotting.start()
        slotting.until_ended(400)
        one, two = slotting.partner.record_of("one"), slotting.partner.record_of("two")
        held = slotting.stop()
    first_us = one.refused[0].at_us
    over_us = first_us + pause_us
    during = [call.job for call in one.refused]
    assert len(during) <= 16
    assert len(set(during)) == len(during), "a job that had got a 429 called during the pause"
    after = one.begun_after(over_us)
    early = [n for n, call in enumerate(after) if n > 1 + rate * (call.at_us - over_us) / 1e6]
    assert early == [], "there was a burst after the pause"
    assert sorted(one.answered) == sorted(f"a{n}" for n in range(200))
    assert sorted(two.answered) == sorted(f"b{n}" for n in range(200))
    assert two.refused == []
    assert two.between(first_us, over_us), "the other key was stopped"
    assert (held.failures, held.left) == ([], 0)
