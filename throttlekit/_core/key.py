"""The keys of limits: templates over a job's arguments, and what counts as a key's text."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from throttlekit._core.job import Job
from throttlekit.errors import ConfigurationError

__all__ = ["Key", "argument_names", "check_key", "filled", "key_text", "shown"]

Key: TypeAlias = "str | Callable[[Job], object] | None"


def key_text(key: object) -> str:
    """
    Read what a key template or callable came to as text.

    Raises:
        ConfigurationError: It is None, or of a type whose text would not be the same everywhere.
    """
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        # The type, not the value: it may be a job's argument, and this may be logged.
        raise ConfigurationError(f"a key must be text or a whole number, not {type(key).__name__}")
    return str(key)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return format(value if format_spec else key_text(value), format_spec)


_FORMATTER = _Formatter()


def filled(template: str, arguments: Mapping[str, Any]) -> str:
    """The key that *template* comes to with *arguments*; raises whatever a format may raise."""
    return _FORMATTER.vformat(template, (), arguments)


def argument_names(template: str) -> list[str]:
    """The arguments that a key template names."""
    names: list[str] = []
    for _, field_name, _, _ in _FORMATTER.parse(template):
        if field_name is not None:
            names.append(field_name.split(".")[0].split("[")[0])
    return names


def check_key(key: object) -> None:
    """
    Make sure that *key* can be the key of a limit.

    Raises:
        ConfigurationError: It is neither a callable nor a template that names an argument.
    """
    if key is None or callable(key):
        return
    if not isinstance(key, str):
        raise ConfigurationError(f'the key must be a template like "{{account_id}}" or a callable, not {key!r}')
    try:
        names = argument_names(key)
    except ValueError as error:
        raise ConfigurationError(f"the key template {key!r} cannot be read: {error}") from None
    if not names:
        raise ConfigurationError(
            f'the key template {key!r} names no argument: write one in braces, like "{{account_id}}", '
            "or leave the key out to count everything together"
        )
    if not all(name.isidentifier() for name in names):
        raise ConfigurationError(f'the key template {key!r} must name its arguments, like "{{account_id}}"')


def shown(key: Key) -> str:
    """*key* as an error message shows it."""
    return repr(key) if isinstance(key, str) else getattr(key, "__qualname__", repr(key))
