"""A request and a response as plain values, shared by WSGI, ASGI and the views of frameworks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MAX_BODY", "Refused", "Request", "Response", "json_response", "refusal"]

MAX_BODY = 10_000
"""The maximum number of bytes of a body. A framework reads one more, and `Site.handle` rejects the request."""


@dataclass(frozen=True, slots=True)
class Request:
    """
    A request to the page.

    Attributes:
        path: The path relative to the page's mount point, such as "/" or "/api/limits".
        query: The query string of the URL, without the question mark.
        headers: The headers, with names in lower case.
        root: The mount point of the page, without a slash at its end, such as "" or "/limits".
    """

    method: str = "GET"
    path: str = "/"
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    root: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Refused(Exception):
    """A request was rejected, with a status and a one-line reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def json_response(data: Any, status: int = 200) -> Response:
    """Return *data* as JSON. Lone surrogates, which a name may contain, are escaped."""
    body = json.dumps(data, separators=(",", ":")).encode()
    return Response(status, {"Content-Type": "application/json", "Cache-Control": "no-store"}, body)


def refusal(status: int, text: str) -> Response:
    return json_response({"error": text}, status)
