"""The suite for stores of users finds a store that is wrong in one thing. test_stores.py has those that pass it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from throttlekit.stores import MemoryStore, Store, StoreClaim
from throttlekit.testing import StoreConformance


def _without(verb: str) -> type[MemoryStore]:
    """A store whose *verb* does nothing."""
    return type(f"Without_{verb}", (MemoryStore,), {verb: lambda self, *args, **options: None})


class _OneByOne(MemoryStore):
    """Charges the first limits although the last one denies."""

    def ask(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        return [super(_OneByOne, self).ask([each], *args, **options) for each in claims][-1]


class _WithoutTenants(MemoryStore):
    """First come, first served, whoever's share it is."""

    def ask(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        return super().ask([replace(each, tenant="", step=0) for each in claims], *args, **options)


class _InMilliseconds(MemoryStore):
    def ask(self, claims: Sequence[StoreClaim], asker: Any, now_us: int | None = None, **options: Any) -> Any:
        return super().ask(claims, asker, None if now_us is None else now_us // 1000 * 1000, **options)


class _OneKey(MemoryStore):
    """Counts all keys of a limit together."""

    def ask(self, claims: Sequence[StoreClaim], *args: Any, **options: Any) -> Any:
        return super().ask(
            [replace(each, bucket=each.bucket.replace(":k}", ":}")) for each in claims], *args, **options
        )


@pytest.mark.parametrize(
    "wrong",
    [
        *map(_without, ("settle", "release", "renew", "pause", "slow", "forget", "where", "wake", "return_units")),
        _OneByOne, _WithoutTenants, _InMilliseconds, _OneKey,
    ],
)  # fmt: skip
def test_a_wrong_store_is_found(wrong: type[MemoryStore]) -> None:
    """By at least one of the tests, which say what was asked, and what the answers are."""

    class Suite(StoreConformance):
        def make_store(self) -> Store:
            return wrong()

    messages: list[str] = []
    for name in [each for each in dir(Suite) if each.startswith("test_")]:
        try:
            getattr(Suite(), name)()
        except AssertionError as error:
            messages.append(str(error))
    assert any(says in each for each in messages for says in ("the specification", "apart", "hears of no wake"))
