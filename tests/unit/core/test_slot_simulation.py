"""
Slots at work: many waiting jobs, few slots and holds of changing length, simulated around the real decision.

With "wake first", the process that gives a slot back lets the first of its own waiting jobs ask at once; and besides
at least every half second, as adapters do.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from support.claims import claim_of
from throttlekit import Concurrency
from throttlekit._core.acquire import State, acquire
from throttlekit._core.algorithms.concurrency import ConcurrencyAlgorithm
from throttlekit._core.line import LOOK_US, Place
from throttlekit._core.verdict import Caller

MS = 1000
START_US = 1_800_000_000_000_000

Places = Sequence[Place | None]


@dataclass
class Outcome:
    deliveries: float
    """Deliveries per job that ran; one that was woken and found nothing is none."""
    woken: float
    """Questions of those woken that found nothing, per job."""
    use: float
    """Share of the slots' time that was held, from the first grant to the last end but one round."""
    most: int
    """The most that held a slot at once."""
    moved: int
    """By how many places a job ran out of turn, at most."""


def simulate(
    jobs: int,
    hold_ms: Callable[[int], float],
    *,
    amount: int = 10,
    wake: bool = True,
    late_ms: tuple[float, float] = (0, 50),
    arrive_us: int = 700,
    processes: int = 1,
    seed: int = 1,
) -> Outcome:
    """
    Deliver *jobs* as fast as workers take them, each denied one again when it was told, but late.

    Args:
        hold_ms: How long the job of that number holds its slot, by the order of grants.
        wake: Whether the first waiter of the process that gives back asks at once.
        processes: Among how many processes the waiting jobs are spread: each wakes its own only.
    """
    rnd, state = random.Random(seed), State()
    limit = Concurrency("x", amount)
    events: list[tuple[int, int, str, int, Places]] = []
    serial, deliveries, woken, at_once, most, held_us = 0, 0, 0, 0, 0, 0
    order: list[int] = []
    ends: list[int] = []
    waiting: list[dict[int, tuple[int, int, int, Places]]] = [{} for _ in range(processes)]
    home = [rnd.randrange(processes) for _ in range(jobs)]
    granted_at: dict[int, int] = {}

    def push(at_us: int, kind: str, job: int, places: Places = ()) -> int:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (at_us, serial, kind, job, places))
        return serial

    def charge(job: int) -> ConcurrencyAlgorithm:
        return limit.bind(1, 0, f"{job}#x")

    def ask(job: int, now_us: int, places: Places) -> bool:
        nonlocal state, at_once, most, held_us
        claims = [claim_of(charge(job))]
        verdict, (state,) = acquire(claims, [state], now_us, caller=Caller.JOB, places=places, secret="s")
        if verdict.allowed:
            at_once += 1
            most = max(most, at_once)
            length_us = round(hold_ms(len(order)) * MS)
            order.append(job)
            granted_at[job] = now_us
            held_us += length_us
            ends.append(now_us + length_us)
            push(now_us + length_us, "end", job)
            return True
        late_us, (place,) = rnd.uniform(*late_ms) * MS, verdict.places
        assert place is not None
        number = push(verdict.due_us + round(late_us), "come", job, verdict.places)
        waiting[home[job]][job] = (place.start, place.number, number, verdict.places)
        return False

    def woken_first(process: int, now_us: int) -> None:
        nonlocal deliveries, woken
        here = waiting[process]
        first = min(here, key=lambda other: here[other][:2])
        if ask(first, now_us, here[first][3]):
            del here[first]
            deliveries += 1
        else:
            woken += 1

    for job in range(jobs):
        push(START_US + job * arrive_us, "come", job)
    if wake:
        for process in range(processes):
            push(START_US + LOOK_US, "look", process)
    while events:
        now_us, number, kind, job, places = heapq.heappop(events)
        if kind == "end":
            at_once -= 1
            state = State(charge(job).released(state.taken, now_us, granted_at[job]), state.line)
            if wake and waiting[home[job]]:
                woken_first(home[job], now_us)
            continue
        if kind == "look":
            if waiting[job]:
                woken_first(job, now_us)
            if len(order) < jobs:
                push(now_us + LOOK_US, "look", job)
            continue
        if places:
            if job not in waiting[home[job]] or waiting[home[job]][job][2] != number:
                continue
            del waiting[home[job]][job]
        deliveries += 1
        ask(job, now_us, places)
    full_us = sorted(ends)[-amount] - START_US
    moved = max(abs(at - job) for at, job in enumerate(order))
    return Outcome(deliveries / jobs, woken / jobs, held_us / amount / full_us, most, moved)


def jump(jobs: int) -> Callable[[int], float]:
    return lambda number: 500.0 if jobs // 3 <= number < 2 * jobs // 3 else 20.0


HOLDS: dict[str, Callable[[int], float]] = {
    "20 ms": lambda number: 20.0,
    "100 ms": lambda number: 100.0,
    "1 s": lambda number: 1000.0,
    "20 to 500 to 20 ms": jump(2000),
    "10 to 300 ms": lambda number: random.Random(number).uniform(10, 300),
    "one in ten of 1 s": lambda number: 1000.0 if number % 10 == 0 else 20.0,
}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("holds", HOLDS)
def test_slots_stay_busy_if_waiters_are_woken_first(holds: str, processes: int) -> None:
    """Whatever they hold for, and however that changes: slots in use, few deliveries, order, and never one too many."""
    outcome = simulate(2000, HOLDS[holds], processes=processes)
    assert outcome.most == 10
    assert outcome.use >= 0.99
    assert outcome.deliveries <= 4.6
    assert outcome.moved <= 400


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_slots_stay_busy_in_many_processes(seed: int) -> None:
    """Of eight processes each wakes its own only: order suffers, the slots do not."""
    outcome = simulate(2000, HOLDS["20 to 500 to 20 ms"], processes=8, seed=seed)
    assert outcome.most == 10
    assert outcome.use >= 0.95
    assert outcome.deliveries <= 5.5


@pytest.mark.parametrize(("holds", "use"), [("20 ms", 0.88), ("100 ms", 0.92), ("10 to 300 ms", 0.85), ("1 s", 0.7)])
def test_pace_alone_keeps_slots_busy(holds: str, use: float) -> None:
    """Where no waiter is woken, the measured mean alone keeps slots in use; the less, the longer they are held."""
    outcome = simulate(2000, HOLDS[holds], wake=False)
    assert outcome.most == 10
    assert outcome.use >= use
    assert outcome.deliveries <= 4.8


@pytest.mark.parametrize("amount", [1, 3, 50])
def test_other_amounts(amount: int) -> None:
    """One slot, or many."""
    outcome = simulate(600, HOLDS["100 ms"], amount=amount)
    assert outcome.most == amount
    assert outcome.use >= 0.99
    assert outcome.deliveries <= 3.05


if __name__ == "__main__":
    print("| holds | woken | processes | deliveries a job | woken in vain | use | most | moved |")
    print("|---|---|---|---|---|---|---|---|")
    for name, holds in HOLDS.items():
        for wake, processes in ((True, 1), (True, 2), (True, 8), (False, 1)):
            o = simulate(2000, holds, wake=wake, processes=processes)
            print(
                f"| {name} | {'yes' if wake else 'no'} | {processes} | {o.deliveries:.2f} | {o.woken:.2f} "
                f"| {o.use:.3f} | {o.most} | {o.moved} |"
            )
