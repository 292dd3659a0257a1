"""The share of a tenant in a shared limit, and the options that are refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from support.claims import claim_of
from throttlekit import ConfigurationError, Job, Share, TokenBucket
from throttlekit._core.answer import Caller, Requester
from throttlekit._core.limit.share import GivenShare, TenantShare
from throttlekit._core.serialize import dump, load
from throttlekit.stores import MemoryStore

NOW_US = 1_800_000_000_000_000


def _job(tenant: Any = "acme", queue: str = "mail") -> Job:
    return Job(id="1", name="send", queue=queue, kwargs={"tenant": tenant})


@pytest.mark.parametrize("weight", [None, 0, -1, 0.0009, 1e6 + 1, math.nan, math.inf, True, "5", 10**400, [1]])
def test_invalid_weight_is_refused(weight: Any) -> None:
    """An invalid weight raises at the declaration; from a callable, when it is called; and in a message."""
    for make in (lambda: Share("{tenant}", weight=weight), lambda: Share("{tenant}", weight={"acme": weight})):
        with pytest.raises(ConfigurationError, match="a weight must be"):
            make()
    with pytest.raises(ConfigurationError, match="a weight must be"):
        Share("{tenant}", weight=lambda job: weight).tenant_share_of(_job())
    message = {**dump(TokenBucket("api", "1/s"), _job()), "share": ["acme", weight, 0]}
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load(message)


@pytest.mark.parametrize("tenant", [None, True, 1.5, b"acme", ["acme"], 10**700])
def test_tenant_that_is_not_text_is_refused(tenant: Any) -> None:
    """A template or callable that gives a tenant of another type than text or whole number raises."""
    for share in (Share("{tenant}"), Share(lambda job: job.kwargs["tenant"])):
        with pytest.raises(ConfigurationError):
            share.tenant_share_of(_job(tenant))


def test_callable_that_raises_is_a_configuration_error() -> None:
    """The error names the job and the class of the exception that the callable raised."""
    with pytest.raises(ConfigurationError, match="failed on job 'send': ZeroDivisionError"):
        Share(lambda job: 1 // 0).tenant_share_of(_job())


def test_share_may_be_the_queue() -> None:
    """The queue of a job can be the tenant, select its weight, or be a part of the tenant's name."""
    assert Share("{queue}").tenant_share_of(_job()) == TenantShare("mail")
    assert Share("{tenant}", weight={"mail": 3}, by="{queue}").tenant_share_of(_job()) == TenantShare("acme", 3.0)
    assert Share(lambda job: f"{job.queue}:{job.kwargs['tenant']}").tenant_share_of(_job()) == TenantShare("mail:acme")


def test_sixteen_priorities_at_most() -> None:
    """A tenant that the mapping does not name has weight 1, and the priority of weight 1."""
    most = {str(weight): weight for weight in range(1, 17)}
    leads = [Share("{tenant}", weight=most, strict=True).tenant_share_of(_job(name)).lead for name in ["none", *most]]
    assert leads == sorted(leads)
    assert leads[0] == leads[1] == 0
    with pytest.raises(ConfigurationError, match="at most 16 differ"):
        Share("{tenant}", weight={**most, "more": 17}, strict=True)


def test_share_is_the_same_after_a_message() -> None:
    """A limit in a message has the tenant, weight and priority of its job."""
    share = Share("{tenant}", weight={"acme": 3}, strict=True)
    given = load(dump(TokenBucket("api", "1/s", share=share), _job())).share
    assert isinstance(given, GivenShare)
    assert given.tenant_share_of(None) == share.tenant_share_of(_job())


@pytest.mark.parametrize("cost", [1, 100_000, 5_000_000])
def test_no_job_is_granted_before_one_of_a_higher_priority(cost: int) -> None:
    """Whatever the cost, all jobs of a higher priority are granted first, whether new or returning."""
    limit = TokenBucket("tokens", f"{cost}/s", burst=cost)
    share = Share("{tenant}", weight={"high": 2, "low": 1}, strict=True)
    store, owner, ids = MemoryStore(), "worker", itertools.count()
    store.listen(owner, lambda bucket, wakes: None)

    def request(tenant: str, at_s: float, id: str = "") -> tuple[str, bool]:
        tenant_share = share.tenant_share_of(_job(tenant))
        now_us, id = NOW_US + round(at_s * 1e6), id or f"{tenant} {next(ids)}"
        claim = claim_of(
            limit.bind(cost, now_us),
            cost,
            tenant=tenant_share.tenant,
            step=tenant_share.step(cost),
            lead=tenant_share.lead,
        )
        return id, store.decide([claim], Requester(Caller.JOB, id, owner, 9), now_us).allowed

    assert request("low", 0)[1]
    waiting = [*(request("low", 0)[0] for _ in range(3)), *(request("high", 0.1)[0] for _ in range(3))]
    granted: list[str] = []
    for second in range(1, 12):
        granted += [id for id in waiting if id not in granted and request(id.split()[0], second, id)[1]]
    assert granted == [*waiting[3:], *waiting[:3]], "every high job is granted before every low job"
