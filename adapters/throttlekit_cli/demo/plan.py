"""The plan of a run: the options as one value, and what follows from them."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, get_args

from throttlekit import TokenBucket

__all__ = ["FRAMEWORKS", "TRAVEL", "Framework", "Plan", "Settings"]

Framework: TypeAlias = Literal["dramatiq", "rq", "celery", "taskiq", "huey"]
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)

TRAVEL = 0.25
"""
The delay of an allowed call on its way that the partner's burst makes up for, in seconds.

The limiter allows calls by its server's clock; the partner counts them when they arrive. In between
a thread has to be scheduled and a connection made. Measured on two cores, calls arrived up to 0.01 s
closer together with eight busy loops beside the demo, and 0.03 s in the first run of a fresh
installation; the rest is a margin for slower machines.
"""

_VARIABLE = "THROTTLEKIT_DEMO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of one run."""

    jobs: int
    rate: str
    burst: int
    workers: int
    seed: int
    throttled: bool
    url: str | None
    amount: int
    period: float
    framework: Framework = "dramatiq"

    @classmethod
    def of(
        cls,
        *,
        jobs: int,
        rate: str,
        burst: int | None,
        workers: int,
        seed: int,
        throttled: bool,
        url: str | None,
        framework: Framework = "dramatiq",
    ) -> Plan:
        """
        Make a plan from the options.

        Raises:
            ConfigurationError: The rate is not valid, or does not go with the burst.
        """
        limit = TokenBucket("partner-api", rate, burst=burst)
        return cls(
            jobs=jobs, rate=rate, burst=limit.burst, workers=workers, seed=seed, throttled=throttled, url=url,
            amount=limit.amount, period=limit.period_us / 1_000_000, framework=framework,
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """Threads of each worker process. RQ's run one job at a time."""
        return 1 if self.framework == "rq" else 4

    @property
    def per_second(self) -> float:
        return self.amount / self.period

    @property
    def partner_burst(self) -> int:
        """The partner's own burst: the limit's, and room for the calls' travel."""
        return self.burst + math.ceil(self.per_second * TRAVEL)

    @property
    def ideal(self) -> float:
        """Seconds between the first and the last call if the limit is used to the full."""
        return max(0.0, (self.jobs - self.burst) / self.per_second)

    @property
    def cut_off(self) -> float:
        """Seconds after which a run is stopped, even if jobs are left."""
        return 2 * self.ideal + 10

    @property
    def work(self) -> float:
        """Seconds that a job works on average, so that the workers could do four times the rate."""
        return min(0.15, self.workers * self.threads / self.per_second / 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    The settings of a worker process. They travel in its environment, because a URL may hold a password, and
    any user of the machine can read a command line.
    """

    run: str
    broker_url: str
    limiter_url: str
    report_url: str
    partner_port: int
    rate: str
    burst: int
    throttled: bool

    @staticmethod
    def new_run() -> str:
        """A unique name: every key of a run begins with it, or belongs to the limit of that name."""
        return f"throttlekit-demo-{secrets.token_hex(4)}"

    def limit(self) -> TokenBucket:
        return TokenBucket(f"partner-api:{self.run}", self.rate, burst=self.burst)

    def environment(self) -> dict[str, str]:
        """The environment variables of a worker. RQ's command reads the URL from its own variable."""
        return {_VARIABLE: json.dumps(asdict(self)), "RQ_REDIS_URL": self.broker_url}

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        return cls(**json.loads(environment[_VARIABLE]))
