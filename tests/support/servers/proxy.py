"""A TCP proxy whose connections a test can break and delay."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

__all__ = ["Proxy"]


class Proxy:
    """
    Forwards connections to *port* of this machine, until they are cut. Use it in a `with` block.

    Attributes:
        delay: By how many seconds each reply is delayed.
        target: The port to which new connections are forwarded.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """How many connections were made since the last `cut`."""
        return len(self._open) // 2

    def cut(self) -> None:
        """Break every open connection. New connections are forwarded."""
        sockets, self._open = self._open, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # no server listens
                    near.close()
                    continue
                self._open += [near, far]
                for source, sink, replies in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._forward, args=(source, sink, replies), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if replies and self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        _close(source, sink)


def _close(source: socket.socket, sink: socket.socket) -> None:
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
