"""
For the tests of those who use throttlekit: a limiter that answers as a test wants it to, a clock that stands still,
and the behaviour every store must show. docs/testing.md has the examples.

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
from throttlekit.testing.standing_in import Seen, allowing, denying, in_memory
from throttlekit.testing.store import StoreConformance

__all__ = ["FakeClock", "Seen", "StoreConformance", "allowing", "denying", "in_memory"]
