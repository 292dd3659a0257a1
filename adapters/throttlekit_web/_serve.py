"""The server of `throttlekit web`: waitress, a package without dependencies."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable
from typing import Any

from throttlekit import ConfigurationError, StoreUnavailable
from throttlekit_web._site import Site
from throttlekit_web._wsgi import serve_wsgi

__all__ = ["serve"]

_THREADS = 8
_RECORDED_EVERY_S = 10.0


def serve(site: Site, host: str, port: int, started: Callable[[int], None]) -> None:
    """
    Serve *site* until Ctrl-C. Every 10 s, record the number of waiting jobs, so that their chart has no gaps.

    Args:
        port: The port to listen on, or 0 for a free port.
        started: A function that is called with the port when connections are accepted.

    Raises:
        ConfigurationError: The server cannot listen on this address and port.
        StoreUnavailable: The store does not answer.
    """
    waitress: Any = importlib.import_module("waitress")  # it has no types
    site.record()
    try:
        server = waitress.create_server(serve_wsgi(site), host=host, port=port, threads=_THREADS, ident=None)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error}. Name another with --port") from None
    stopped = threading.Event()
    threading.Thread(target=_record, args=(site, stopped), name="throttlekit-web", daemon=True).start()
    try:
        started(_port(server))
        server.run()
    finally:
        stopped.set()
        server.close()


def _record(site: Site, stopped: threading.Event) -> None:
    while not stopped.wait(_RECORDED_EVERY_S):
        with contextlib.suppress(StoreUnavailable):
            site.record()


def _port(server: Any) -> int:
    """Return the port of the server. If a host name has several addresses, each with a socket, take the first."""
    listening = getattr(server, "effective_listen", None) or [(None, server.effective_port)]
    return int(listening[0][1])
