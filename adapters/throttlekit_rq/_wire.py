"""
Wire format: everything in this file is stored in users' Redis, or crosses into another process, under these names.

Jobs that wait in Redis name the class `throttlekit_rq._wire.Carried`, and workers of another release read these jobs.
So no name here may be moved or changed, and a changed shape needs a new version, which older releases refuse to read.
tests/contracts/test_wire.py holds a literal for each of these names. The scripts rq_deny.lua, rq_promote.lua,
rq_return.lua and rq_new_first.lua also use the fields of a job's hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rq.utils import import_attribute

from throttlekit import ConfigurationError

__all__ = [
    "ADMITTED",
    "EXPIRES",
    "FIELD",
    "LATE_IMPORT",
    "RUN",
    "Carried",
    "Given",
    "Record",
    "idle_key",
    "import_function",
    "logged_key",
    "notes_key",
    "promoter_key",
    "register_wrapper",
    "waker_key",
]

LATE_IMPORT = "late-import:"
"""The prefix of the log entry for a work-horse that had to import throttlekit. The queue's name follows it."""

RUN = "throttlekit_rq.run"
"""The function name of a job whose serializer does not support `Carried`."""

FIELD, EXPIRES = "throttlekit", "throttlekit_expires"
"""Fields of a denied job's hash until it runs: its `Record`, and the time at which its ttl ends, in ms since 1970."""

ADMITTED = "THROTTLEKIT_ADMITTED"
"""The environment variable of a spawned process whose job was admitted: the JSON of `_body.write_admission`."""

_VERSION = 1
_RECORD_VERSION = 1


def promoter_key(queue: str) -> str:
    """Return the key that exists while a process of throttlekit enqueues the due jobs of *queue*."""
    return f"throttlekit:rq:promoter:{queue}"


def idle_key(queue: str) -> str:
    """Return the key that exists while a worker of throttlekit for *queue* has no job, and for 0.6 s afterwards."""
    return f"throttlekit:rq:idle:{queue}"


def waker_key(queue: str) -> str:
    """Return the key of the `Announcement` of the waker (`throttlekit wake`) of *queue*, if there is a waker."""
    return f"throttlekit:rq:waker:{queue}"


def notes_key(owner: str) -> str:
    """Return the key of the list of notes from stock workers to the waker *owner*: JSON texts, the oldest first."""
    return f"throttlekit:rq:notes:{owner}"


def logged_key(what: str) -> str:
    """Return the key that exists for a limited time after a process has logged *what*."""
    return f"throttlekit:rq:state:{what}"


@dataclass(frozen=True, slots=True)
class Given:
    """
    The options that a job carries by value: plain JSON, without code and without secrets.

    Attributes:
        limits: The job's own limits, dumped. If None, the limits of its function apply.
        of_queue: The limits of its queue, dumped, which apply in addition.
        max_wait: The longest total wait in seconds. If None, the configured value applies.
        on_429: The name of the limit that a 429 pauses. If None, the `on_429` of the function applies.
    """

    limits: list[dict[str, Any]] | None
    of_queue: list[dict[str, Any]]
    max_wait: float | None = None
    on_429: str | None = None

    def write(self) -> str:
        data = {"v": _VERSION, "limits": self.limits, "queue": self.of_queue, "max_wait": self.max_wait}
        return json.dumps(data if self.on_429 is None else {**data, "on_429": self.on_429})

    @classmethod
    def read(cls, text: str) -> Given:
        """
        Read a text that `write` has written.

        Raises:
            ConfigurationError: `write` did not write *text*, or another version of it did.
        """
        try:
            data = json.loads(text)
            if data["v"] != _VERSION:
                raise ValueError(f"version {data['v']!r}")
            return cls(data["limits"], data["queue"], data["max_wait"], data.get("on_429"))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the limits in the job are not ones that this throttlekit can read ({error!r}): "
                "was it enqueued by a newer release? Update the workers first"
            ) from None


class Carried:
    """
    The replacement of the `instance` in a job's data, from which any worker gets the job's function.

    RQ reads the attribute that the job's `func_name` names, so `func_name` and description are still the user's own.
    The pickle contains the name of this class and two values: the text of a `Given`, and the object of a method.
    """

    def __init__(self, text: str, instance: Any = None) -> None:
        self._throttlekit = text, instance

    def __reduce__(self) -> tuple[object, tuple[str, Any]]:
        return Carried, self._throttlekit

    def __getattr__(self, name: str) -> Any:
        if name == "_throttlekit" or (name.startswith("_") and self._throttlekit[1] is None):
            raise AttributeError(name)  # pickle, copy or a debugger reads it; RQ reads the name of a function
        return _Wrapper.wrap(import_function(name, self._throttlekit[1]))


class _Wrapper:
    """Holds the function that adds limits to a job's function. It is set later, to avoid an import cycle."""

    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]


def register_wrapper(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Register *wrap*, which is called at import with the function of each job that carries limits."""
    _Wrapper.wrap = wrap


def import_function(name: str, instance: Any = None) -> Callable[..., Any]:
    """Import the function *name* like RQ does, or get the method *name* of *instance*. Raises the same errors as RQ."""
    found: Callable[..., Any] = import_attribute(name) if instance is None else getattr(instance, name)
    return found


@dataclass(frozen=True, slots=True)
class Record:
    """
    The data that a denied job carries in its hash until it runs.

    Attributes:
        front: The job's own `enqueue_at_front`, which is set to True while the job waits.
        expires_ms: The time at which the job's ttl ends, in ms since 1970. None if it has no ttl, or if the job was not
            denied and `read_expiry` has not computed it.
        is_denied: Whether the job was denied since it was enqueued, and has not run.
    """

    front: bool | None
    expires_ms: int | None = None
    is_denied: bool = True

    def write(self, created_at: str) -> str:
        """Return the value of the field `FIELD` for the job with this creation time."""
        return json.dumps({"v": _RECORD_VERSION, "of": created_at, "front": self.front})

    @classmethod
    def read(cls, text: bytes | None, expires: bytes | None, created_at: str) -> Record | None:
        """Read the fields. Return None for a text that `write` did not write for this job."""
        with suppress(KeyError, TypeError, ValueError):
            data = json.loads(text or b"{}")
            # The fields outlive a job whose id is used again.
            if data["v"] == _RECORD_VERSION and data["of"] == created_at:
                return cls(data["front"], int(expires) if expires else None)
        return None
