"""Read values from a job: with templates over the job's arguments, or with callables. Convert a key to text."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from throttlekit._core.job import Job
from throttlekit._core.number import is_whole
from throttlekit.errors import ConfigurationError

__all__ = [
    "Key",
    "check_names",
    "check_source",
    "check_units",
    "from_job",
    "key_text",
    "plain",
    "safe_repr",
    "show_source",
]

Key: TypeAlias = "str | Callable[[Job], object] | None"


def key_text(key: object) -> str:
    """
    Return the text of *key*, the result of a template or a callable. For a member of an enum of str or int, the text is
    that of its value.

    Raises:
        ConfigurationError: *key* is None, or of a type whose text would not be the same in every process.
    """
    if type(key) is str:
        return key
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        # Name only the type: the value may be a job's argument, and the error may be logged.
        raise ConfigurationError(f"a key must be text or a whole number, not {type(key).__name__}")
    if isinstance(key, int) and key.bit_length() > _LARGEST_BITS:
        raise ConfigurationError("a key that is a whole number must have less than 600 digits")
    return str(plain(key))


def plain(value: Any) -> Any:
    """
    Return *value* as a plain str or int, if its class is a subclass of one; otherwise *value* itself.

    In some versions of Python, the text of an enum's member is its name, in others its value. JSON contains only the
    value, so the value is used.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    return int.__int__(value) if isinstance(value, int) else value


class _Formatter(string.Formatter):
    def convert_field(self, value: Any, conversion: str | None) -> Any:
        text = super().convert_field(plain(value), conversion)
        if conversion and _ADDRESS.search(text):
            raise ConfigurationError(
                f"a key must not contain a memory address, as the text of this {type(value).__name__} does"
            )
        return text

    def format_field(self, value: Any, format_spec: str) -> str:
        return format(plain(value) if format_spec else key_text(value), format_spec)


_FORMATTER = _Formatter()
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>")  # with an address, each process would have a different key
_CONVERSIONS = (None, "s", "r", "a")
_WIDE_FORMAT = re.compile(r"\d{4}")
_LONGEST_REPR = 200
_LARGEST_BITS = 2_000  # about 600 digits: Python does not convert numbers with thousands of digits to text


def from_job(what: str, source: object, job: Job | None) -> object:
    """
    Return the result of the template or callable *source* for *job*.

    Raises:
        ConfigurationError: There is no job, the template names an argument that the job does not have, or the
            callable failed.
    """
    if job is None:
        instead = "pass job=" if what in ("tier", "held_by") else f"pass job=, or the {what} itself as {what}="
        raise ConfigurationError(f"it takes its {what} from the job ({show_source(source)}): {instead}")
    try:
        if isinstance(source, str):
            name = _only_name(source)
            if name is not None:
                value = job.arguments[name]
                return None if value is None and what == "tier" else key_text(value)
            return _FORMATTER.vformat(source, (), job.arguments)
        return source(job)  # type: ignore[operator]
    except ConfigurationError:
        raise
    except Exception as error:
        if isinstance(source, str) and isinstance(error, (KeyError, AttributeError, IndexError)):
            has = ", ".join(sorted(map(str, job.arguments))) or "no arguments"
            fault = (
                f"the {what} {show_source(source)} names {error}, which job {job.name!r} does not have; it has {has}"
            )
        else:
            # Name only the type of the error: its text may contain a job's argument, and this error may be logged.
            fault = f"the {what} {show_source(source)} failed on job {job.name!r}: {type(error).__name__}"
        raise ConfigurationError(fault) from error


def check_names(what: str, source: object, function: Callable[..., Any]) -> None:
    """
    Check that *source* can be computed from the arguments of *function*.

    Raises:
        ConfigurationError: A template names an argument that *function* does not take.
    """
    if not isinstance(source, str):
        return
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in _argument_names(source):
        if name not in parameters:
            raise ConfigurationError(
                f"its {what} {source!r} names an argument {name!r} that "
                f"{getattr(function, '__qualname__', function)!s}({', '.join(parameters)}) does not take"
            )


def check_source(what: str, source: object) -> None:
    """
    Check that *source* can be a limit's key or tier.

    Raises:
        ConfigurationError: *source* is neither a callable nor a template that names an argument.
    """
    if source is None or callable(source):
        return
    if not isinstance(source, str):
        raise ConfigurationError(
            f'the {what} must be a template like "{{account_id}}" or a callable, not {safe_repr(source)}'
        )
    try:
        names = _argument_names(source)
        _check_formats(source)
    except ValueError as error:
        raise ConfigurationError(f"the {what} template {source!r} cannot be read: {error}") from None
    if not names:
        raise ConfigurationError(
            f'the {what} template {source!r} names no argument: write one in braces, like "{{account_id}}", '
            f"or leave it out{'' if what == 'held_by' else ' to count everything together'}"
        )
    if not all(name.isidentifier() for name in names):
        raise ConfigurationError(f'the {what} template {source!r} must name its arguments, like "{{account_id}}"')


def check_units(cost: object) -> None:
    """
    Check that *cost* is a number of units.

    Raises:
        ConfigurationError: *cost* is not a whole number of at least 0.
    """
    if not is_whole(cost, 0) or cost.bit_length() > _LARGEST_BITS:
        what = safe_repr(cost) if isinstance(cost, (int, float)) else type(cost).__name__
        raise ConfigurationError(f"a cost must be a whole number of at least 0, not {what}")


def safe_repr(value: object) -> str:
    """Return the `repr` of *value* for an error message, shortened, or only its type if `repr` raises an error."""
    try:
        text = repr(value)
    except Exception:
        return f"something of type {type(value).__name__}"
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}…"


def show_source(source: object) -> str:
    """Return the text of *source* for an error message."""
    return safe_repr(source) if isinstance(source, str) else str(getattr(source, "__qualname__", safe_repr(source)))


def _check_formats(template: str) -> None:
    """
    Check the formats of fields: neither a job's argument nor a typing error may make a key very long.

    Raises:
        ValueError: The format of a field contains another field, or a width of more than three digits; or a conversion
            does not exist.
    """
    for _, _, spec, conversion in _FORMATTER.parse(template):
        if spec and "{" in spec:
            raise ValueError("a format must not contain a field")
        if spec and _WIDE_FORMAT.search(spec):
            raise ValueError("a width or precision must be less than 1000")
        if conversion not in _CONVERSIONS:
            raise ValueError(f"there is no conversion !{conversion}")


@lru_cache
def _only_name(template: str) -> str | None:
    """Return the argument's name if the template consists only of it, so that no formatting is needed, or None."""
    name = template[1:-1]
    return name if template == f"{{{name}}}" and name.isidentifier() else None


def _argument_names(template: str) -> list[str]:
    names: list[str] = []
    for _, field_name, _, _ in _FORMATTER.parse(template):
        if field_name is not None:
            names.append(field_name.split(".")[0].split("[")[0])
    return names
