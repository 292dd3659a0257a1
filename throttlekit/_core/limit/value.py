"""What makes a limit a value: it is equal to another by what it is, and never changes once it is made."""

from __future__ import annotations

from typing import Any

__all__ = ["Value"]


class Value:
    """Immutable. Only a constructor fills it, with `_set`."""

    __slots__ = ()

    def _set(self, **attributes: Any) -> None:
        put = object.__setattr__
        for attribute, value in attributes.items():
            put(self, attribute, value)

    def _identity(self) -> tuple[object, ...]:
        """What it is equal by."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a limit cannot be changed: make a new one in place of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a limit cannot be changed: {name!r} stays")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self._set(**state[1])

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Value) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())
