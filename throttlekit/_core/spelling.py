"""Find the known name that a misspelt name probably means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["checks_spelling", "similar_names", "spelling_hint", "unknown_argument"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def similar_names(name: str, known: Iterable[str], *, most: int = 1, unknown: bool = True) -> list[str]:
    """
    Return at most *most* of the *known* names that are similar to *name*, the most similar first.

    Args:
        unknown: Whether *name* is certainly wrong. If not, only names with about one different letter are returned.
    """
    from difflib import get_close_matches  # costly to import, and only errors need it

    return get_close_matches(name, known, n=most, cutoff=0.6 if unknown else 0.85)


def spelling_hint(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown *name*: ": did you mean 'burst'?", or "" if no name is similar."""
    return "".join(f": did you mean {each!r}?" for each in similar_names(name, known))


def unknown_argument(function: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error that Python raises for an unknown argument *name*, with the argument that was probably meant."""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{spelling_hint(name, known)}")


def checks_spelling(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """
    Decorate a function, or the constructor of a class, so that the error about an unknown argument also names the
    argument that was probably meant.

    Raises:
        TypeError: The call of the decorated function has an unknown argument. Example: "Limiter() got an unexpected
            keyword argument 'plugin': did you mean 'plugins'?"
    """
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: _P.args, **arguments: _P.kwargs) -> _R:
        for argument in arguments:
            if argument not in known:
                raise unknown_argument(name, argument, known)
        return function(*args, **arguments)

    return checked
