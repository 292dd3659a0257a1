"""Errors in the shape that Dramatiq's worker expects."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from dramatiq.middleware import MiddlewareError

__all__ = ["AnyError", "DeferFailed", "as_middleware_error"]

try:
    from dramatiq.errors import BrokerConnectionError
except ImportError:  # Dramatiq 2.0. In later versions the old name causes a warning.
    from dramatiq.errors import ConnectionError as BrokerConnectionError  # type: ignore[no-redef]

_E = TypeVar("_E", bound=Exception)


class DeferFailed(MiddlewareError, BrokerConnectionError):
    """
    A denied message could not be put into its delay queue. The worker keeps the original and tries again.

    This error is a MiddlewareError, because Dramatiq ignores other errors from `before_ack`. It is also a connection
    error, because after such an error the worker waits and tries again, instead of acknowledging the message.
    """


class AnyError(dict[str, Any]):
    """
    A `throws` option that matches every error, so that Dramatiq does not retry the message.

    The option is a dict and not a class, because Dramatiq sends the message and its options as JSON to `on_failure`.
    """

    def __bool__(self) -> bool:
        return True

    def __instancecheck__(self, error: object) -> bool:
        return True


def as_middleware_error(error: _E) -> _E:
    """
    Return *error* as a MiddlewareError, the only kind that Dramatiq raises from a `before_` hook.

    The returned error has the name and module of *error*, so that the stored result shows the original error.
    """
    kind = type(error)
    namespace = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    bases: Any = (kind, MiddlewareError)
    both: Any = type(kind.__name__, bases, namespace)
    copy: Any = BaseException.__new__(both)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return cast(_E, copy)
