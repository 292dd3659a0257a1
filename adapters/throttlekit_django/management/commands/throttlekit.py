"""The command `manage.py throttlekit …`, which is the command `throttlekit` with the project's store."""

from __future__ import annotations

import os
from collections.abc import Sequence

from django.core.management import BaseCommand  # type: ignore[import-untyped]

from throttlekit import ConfigurationError
from throttlekit_cli import main
from throttlekit_django._settings import read_options

__all__ = ["Command"]


class Command(BaseCommand):  # type: ignore[misc]
    help = "Show and change the limits: the command throttlekit with the store of settings.THROTTLEKIT."

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Pass all options, including --help, to the command `throttlekit`."""
        try:
            url = read_options().get("url")
        except ConfigurationError as error:
            raise SystemExit(f"Error: {error}") from None
        if isinstance(url, str):
            os.environ["THROTTLEKIT_URL"] = url
        main(argv[2:], program="manage.py throttlekit")
