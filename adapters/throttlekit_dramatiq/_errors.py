"""Errors in the shape that Dramatiq's worker expects."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from dramatiq.middleware import MiddlewareError

__all__ = ["AnyError", "DeferFailed", "as_middleware_error"]

try:
    from dramatiq.errors import BrokerConnectionError
except ImportError:  # Dramatiq 2.0. Asked for later, the old name warns.
    from dramatiq.errors import ConnectionError as BrokerConnectionError  # type: ignore[no-redef]

_E = TypeVar("_E", bound=Exception)


class DeferFailed(MiddlewareError, BrokerConnectionError):
    """
    A denied message could not be put into its delay queue. The worker keeps the original and tries again.

    A MiddlewareError, so that it leaves `before_ack`; a connection error, so that the worker then
    waits and repeats instead of acknowledging.
    """


class AnyError(dict[str, Any]):
    """
    A `throws` option that is true of every error: Dramatiq then gives a message up at once.

    Not a class, because `on_failure` is sent the message with all of its options, as JSON: this is {}.
    """

    def __bool__(self) -> bool:
        return True

    def __instancecheck__(self, error: object) -> bool:
        return True


def as_middleware_error(error: _E) -> _E:
    """
    The same error, also a MiddlewareError: the only kind that Dramatiq lets out of a `before_` hook.

    It keeps its name and module, so that a reader of the stored result sees the error that was meant.
    """
    kind = type(error)
    namespace = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    bases: Any = (kind, MiddlewareError)
    both: Any = type(kind.__name__, bases, namespace)
    copy: Any = BaseException.__new__(both)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return cast(_E, copy)
