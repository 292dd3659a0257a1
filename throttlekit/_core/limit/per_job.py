"""The values that a limit computes from a job: its key, the part that the scope adds to the key, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from throttlekit._core.job import Job
from throttlekit._core.limit.options import Cost, Scope, Tier
from throttlekit._core.limit.share import NO_TENANT_SHARE, Share, TenantShare
from throttlekit._core.limit.template import Key, check_names, check_units, from_job, key_text, plain, show_source
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
        Compute the key under which *job* is counted.

        Raises:
            ConfigurationError: The limit has a key, but there is no job; the template names an argument
                that the job does not have; or the callable failed.
        """
        if self.key is None:
            return ""
        try:
            return key_text(from_job("key", self.key, job))
        except ConfigurationError as error:
            raise self._named_error(error) from error.__cause__

    def workflow_of(self, job: Job | None, given: str | int | None = None) -> str:
        """
        Return the text of the *given* workflow, or of the workflow that holds the slot of *job*, for a limit with
        `held_by`.

        Raises:
            ConfigurationError: As for `key_of`; or the name of the workflow is empty: all such jobs would share a slot.
        """
        with self._name_in_errors():
            workflow = key_text(from_job("held_by", self.held_by, job) if given is None else given)
            if not workflow:
                raise ConfigurationError(
                    f"the held_by {show_source(self.held_by)} is empty: it must name the job's workflow"
                )
            return workflow

    def holder_of(self, job: Job | None, workflow: str | int | None = None) -> str:
        """Return the holder for *workflow*, or for the workflow of *job*. Raise the same errors as `workflow_of`."""
        return workflow_name(self.workflow_of(job, workflow))

    def part_of(self, job: Job | None) -> str | None:
        """
        Return the part that the scope adds to the key: the name of the queue or of the job; None if it adds nothing.

        Raises:
            ConfigurationError: The scope needs a job, but there is none.
        """
        if self.scope not in ("queue", "job"):
            return None
        if job is None:
            raise ConfigurationError(f"limit {self.name!r} counts each {self.scope} apart: pass job=")
        part = job.queue if self.scope == "queue" else job.name
        if not isinstance(part, str):
            raise ConfigurationError(
                f"limit {self.name!r} counts each {self.scope} apart: the job's must be text, not {type(part).__name__}"
            )
        return plain(part)  # type: ignore[no-any-return]

    def tenant_share_of(self, job: Job | None) -> TenantShare:
        """
        Return the tenant, weight and priority class of *job* in a limit with `share=`.

        Raises:
            ConfigurationError: As for `Share.tenant_share_of`.
        """
        if self.share is None:
            return NO_TENANT_SHARE
        with self._name_in_errors():
            return self.share.tenant_share_of(job)

    def cost_of(self, job: Job | None) -> int:
        """
        Compute the number of units that *job* takes.

        Raises:
            ConfigurationError: The callable failed or needs a job, or its result is not a whole number of at least 0.
            CostExceedsLimit: The cost is more than can ever pass at once.
        """
        if isinstance(self.cost, int):
            return self.cost if self.cost <= self.most else self.check_cost(self.cost)
        with self._name_in_errors():
            cost = from_job("cost", self.cost, job)
        return self.check_cost(cost)  # type: ignore[arg-type]

    def check_cost(self, cost: int) -> int:
        """Return *cost* if a job may take that many units. Otherwise raise an error of `cost_of`."""
        cost = self.check_units(cost)
        if cost > self.most:
            raise CostExceedsLimit(cost=cost, limit=self.name, most=self.most, remedy=self._remedy(cost))
        return cost

    def given_cost(self, cost: int) -> int:
        """Return the cost for this limit if a call passes one *cost* for all limits, or raise an error of `cost_of`."""
        return self.check_cost(cost)

    def check_units(self, units: int) -> int:
        """Return *units* if it is a number of units, however large. Otherwise raise a `ConfigurationError`."""
        with self._name_in_errors():
            check_units(units)
        return units if type(units) is int else int.__int__(units)

    def check_function(self, function: Callable[..., Any]) -> None:
        """
        Check that the key, the tier, held_by and the share can be computed from the arguments of *function*.

        Raises:
            ConfigurationError: A template names an argument that *function* does not take.
        """
        sources: list[tuple[str, object]] = [("key", self.key), ("tier", self.tier), ("held_by", self.held_by)]
        if self.share is not None:
            sources += [("share", each) for each in (self.share.of, self.share.by) if each != "{queue}"]
        for what, source in sources:
            with self._name_in_errors():
                check_names(what, source, function)

    def _remedy(self, cost: int) -> str:
        """Return the advice in the error for a *cost* that can never pass."""
        return f"raise the rate's amount to at least {cost}"

    @contextmanager
    def _name_in_errors(self) -> Generator[None, None, None]:
        """Begin the errors that the context raises with the limit's name."""
        try:
            yield
        except CostExceedsLimit:
            raise
        except ConfigurationError as error:
            raise self._named_error(error) from error.__cause__

    def _named_error(self, error: ConfigurationError) -> ConfigurationError:
        begin = f"limit {self.name!r}: "
        return ConfigurationError(begin + str(error).removeprefix(begin))
