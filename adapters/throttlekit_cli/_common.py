"""Code shared by all commands: the option --url, the exit code 2, and the check for missing packages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from throttlekit_cli._extras import describe_missing

__all__ = ["CommandFailed", "require", "show_keys_option", "store_errors", "title_option", "url_option"]

_F = TypeVar("_F", bound=Callable[..., Any])


class CommandFailed(click.ClickException):
    """The command could not run. It prints one line on the error output, and exits with code 2."""

    exit_code = 2


show_keys_option = click.option(
    "--show-keys", is_flag=True, help="Show the keys themselves. They may contain arguments of jobs."
)
title_option = click.option(
    "--title",
    default="",
    metavar="TEXT",
    help="A name for the store, like production. It is shown before the store's host and database.",
)


def url_option(*, required: bool = False) -> Callable[[_F], _F]:
    """Return the option --url, which can also be set with the variable THROTTLEKIT_URL."""
    return click.option(
        "--url",
        metavar="URL",
        envvar="THROTTLEKIT_URL",
        show_envvar=True,
        required=required,
        help="The limiter's store, as in Limiter(URL).",
    )


def require(packages: Sequence[str], extra: str = "cli") -> None:
    """
    Check that *packages*, a part of the *extra*, are installed.

    Raises:
        CommandFailed: A package is missing. The message says how to install it.
    """
    if text := describe_missing(packages, extra):
        raise CommandFailed(text)


@contextmanager
def store_errors() -> Generator[None, None, None]:
    """Convert the errors of a store to `CommandFailed`."""
    from throttlekit import ConfigurationError, StoreUnavailable

    try:
        yield
    except StoreUnavailable as error:
        raise CommandFailed(f"{error} (server {error.server})" if error.server else str(error)) from None
    except (ConfigurationError, ImportError) as error:
        raise CommandFailed(str(error)) from None
