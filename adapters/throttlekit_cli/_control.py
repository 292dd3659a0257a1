"""The commands of live control: pause a limit, change or scale its rate, or put it into shadow mode, fleet-wide."""

from __future__ import annotations

import click

from throttlekit_cli._change import MakesChange, change_command, for_option, key_option, tier_option, yes_option

__all__ = [
    "COMMANDS",
    "clear_waitlist",
    "enforce",
    "pause",
    "reset",
    "resume",
    "scale",
    "set_",
    "shadow",
    "unset",
    "weight",
]


@change_command("Stop all jobs of a limit, in the whole fleet.", key_option, for_option, yes_option)
def pause(name: str, key: str | None, duration: float | None) -> MakesChange:
    """
    Stop all jobs of the limit NAME, in the whole fleet: for every key, or for one key.

    The jobs are deferred: they are not charged, use no retry, and keep their positions. The counts
    do not change, so up to a full burst can pass after the pause.

    With --for, the jobs continue in their order after the pause has ended. Without --for, the pause lasts until
    `throttlekit resume`. Waiting jobs then continue after at most half the duration of the pause, and after at most a
    minute.

    \b
    Exit codes:
      0  done
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a change that the limit cannot take, or the store does not answer

    \b
    Examples:
      throttlekit pause partner-api --for 10m
      throttlekit pause partner-api --key 42 --by "ann, ticket 815"
      throttlekit pause partner-api
    """
    return lambda control: control.pause(name, key=key, duration=duration)


@change_command("End a pause.", key_option, nothing="{name} is not paused.")
def resume(name: str, key: str | None) -> MakesChange:
    """
    End the pause of the limit NAME: for one key, or for all keys.

    It does not end a pause after a 429 response, because the partner requested that pause. To end it too, use
    `throttlekit reset`.

    \b
    Exit codes:
      0  done
      1  there was no pause made by `throttlekit pause`
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit resume partner-api
      throttlekit resume partner-api --key 42
    """
    return lambda control: control.resume(name, key=key)


@change_command(
    "Change the rate of a limit, in the whole fleet.",
    click.argument("rate", metavar="RATE"),
    click.option("--burst", type=int, metavar="N", help="The new burst.  [default: as declared]"),
    tier_option,
    for_option,
    yes_option,
)
def set_(name: str, rate: str, burst: int | None, tier: str | None, duration: float | None) -> MakesChange:
    """
    Change the RATE of the limit NAME, in the whole fleet: 50/s, 300/minute, 5/10s. For a concurrency limit, RATE is
    the number of slots: 4.

    All other options of the limit do not change. The command refuses a change that cannot work: a rate for a
    concurrency limit, --burst for a limit without a burst, a limit with tiers without --tier, or a rate at which a
    job's cost would never be admitted.

    Workers apply it within 2 seconds. The remaining units are kept, up to the new burst; waiting jobs keep their order,
    and a pause after a 429 response continues. A SlidingLog, and a window whose period changes, start with no unit
    used. Jobs that hold a slot still count in a changed concurrency limit.

    \b
    Exit codes:
      0  done
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a change that the limit cannot take, or the store does not answer

    \b
    Examples:
      throttlekit set partner-api 50/s --burst 5 --for 1h
      throttlekit set reports-db 4
      throttlekit set partner-api 10/minute --tier free
    """
    return lambda control: control.set(name, rate, burst=burst, tier=tier, duration=duration)


@change_command("Restore the declared rate of a limit.", tier_option, nothing="{name} already has its declared rate.")
def unset(name: str, tier: str | None) -> MakesChange:
    """
    Restore the declared rate of the limit NAME.

    \b
    Exit codes:
      0  done
      1  the rate was not changed by `throttlekit set`
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit unset partner-api
    """
    return lambda control: control.unset(name, tier=tier)


@change_command("Shadow mode: a limit counts, but denies no job.", for_option, yes_option)
def shadow(name: str, duration: float | None) -> MakesChange:
    """
    Let the limit NAME count, but deny no job: to test a limit on live traffic first.

    Every 30 seconds, each worker logs how many jobs the limit would have denied. To test a lower rate, use
    `throttlekit set` after this command.

    \b
    Exit codes:
      0  done
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a change that the limit cannot take, or the store does not answer

    \b
    Examples:
      throttlekit shadow partner-api --for 1h
    """
    return lambda control: control.shadow(name, duration=duration)


@change_command("End shadow mode: a limit denies again.", nothing="{name} is not in shadow mode: it denies.")
def enforce(name: str) -> MakesChange:
    """
    End shadow mode: the limit NAME denies again.

    \b
    Exit codes:
      0  done
      1  it was not in shadow mode
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit enforce partner-api
    """
    return lambda control: control.enforce(name)


@change_command(
    "Change the weight of a tenant of a shared limit.",
    click.argument("tenant", metavar="TENANT"),
    click.argument("weight", metavar="[WEIGHT]", type=float, required=False),
    click.option("--unset", is_flag=True, help="Restore the weight that the limit's share= declares for the tenant."),
    for_option,
    yes_option,
    nothing="{name} already has its own weight for tenant {tenant}.",
)
def weight(name: str, tenant: str, weight: float | None, unset: bool, duration: float | None) -> MakesChange:
    """
    Change the WEIGHT of TENANT in the shared limit NAME: with 3, it gets three times as many units as a tenant of
    weight 1 while both have waiting jobs.

    The new weight applies to jobs that begin to wait from now on. Jobs that already wait keep their positions.

    \b
    Exit codes:
      0  done
      1  with --unset: no weight was set by `throttlekit weight`
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a limit that tenants do not share, or the store does not answer

    \b
    Examples:
      throttlekit weight partner-api acme 3
      throttlekit weight partner-api acme 0.1 --for 1h
      throttlekit weight partner-api acme --unset
    """
    if unset == (weight is not None):
        raise click.UsageError("name the new weight, as in `throttlekit weight NAME TENANT 3`, or --unset")
    return lambda control: control.weight(name, tenant, weight, duration=duration)


@change_command(
    "Reduce limits to a part of their rate, in the whole fleet.",
    click.argument("factor", metavar="[FACTOR]", type=float, required=False),
    click.option("--unset", is_flag=True, help="Restore the full rate of the limits."),
    for_option,
    yes_option,
    nothing="{name} is not scaled.",
    pattern=True,
)
def scale(name: str, factor: float | None, unset: bool, duration: float | None) -> MakesChange:
    """
    Reduce the limit NAME to a part of its rate, in the whole fleet: with 0.5, to half of it. NAME may be a pattern for
    a group of limits: 'llm-*'. FACTOR is a number from 0.001 to 1, with at most three decimals.

    The factor applies to all tenants and tiers, and also to a rate from `throttlekit set`. A concurrency limit keeps
    that part of its slots, at least one. Counts, waitlists and pauses do not change. A rule for the exact name of a
    limit takes precedence over patterns; if several patterns match, the lowest factor applies.

    A SlidingLog cannot be scaled. A job whose cost no longer fits waits until the rule ends.

    \b
    Exit codes:
      0  done
      1  with --unset: this name, or this pattern, was not scaled by `throttlekit scale`
      2  nothing was changed: a wrong option, a limit that the fleet has not used (without --yes),
         a limit that cannot be scaled, or the store does not answer

    \b
    Examples:
      throttlekit scale partner-api 0.5 --for 10m
      throttlekit scale 'llm-*' 0.25
      throttlekit scale 'llm-*' --unset
    """
    if unset == (factor is not None):
        raise click.UsageError("name the factor, as in `throttlekit scale NAME 0.5`, or --unset")
    return lambda control: control.scale(name, factor, duration=duration)


@change_command(
    "Delete the counts of a limit, as if it were unused.",
    key_option,
    nothing="There are no counts for {name}.",
    follow=False,
)
def reset(name: str, key: str | None) -> MakesChange:
    """
    Delete the counts of the limit NAME, for one key or for all keys: full buckets, empty waitlists, no held slots,
    no pause after a 429 response. Changes by `pause`, `set` and `shadow` are kept.

    Afterwards a full burst can pass at once. For a concurrency limit, as many jobs as it has slots can start in
    addition to the jobs that already run. The command scans all keys of the store, which takes some seconds for
    millions of keys.

    \b
    Exit codes:
      0  done
      1  there were no counts
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit reset partner-api
      throttlekit reset partner-api --key 42
    """
    return lambda control: control.reset(name, key=key)


@change_command("Empty a waitlist, and keep the counts.", key_option, nothing="No job waits for {name}.", follow=False)
def clear_waitlist(name: str, key: str | None) -> MakesChange:
    """
    Empty the waitlist of the limit NAME, for one key or for all keys. The counts are kept, so no burst follows. Pauses
    and changes by `set` and `shadow` are kept too.

    Use it after you have purged a queue: the purged jobs are still on the list, and new jobs wait behind them. Waiting
    jobs that still exist only lose their positions. The command scans all keys of the store, which takes some seconds
    for millions of keys.

    \b
    Exit codes:
      0  done
      1  no job waited
      2  not done: a wrong option, or the store does not answer

    \b
    Examples:
      throttlekit clear-waitlist partner-api
      throttlekit clear-waitlist partner-api --key 42
    """
    return lambda control: control.clear_waitlist(name, key=key)


COMMANDS = (pause, resume, set_, unset, shadow, enforce, weight, scale, reset, clear_waitlist)
