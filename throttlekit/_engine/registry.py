"""The limits that a limiter knows by name, and calls that can never work."""

from __future__ import annotations

from throttlekit._core.job import Job
from throttlekit._core.limit.base import Limit
from throttlekit._core.limit.template import safe_repr
from throttlekit._engine.call import Call
from throttlekit.errors import ConfigurationError

__all__ = ["LimitRegistry"]


class LimitRegistry:
    """One name, one definition."""

    def __init__(self) -> None:
        self._limits: dict[str, Limit] = {}

    def add(self, limit: Limit) -> None:
        """
        Make *limit* known.

        Raises:
            ConfigurationError: It is not a limit, or its name is used with another definition.
        """
        if not isinstance(limit, Limit):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _not_a_limit(limit)
        if limit.is_derived:
            return
        known = self._limits.setdefault(limit.name, limit)
        if known is not limit and known.definition != limit.definition:
            raise ConfigurationError(
                f"the name {limit.name!r} is used for two limits: {known!r} and {limit!r}. "
                "The same name is the same budget: give one of them another name, or use one object for both."
            )

    def check(self, call: Call) -> None:
        """
        Refuse a call that can never work, whatever the job.

        Raises:
            ConfigurationError: It cannot.
        """
        limits, job = call.limits, call.job
        if not limits:
            raise ConfigurationError("no limit was given: acquire, peek and reset take at least one")
        if job is not None and not isinstance(job, Job):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"job must be a throttlekit.Job, not {type(job).__name__}: write job=Job(…)")
        for limit in limits:
            if not isinstance(limit, Limit) or self._limits.get(limit.name) is not limit:  # pyright: ignore[reportUnnecessaryIsInstance]
                self.add(limit)
        if len(limits) > 1:
            names = [limit.name for limit in limits]
            for name in names:
                if names.count(name) > 1:
                    raise ConfigurationError(f"limit {name!r} was given twice: name it once, with a cost")
        if call.key is not None and all(limit.key is None for limit in limits):
            raise ConfigurationError(f"limit {limits[0].name!r} has no key: drop key=, or give the limit one")


def _not_a_limit(what: object) -> ConfigurationError:
    if isinstance(what, (list, tuple, set, frozenset)):
        return ConfigurationError("a limit was expected, not several in one: pass them one by one: acquire(a, b)")
    shown = f"the class {what.__name__}" if isinstance(what, type) else safe_repr(what)
    return ConfigurationError(f'{shown} is not a limit: write TokenBucket("name", "100/minute")')
