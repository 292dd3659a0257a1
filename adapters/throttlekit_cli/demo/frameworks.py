"""The frameworks that the demo can run on, behind one interface."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings

__all__ = ["DemoFramework", "framework_of"]


class DemoFramework(Protocol):
    """One framework, as the demo's own process sees it."""

    def send(self, job: int, account: int, work: float) -> None:
        """Send one job."""
        ...

    def command(self, plan: Plan, folder: Path) -> list[str]:
        """The framework's own command, which starts all workers."""
        ...

    def ready(self) -> int:
        """How many workers are ready."""
        ...

    def settled(self) -> bool:
        """Whether no job is left in the broker: a second copy of one would still be there."""
        ...

    def clear(self) -> None:
        """Delete the run's keys that do not begin with the run's name."""
        ...


def framework_of(plan: Plan, settings: Settings, ledger: Ledger) -> DemoFramework:
    """The framework that *plan* names. No other framework is imported."""
    if plan.framework == "rq":
        from throttlekit_cli.demo.rq_jobs import RqFramework

        return RqFramework(settings, ledger)
    if plan.framework == "celery":
        from throttlekit_cli.demo.celery_jobs import CeleryFramework

        return CeleryFramework(settings, ledger)
    if plan.framework == "taskiq":
        from throttlekit_cli.demo.taskiq_jobs import TaskiqFramework

        return TaskiqFramework(settings, ledger)
    if plan.framework == "huey":
        from throttlekit_cli.demo.huey_jobs import HueyFramework

        return HueyFramework(settings, ledger)
    from throttlekit_cli.demo.dramatiq_jobs import DramatiqFramework

    return DramatiqFramework(settings, ledger)
