"""The command `throttlekit`."""

from throttlekit_cli._main import main

__all__ = ["main"]
