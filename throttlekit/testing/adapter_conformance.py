"""The promises that every adapter keeps, as tests."""

from __future__ import annotations

from throttlekit.testing.adapter_bodies import BodyConformance, LeaseConformance, RateLimitedConformance
from throttlekit.testing.adapter_declarations import DeclarationConformance
from throttlekit.testing.adapter_denials import BoundConformance, DenialConformance

__all__ = ["AdapterConformance"]


class AdapterConformance(
    DenialConformance,
    BoundConformance,
    BodyConformance,
    LeaseConformance,
    RateLimitedConformance,
    DeclarationConformance,
):
    """
    What an adapter must do, as tests: subclass it in a test module, and give `make_site`.

    Each promise is one test, and its docstring is the promise in a sentence. A promise that the framework cannot be
    asked for goes into `unsupported`, with the reason. Needs pytest, or any runner that finds methods by their name.
    """
