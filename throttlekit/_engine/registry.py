"""The limits that a limiter knows by name. Rejects two definitions of one name, and calls that can never work."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from throttlekit._core.job import Job, make_id_text
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._engine.call import Call
from throttlekit.errors import ConfigurationError

__all__ = ["LimitRegistry"]


class LimitRegistry:
    """
    Ensures that each name has only one definition among the limits that exist.

    A limit owns its name from its declaration, or from its second call, for as long as the object exists. A limit that
    is made for one call is forgotten after the call, so it takes no memory and may be redefined at any time. Its old
    and new definitions have separate counts.
    """

    def __init__(self) -> None:
        self._limits: dict[str, _Known] = {}
        self.let_go: Callable[[], None] = lambda: None
        """Drops limits that only a cache references. Called before an error for two definitions is raised."""

    def check(self, call: Call) -> bool:
        """
        Reject a call that is invalid for any job.

        Returns:
            Whether each limit owned its name before. If so, the same call is valid until `let_go` is called.

        Raises:
            ConfigurationError: The call is invalid.
        """
        limits, job = call.limits, call.job
        if not limits:
            raise ConfigurationError("no limit was given: acquire, peek and reset take at least one")
        if job is not None and not isinstance(job, Job):
            raise ConfigurationError(f"job must be a throttlekit.Job, not {type(job).__name__}: write job=Job(…)")
        if job is not None and type(job.id) is not str:
            make_id_text(job)
        owned = True
        for limit in limits:
            known = self._limits.get(limit.name) if isinstance(limit, Limit) else None
            if known is None or known() is not limit or not known.owner:
                self.add(limit, owner=False)
                owned = False
        if len(limits) > 1:
            names = [limit.name for limit in limits]
            for name in names:
                if names.count(name) > 1:
                    raise ConfigurationError(f"limit {name!r} was given twice: name it once, with a cost")
        if call.key is not None and limits[0].key is None and all(limit.key is None for limit in limits):
            raise ConfigurationError(f"limit {limits[0].name!r} has no key: drop key=, or give the limit one")
        return owned

    def add(self, limit: Limit, *, owner: bool = True) -> None:
        """
        Register *limit*. If *owner*, or if it is added again, it owns its name.

        Raises:
            ConfigurationError: *limit* is not a limit, or its name has another definition.
        """
        if not isinstance(limit, Limit):
            raise _not_a_limit(limit)
        if limit.is_derived:
            return
        known = self._limits.get(limit.name)
        other = None if known is None else known()
        if known is None or other is None:
            self._keep(limit, owner)
        elif other is limit:
            known.owner = True
        elif other.definition == limit.definition:
            known.owner = known.owner or owner
        elif not known.owner:
            self._keep(limit, owner)
        else:
            shown = repr(other)
            del other
            self.let_go()
            if known() is not None:
                raise ConfigurationError(
                    f"the name {limit.name!r} is used for two limits: {shown} and {limit!r}. "
                    "The same name is the same budget: give one of them another name, or use one object for both."
                )
            self._keep(limit, owner)

    def _keep(self, limit: Limit, owner: bool) -> None:
        limits = self._limits

        def gone(known: ref[Limit]) -> None:
            if limits.get(name) is known:
                del limits[name]

        name = limit.name
        limits[name] = _Known(limit, gone)
        limits[name].owner = owner


class _Known(ref[Limit]):
    """
    A weak reference to a limit that was used.

    Attributes:
        owner: Whether another definition of its name is an error while the limit exists.
    """

    __slots__ = ("owner",)

    owner: bool


def _not_a_limit(what: object) -> ConfigurationError:
    if isinstance(what, (list, tuple, set, frozenset)):
        return ConfigurationError("a limit was expected, not several in one: pass them one by one: acquire(a, b)")
    shown = f"the class {what.__name__}" if isinstance(what, type) else safe_repr(what)
    return ConfigurationError(f'{shown} is not a limit: write TokenBucket("name", "100/minute")')
