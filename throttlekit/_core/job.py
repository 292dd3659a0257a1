"""A job, in the form in which every adapter describes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from throttlekit.errors import ConfigurationError

__all__ = ["Job", "make_id_text"]


@dataclass(frozen=True, slots=True)
class Job:
    """
    The data from which a limit computes a job's key and cost.

    Attributes:
        id: The framework's own id of the job. When a limiter first reads the job, it replaces a number or a UUID with
            its text, and None with "".
        name: The name of the function or task.
        queue: The queue that delivered it.
        args: The positional arguments, as they were sent.
        kwargs: The keyword arguments, as they were sent.
        function: The function that will run, if this process knows it. It defines the names of the arguments.
    """

    id: str = ""
    name: str = ""
    queue: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    function: Callable[..., Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """
        All arguments by name, including positional arguments and defaults.

        Raises:
            ConfigurationError: The arguments do not fit the function, or the names of its arguments are not known, as
                for some functions written in C.
        """
        if self.function is None:
            try:
                return dict(self.kwargs)
            except (TypeError, ValueError):
                raise ConfigurationError(
                    f"a job's kwargs must be a mapping, not {type(self.kwargs).__name__}"
                ) from None
        try:
            signature = _signature_of(self.function)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the arguments of job {self.name!r} have no known names: {error}") from None
        try:
            bound = signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise ConfigurationError(f"the arguments of job {self.name!r} do not fit its function: {error}") from None
        bound.apply_defaults()
        by_name: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                by_name.update(value)
            else:
                by_name[name] = value
        return by_name


def make_id_text(job: Job) -> None:
    """
    Replace the id of *job* with its text, because stores and processes identify the job by that text.

    Raises:
        ConfigurationError: The text of the id would not be the same in every process.
    """
    if type(job.id) is not str:
        object.__setattr__(job, "id", _id_text(job.id))


def _id_text(id: object) -> str:
    if id is None:
        return ""
    if isinstance(id, str):
        return str.__str__(id)
    if isinstance(id, bytes):
        return id.decode("utf-8", "backslashreplace")
    kind = type(id)
    if isinstance(id, int | float) or (kind.__str__ is not object.__str__ and kind.__hash__ is not None):
        return str(id)
    raise ConfigurationError(f"a job's id must be a text, a number or a UUID, not the {kind.__name__} {id!r:.100}")


_remembered_signature = lru_cache(inspect.signature)


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the function's signature. It is cached: to compute it takes longer than a round trip to the store."""
    try:
        return _remembered_signature(function)
    except TypeError:  # the callable cannot be hashed; if it is no callable, the next line raises the same error again
        return inspect.signature(function)
