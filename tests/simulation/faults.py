"""The faults of a run. Each begins at a time, may last for some time, and notes in the history what it does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler import MS, SECOND

__all__ = ["KINDS", "Fault", "draw_faults"]


@dataclass
class Fault:
    kind: str
    at_us: int
    for_us: int
    """How long it lasts."""

    def begin(self, world: Any) -> None:
        world.note(f"fault: {self.kind} for {self.for_us / SECOND:g} s")
        KINDS[self.kind](world, world.random.choice(world.servers), self.for_us)

    @property
    def settles_us(self) -> int:
        """When its effects are over, as docs/guarantees.md allows: see `SETTLES`."""
        return self.at_us + self.for_us + SETTLES.get(self.kind, 2 * SECOND)


def kill(world: Any, server: Any, for_us: int) -> None:
    """A process gets SIGKILL, and starts again after some time."""
    process = world.random.choice(world.living) if world.living else None
    if process is not None:
        process.kill()
        world.at(world.now + for_us, world.start, process.number)


def hang(world: Any, server: Any, for_us: int) -> None:
    """A process gets SIGSTOP, and SIGCONT after some time."""
    if world.living:
        process = world.random.choice(world.living)
        process.hangs_until = world.now + for_us
        world.note("hangs", process.name)
        world.at(process.hangs_until, world.broker.hand_out)


def cut(world: Any, server: Any, for_us: int) -> None:
    """A process and the store cannot reach each other, and the messages between them are lost."""
    if world.living:
        process = world.random.choice(world.living)
        world.note("cut off", process.name)
        for client in process.clients:
            client.cut_until = world.now + for_us
            world.at(world.now + for_us, client.listen_again)


def stall(world: Any, server: Any, for_us: int) -> None:
    """The server stops, and then runs the requests that have reached it."""
    server.stalls_until = world.now + for_us


def restart(world: Any, server: Any, for_us: int) -> None:
    """The server is unavailable, and starts again with its data."""
    server.unavailable_until = world.now + for_us
    server.disconnect()


def lose_state(world: Any, server: Any, for_us: int) -> None:
    """The server is unavailable, and starts again without data."""
    restart(world, server, for_us)
    server.lose_state()


def flush(world: Any, server: Any, for_us: int) -> None:
    """The server loses its data, and stays available."""
    server.lose_state()


def lose_answers(world: Any, server: Any, for_us: int) -> None:
    """A tenth of the answers is lost."""
    server.answers_lost = 0.1
    world.at(world.now + for_us, setattr, server, "answers_lost", 0.0)


def lose_wakes(world: Any, server: Any, for_us: int) -> None:
    """Half of the wake messages are lost."""
    server.wakes_lost = 0.5
    world.at(world.now + for_us, setattr, server, "wakes_lost", 0.0)


def clock_back(world: Any, server: Any, for_us: int) -> None:
    server.offset -= world.random.randrange(3 * SECOND)
    world.note("clock steps", server=server)


def clock_forward(world: Any, server: Any, for_us: int) -> None:
    server.offset += world.random.randrange(3 * SECOND)
    world.note("clock steps", server=server)


def clock_ahead(world: Any, server: Any, for_us: int) -> None:
    """The server's clock is an hour ahead for a short time."""

    def end() -> None:
        server.offset -= 3600 * SECOND
        world.note("clock far back", server=server)

    server.offset += 3600 * SECOND
    world.at(world.now + for_us, end)


def wall_clock(world: Any, server: Any, for_us: int) -> None:
    """The clock of a worker's machine steps by up to an hour, which must have no effect."""
    for process in world.living[:1]:
        process.wall_offset = world.random.randrange(-3600, 3600) * SECOND


def deliver_late(world: Any, server: Any, for_us: int) -> None:
    world.broker.late = 0.3
    world.at(world.now + for_us, setattr, world.broker, "late", 0.0)


def deliver_twice(world: Any, server: Any, for_us: int) -> None:
    """A fifth of the messages is delivered twice, and one waiting message is delivered a second time."""
    world.broker.twice = 0.2
    world.at(world.now + for_us, setattr, world.broker, "twice", 0.0)
    unacked = list(world.broker.unacked)
    if unacked:
        message = world.random.choice(unacked)
        world.note("sent", job=message.job.id)
        world.broker.put(type(message)(message.job, message.denied))


def deliver_never(world: Any, server: Any, for_us: int) -> None:
    world.broker.never = 0.2
    world.at(world.now + for_us, setattr, world.broker, "never", 0.0)


def purge(world: Any, server: Any, for_us: int) -> None:
    """Waiting messages are deleted, and their processes are not notified."""
    for message, process in list(world.broker.unacked.items()):
        if message.denied and world.random.random() < 0.3 and not process.dead:
            world.broker.ack(message)
            message.job.lost = True
            process.purged.add(message)
            world.waiting.discard(message.job.id)
            world.note("lost by the broker", job=message.job.id)


KINDS: dict[str, Callable[[Any, Any, int], None]] = {
    "kill": kill,
    "hang": hang,
    "cut": cut,
    "stall": stall,
    "restart": restart,
    "lose-state": lose_state,
    "flush": flush,
    "lose-answers": lose_answers,
    "lose-wakes": lose_wakes,
    "clock-back": clock_back,
    "clock-forward": clock_forward,
    "clock-ahead": clock_ahead,
    "wall-clock": wall_clock,
    "deliver-late": deliver_late,
    "deliver-twice": deliver_twice,
    "deliver-never": deliver_never,
    "purge": purge,
}

SETTLES: dict[str, int] = {
    "kill": 3 * SECOND,
    "hang": 3 * SECOND,
    "clock-back": 6 * SECOND,
    "clock-ahead": 8 * SECOND,
    "lose-state": 6 * SECOND,
    "flush": 6 * SECOND,
    "deliver-late": 4 * SECOND,
}


def draw_faults(random: random.Random, kinds: list[str], count: int, seconds: float) -> list[Fault]:
    """Return *count* random faults of *kinds*, within the first two thirds of *seconds*."""
    last_us = max(SECOND, round(seconds * SECOND * 2 / 3))
    faults = [
        Fault(random.choice(kinds), random.randrange(300 * MS, last_us), random.choice((100, 400, 1000, 3000)) * MS)
        for _ in range(count if kinds else 0)
    ]
    return sorted(faults, key=lambda each: each.at_us)
