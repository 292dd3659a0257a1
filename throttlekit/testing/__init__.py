"""
Tools for the tests of your program: a limiter that allows or denies as a test wants, a clock that stands still, and
the tests that every store must pass. docs/testing.md has the examples.

    with denying(limiter, delay=30) as seen:
        call_partner.send(42)
        seen.assert_deferred("call_partner", within=5)

    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock_us=clock))
    …
    clock.advance(0.6)

    class TestMyStore(StoreConformance):
        def make_store(self) -> Store:
            return MyStore(...)
"""

from throttlekit.testing.clock import FakeClock
from throttlekit.testing.doubles import Seen, allowing, denying, in_memory
from throttlekit.testing.store import StoreConformance

__all__ = ["FakeClock", "Seen", "StoreConformance", "allowing", "denying", "in_memory"]
