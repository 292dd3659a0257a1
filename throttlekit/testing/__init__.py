"""
Tools for the tests of your program: a limiter that allows or denies as a test says, a clock that a test advances, and
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

    class TestMyAdapter(AdapterConformance):
        def make_site(self, settings: Settings) -> AbstractContextManager[AdapterSite]:
            return MySite(settings)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from throttlekit.testing.clock import FakeClock
from throttlekit.testing.doubles import Seen, allowing, denying, in_memory
from throttlekit.testing.store import StoreConformance

if TYPE_CHECKING:
    from throttlekit.testing.adapter_conformance import AdapterConformance

__all__ = ["AdapterConformance", "FakeClock", "Seen", "StoreConformance", "allowing", "denying", "in_memory"]


def __getattr__(name: str) -> Any:
    """The suite for adapters is imported when it is first used: tests of jobs do not need it."""
    if name == "AdapterConformance":
        return import_module("throttlekit.testing.adapter_conformance").AdapterConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
