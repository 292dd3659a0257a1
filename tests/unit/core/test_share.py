"""What a job's part in a shared limit is, and what is refused."""

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
def test_weight_that_no_tenant_can_have_is_refused(weight: Any) -> None:
    """Where it is written; of a callable, when it is called; and in a message."""
    for make in (lambda: Share("{tenant}", weight=weight), lambda: Share("{tenant}", weight={"acme": weight})):
        with pytest.raises(ConfigurationError, match="a weight must be"):
            make()
    with pytest.raises(ConfigurationError, match="a weight must be"):
        Share("{tenant}", weight=lambda job: weight).tenant_share_of(_job())
    message = {**dump(TokenBucket("api", "1/s"), _job()), "share": ["acme", weight, 0]}
    with pytest.raises(ConfigurationError, match="not one that throttlekit wrote"):
        load(message)


@pytest.mark.parametrize("tenant", [None, True, 1.5, b"acme", ["acme"], 10**700])
def test_tenant_that_is_no_text_is_refused(tenant: Any) -> None:
    for share in (Share("{tenant}"), Share(lambda job: job.kwargs["tenant"])):
        with pytest.raises(ConfigurationError):
            share.tenant_share_of(_job(tenant))


def test_callable_that_fails_is_an_error_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="failed on job 'send': ZeroDivisionError"):
        Share(lambda job: 1 // 0).tenant_share_of(_job())


def test_share_may_be_the_queue() -> None:
    assert Share("{queue}").tenant_share_of(_job()) == TenantShare("mail")
    assert Share("{tenant}", weight={"mail": 3}, by="{queue}").tenant_share_of(_job()) == TenantShare("acme", 3.0)
    assert Share(lambda job: f"{job.queue}:{job.kwargs['tenant']}").tenant_share_of(_job()) == TenantShare("mail:acme")


def test_sixteen_priorities_at_most() -> None:
    """What the mapping does not have is of weight 1, and a priority too."""
    most = {str(weight): weight for weight in range(1, 17)}
    leads = [Share("{tenant}", weight=most, strict=True).tenant_share_of(_job(name)).lead for name in ["none", *most]]
    assert leads == sorted(leads)
    assert leads[0] == leads[1] == 0
    with pytest.raises(ConfigurationError, match="at most 16 differ"):
        Share("{tenant}", weight={**most, "more": 17}, strict=True)


def test_share_comes_in_a_message_as_it_was() -> None:
    share = Share("{tenant}", weight={"acme": 3}, strict=True)
    given = load(dump(TokenBucket("api", "1/s", share=share), _job())).share
    assert isinstance(given, GivenShare)
    assert given.tenant_share_of(None) == share.tenant_share_of(_job())


@pytest.mark.parametrize("cost", [1, 100_000, 5_000_000])
def test_no_job_passes_before_one_of_a_higher_priority(cost: int) -> None:
    """However much jobs cost: neither one that stands behind others of its priority, nor one that comes back."""
    limit = TokenBucket("tokens", f"{cost}/s", burst=cost)
    share = Share("{tenant}", weight={"high": 2, "low": 1}, strict=True)
    store, owner, ids = MemoryStore(), "worker", itertools.count()
    store.listen(owner, lambda bucket, wakes: None)

    def ask(tenant: str, at_s: float, id: str = "") -> tuple[str, bool]:
        mine = share.tenant_share_of(_job(tenant))
        now_us, id = NOW_US + round(at_s * 1e6), id or f"{tenant} {next(ids)}"
        claim = claim_of(limit.bind(cost, now_us), cost, tenant=mine.tenant, step=mine.step(cost), lead=mine.lead)
        return id, store.decide([claim], Requester(Caller.JOB, id, owner, 9), now_us).allowed

    assert ask("low", 0)[1]
    waiting = [*(ask("low", 0)[0] for _ in range(3)), *(ask("high", 0.1)[0] for _ in range(3))]
    passed: list[str] = []
    for second in range(1, 12):
        passed += [id for id in waiting if id not in passed and ask(id.split()[0], second, id)[1]]
    assert passed == [*waiting[3:], *waiting[:3]], "every high one passes before every low one"
