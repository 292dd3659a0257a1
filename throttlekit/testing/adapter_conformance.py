"""The promises that every adapter keeps, as tests."""

from __future__ import annotations

from throttlekit.testing.adapter_bodies import BodyConformance
from throttlekit.testing.adapter_declarations import DeclarationConformance
from throttlekit.testing.adapter_denials import DenialConformance

__all__ = ["AdapterConformance"]


class AdapterConformance(DenialConformance, BodyConformance, DeclarationConformance):
    """
    The requirements for an adapter, as tests: subclass it in a test module, and define `make_site`.

    Each promise is one test, and its docstring is the promise in a sentence. List a promise that the framework cannot
    support in `unsupported`, with the reason. Needs pytest, or any runner that finds methods by their name.
    """
