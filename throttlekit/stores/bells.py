"""Listens on the channel of one owner for the wakes that other processes make."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import RedisError

from throttlekit._core.waitlist import Wake
from throttlekit.stores.wire import bell_of

__all__ = ["Listener"]

_LOG = logging.getLogger("throttlekit")
_POLL_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 0.1, 2.0


class Listener:
    """
    One thread and one connection. A script knows by the number of receivers whether an owner listens.

    Args:
        client: redis-py's, of the server of the limits.
        channel: The owner's.
        heard: Called with the bucket and the wakes.
        missed: Called once it listens again: wakes may have been missed meanwhile.
    """

    def __init__(
        self,
        client: Any,
        channel: str,
        heard: Callable[[str, Sequence[Wake]], None],
        missed: Callable[[], None],
    ) -> None:
        self._client, self._channel = client, channel
        self._heard, self._missed = heard, missed
        self._pause_s = _FIRST_PAUSE_S
        self._closed = threading.Event()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, name="throttlekit-listener", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until it listens. Returns whether it does."""
        return self._listens.wait(seconds)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            pubsub = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                pubsub.subscribe(self._channel)
                self._listen(pubsub)
            except (RedisError, OSError) as error:
                _LOG.debug("The connection on which this process hears of wakes was lost: %s", error)
                self._closed.wait(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            finally:
                self._listens.clear()
                pubsub.close()

    def _listen(self, pubsub: Any) -> None:
        while not self._closed.is_set():
            message = pubsub.get_message(timeout=_POLL_S)
            if message is not None:
                try:
                    self._read(message)
                except Exception:
                    _LOG.exception("A message on %s could not be read.", self._channel)

    def _read(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._pause_s = _FIRST_PAUSE_S
            self._listens.set()
            self._missed()
        elif message["type"] == "message":
            self._heard(*bell_of(message["data"]))
