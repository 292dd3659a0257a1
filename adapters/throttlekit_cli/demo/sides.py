"""The frameworks that the demo can run on, and what it needs of each."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings

__all__ = ["Side", "side_of"]


class Side(Protocol):
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
        """Whether nothing is left of the jobs: a second copy of one would still be here."""
        ...

    def clear(self) -> None:
        """Delete those of the run's keys whose name does not begin with the run's."""
        ...


def side_of(plan: Plan, settings: Settings, ledger: Ledger) -> Side:
    """The side that *plan* names. Only its framework is imported."""
    if plan.framework == "rq":
        from throttlekit_cli.demo.rq_jobs import RqSide

        return RqSide(settings, ledger)
    if plan.framework == "celery":
        from throttlekit_cli.demo.celery_jobs import CelerySide

        return CelerySide(settings, ledger)
    from throttlekit_cli.demo.jobs import DramatiqSide

    return DramatiqSide(settings, ledger)
