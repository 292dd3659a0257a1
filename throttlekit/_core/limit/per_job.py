"""What a limit takes from a job: its key, what the scope adds to the key, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from throttlekit._core.job import Job
from throttlekit._core.limit.options import Cost, Scope, Tier
from throttlekit._core.limit.share import NO_TENANT_SHARE, Share, TenantShare
from throttlekit._core.limit.template import Key, check_names, check_units, from_job, key_text, plain, shown
from throttlekit._core.storage_keys import workflow_name
from throttlekit.errors import ConfigurationError, CostExceedsLimit

__all__ = ["PerJob"]


class PerJob:
    """The part of a limit that reads jobs. Every error names the limit."""

    __slots__ = ()

    name: str
    key: Key
    held_by: Key
    cost: Cost
    scope: Scope
    tier: Tier
    most: int
    share: Share | None

    def key_of(self, job: Job | None) -> str:
        """
        Work out the key under which *job* is counted.

        Raises:
            ConfigurationError: The limit has a key and there is no job to take it from, the template
                names an argument that the job does not have, or the callable failed.
        """
        if self.key is None:
            return ""
        try:
            return key_text(from_job("key", self.key, job))
        except ConfigurationError as error:
            raise self._named_error(error) from error.__cause__

    def workflow_of(self, job: Job | None) -> str:
        """
        Work out by which workflow the slot of *job* is held, for a limit with `held_by`.

        Raises:
            ConfigurationError: As `key_of`; or the workflow has no name: all such jobs would run on one slot.
        """
        with self._named():
            value = key_text(from_job("held_by", self.held_by, job))
            if not value:
                raise ConfigurationError(f"the held_by {shown(self.held_by)} is empty: it must name the job's workflow")
            return value

    def holder_of(self, job: Job | None, workflow: str | int | None = None) -> str:
        """The holder of the slot that *workflow* has, or that of *job* if None; raises as `workflow_of`."""
        return workflow_name(self.workflow_of(job) if workflow is None else key_text(workflow))

    def part_of(self, job: Job | None) -> str | None:
        """
        What the scope adds to the key: the name of the queue or of the job. None: nothing.

        Raises:
            ConfigurationError: The scope needs a job, and there is none.
        """
        if self.scope not in ("queue", "job"):
            return None
        if job is None:
            raise ConfigurationError(f"limit {self.name!r} counts each {self.scope} apart: pass job=")
        part = job.queue if self.scope == "queue" else job.name
        if not isinstance(part, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"limit {self.name!r} counts each {self.scope} apart: the job's must be text, not {type(part).__name__}"
            )
        return plain(part)  # type: ignore[no-any-return]

    def tenant_share_of(self, job: Job | None) -> TenantShare:
        """
        The part of *job* in a limit that is shared.

        Raises:
            ConfigurationError: As `Share.tenant_share_of` does.
        """
        if self.share is None:
            return NO_TENANT_SHARE
        with self._named():
            return self.share.tenant_share_of(job)

    def cost_of(self, job: Job | None) -> int:
        """
        Work out how many units *job* takes.

        Raises:
            ConfigurationError: The callable failed, or there is no job to give it, or what it
                returned is not a whole number of at least 0.
            CostExceedsLimit: It is more than can ever pass at once.
        """
        if isinstance(self.cost, int):
            return self.cost if self.cost <= self.most else self.check_cost(self.cost)
        with self._named():
            cost = from_job("cost", self.cost, job)
        return self.check_cost(cost)  # type: ignore[arg-type]

    def check_cost(self, cost: int) -> int:
        """Return *cost* if a job may take as many units; raise as `cost_of` does if not."""
        cost = self.check_units(cost)
        if cost > self.most:
            raise CostExceedsLimit(cost=cost, limit=self.name, most=self.most, remedy=self._remedy(cost))
        return cost

    def given_cost(self, cost: int) -> int:
        """What this limit takes if a call gives all of its limits a *cost*; raises as `cost_of` does."""
        return self.check_cost(cost)

    def check_units(self, units: int) -> int:
        """Return *units* if it is a number of units, however large; raise a `ConfigurationError` if not."""
        with self._named():
            check_units(units)
        return units if type(units) is int else int.__int__(units)

    def check_function(self, function: Callable[..., Any]) -> None:
        """
        Make sure that the key, the tier, held_by and the share can be worked out from the arguments of *function*.

        Raises:
            ConfigurationError: A template names an argument that *function* does not take.
        """
        sources: list[tuple[str, object]] = [("key", self.key), ("tier", self.tier), ("held_by", self.held_by)]
        if self.share is not None:
            sources += [("share", each) for each in (self.share.of, self.share.by) if each != "{queue}"]
        for what, source in sources:
            with self._named():
                check_names(what, source, function)

    def _remedy(self, cost: int) -> str:
        """What an error advises if *cost* can never pass."""
        return f"raise the rate's amount to at least {cost}"

    @contextmanager
    def _named(self) -> Generator[None, None, None]:
        """Errors begin with the limit's name."""
        try:
            yield
        except CostExceedsLimit:
            raise
        except ConfigurationError as error:
            raise self._named_error(error) from error.__cause__

    def _named_error(self, error: ConfigurationError) -> ConfigurationError:
        begin = f"limit {self.name!r}: "
        return ConfigurationError(begin + str(error).removeprefix(begin))
