"""What makes a limit a value: it cannot be changed, and is equal to another by what it is."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

__all__ = ["Value", "soon_made"]

_T = TypeVar("_T")


def soon_made(cls: type[_T]) -> type[_T]:
    """
    Decorates a frozen slotted dataclass that is made for each decision: as it is, in a quarter of the time.

    What dataclasses write for a frozen one goes through `object.__setattr__` for each field. Here the new object is one
    of a class with the same slots and without the frost until they are set.
    """
    made: Any = cls
    kinds: Any = fields(made)
    soft = type(cls.__name__, (), {"__slots__": tuple(field.name for field in kinds)})
    known: dict[str, Any] = {"set": object.__setattr__, "soft": soft, "cls": cls, "plain": made.__init__}
    parameters = ["self", "*"] if any(field.kw_only for field in kinds) else ["self"]
    for field in kinds:
        known[f"default_{field.name}"] = field.default
        parameters.append(field.name if field.default is MISSING else f"{field.name}=default_{field.name}")
    given = ", ".join(f"{field.name}={field.name}" for field in kinds)
    lines = [f"def __init__({', '.join(parameters)}):", f" if self.__class__ is not cls: return plain(self, {given})"]
    lines += [" set(self, '__class__', soft)"]
    lines += [*(f" self.{field.name} = {field.name}" for field in kinds), " self.__class__ = cls"]
    exec("\n".join(lines), known)  # noqa: S102 - the class's own names, as dataclasses do it
    made.__init__ = known["__init__"]
    return cls


class Value:
    """Immutable but for `_set`, which constructors use."""

    __slots__ = ()

    def _set(self, **attributes: Any) -> None:
        for attribute, value in attributes.items():
            object.__setattr__(self, attribute, value)

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
