"""The base class of limits and their parts: immutable values that are compared by their contents."""

from __future__ import annotations

from typing import Any

__all__ = ["Value"]


class Value:
    """An immutable value. Only a constructor sets its attributes, with `_set`."""

    __slots__ = ()

    def _set(self, **attributes: Any) -> None:
        put = object.__setattr__
        for attribute, value in attributes.items():
            put(self, attribute, value)

    def _identity(self) -> tuple[object, ...]:
        """Return the contents by which two values are compared."""
        raise NotImplementedError

    def _show(self, *first: object, **options: object) -> str:
        """Return the call that creates an equal value. Options that are None are left out."""
        shown = [*map(repr, first), *(f"{name}={value!r}" for name, value in options.items() if value is not None)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a limit cannot be changed: create a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a limit cannot be changed: {name!r} cannot be deleted")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self._set(**state[1])

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Value) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())
