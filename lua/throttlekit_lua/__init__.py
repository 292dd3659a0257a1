"""The Lua scripts of throttlekit, one verb a file."""

from importlib.resources import files

__all__ = ["read"]


def read(verb: str) -> str:
    """The text of the script for *verb*."""
    return (files(__name__) / f"{verb}.lua").read_text("utf-8")
