"""What happens to a limit while the store gives no answer, and how much one of several processes may then let pass."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from throttlekit._core.limit.rate import Rate
from throttlekit.errors import ConfigurationError, CostExceedsLimit

__all__ = ["OnStoreFailure", "check_failure", "share_of", "shared_bucket", "shared_window"]

OnStoreFailure: TypeAlias = Literal["closed", "open", "local"]

_MOST_PROCESSES = 1_000_000
_INSTEAD = 'name fewer, or take on_store_failure="closed" or "open"'


def check_failure(on_store_failure: object, processes: object, scope: object) -> None:
    """
    Make sure that these options fit together.

    Raises:
        ConfigurationError: They do not, or one of them is not a value that it can have.
    """
    if on_store_failure not in get_args(OnStoreFailure):
        raise ConfigurationError(f'on_store_failure must be "closed", "open" or "local", not {on_store_failure!r}')
    if on_store_failure != "local":
        if processes is not None:
            raise ConfigurationError(f'processes={processes!r} needs on_store_failure="local"')
        if on_store_failure == "open" and scope == "process":
            raise ConfigurationError('a limit of scope "process" uses no store: leave on_store_failure= out')
        return
    if scope == "process":
        raise ConfigurationError('a limit of scope "process" uses no store: leave on_store_failure= out')
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= _MOST_PROCESSES:
        raise ConfigurationError(
            'on_store_failure="local" needs processes=: how many processes share the limit, '
            f"from 1 to {_MOST_PROCESSES}, not {processes!r}"
        )


def share_of(limit: Any, processes: int, options: Mapping[str, Any]) -> Any:
    """
    The share of *limit* that one of *processes* has, as a limit of scope "process".

    Raises:
        ConfigurationError: The share would let nothing pass.
    """
    begin = f"processes={processes} leaves each of them a share"
    rate, own = limit.shared_out(processes, options)
    own = {**own, "queue": None}  # no job waits in it
    of_tier = {} if limit.of_tier is None else {"_of_tier": limit.of_tier, "_by_value": limit.by_value}
    of_tier |= {} if limit.varying_us is None else {"_varying_us": limit.varying_us}
    try:
        return type(limit)(limit.name, rate, key=limit.key, cost=limit.cost, scope="process", **own, **of_tier)
    except CostExceedsLimit as error:
        raise ConfigurationError(
            f"{begin} of {error.most} at once, which never admits a cost of {error.cost}"
        ) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{begin} that cannot be held: {error}") from None


def shared_window(amount: int, period_us: int, processes: int) -> tuple[int, timedelta]:
    """
    Whole units of a window for each of *processes*, rounded down.

    Raises:
        ConfigurationError: There are fewer units than processes.
    """
    if amount < processes:
        raise ConfigurationError(f"an amount of {amount} cannot be shared out among processes={processes}: {_INSTEAD}")
    return amount // processes, timedelta(microseconds=period_us)


def shared_bucket(amount: int, period_us: int, processes: int) -> Rate:
    """The rate of a bucket for each of *processes*, exactly."""
    if amount % processes == 0:
        return amount // processes, timedelta(microseconds=period_us)
    return amount, timedelta(microseconds=period_us * processes)
