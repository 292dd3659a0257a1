"""One run, from start to end."""

from __future__ import annotations

import time

import redis

from throttlekit import ThrottleError
from throttlekit_cli.demo.account import Account, account_of
from throttlekit_cli.demo.fleet import Fleet, Partner, start_fleet, start_partner
from throttlekit_cli.demo.flood import Flood, jobs_of
from throttlekit_cli.demo.frameworks import DemoFramework, framework_of
from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.processes import DemoError, Processes, Stopped, defer_signals, pause
from throttlekit_cli.demo.progress import Progress, Sample
from throttlekit_cli.demo.report import broken_promises, print_report
from throttlekit_cli.demo.screen import Screen, open_screen
from throttlekit_cli.demo.server import Server, find_server

__all__ = ["run"]

_SAMPLE_INTERVAL_S = 0.2
_SETTLE_TIMEOUT_S = 5.0


def run(plan: Plan) -> int:
    """
    Run *plan*, show it, and return the exit code. No process is left behind, however the run ends.

    Raises:
        DemoError: The run cannot start, or broke off.
    """
    screen = open_screen(plan)
    with defer_signals():
        try:
            with Processes() as processes:
                account, log = _run(plan, processes, screen)
        except Stopped as stopped:
            screen.say(f"Stopped by {stopped}. No process is left behind.")
            return 128 + stopped.number
        except BrokenPipeError:  # the reader of the output has gone: click ends quietly
            raise
        except (redis.RedisError, OSError, ThrottleError) as error:
            raise DemoError(f"the run broke off: {error!r}") from error
    print_report(plan, account, screen)
    if not broken_promises(plan, account):
        return 0
    if log:
        screen.say(f"The end of the workers' log:\n{log}")
    return 1


def _run(plan: Plan, processes: Processes, screen: Screen) -> tuple[Account, str]:
    server = find_server(processes, plan.url)
    partner = start_partner(processes, plan)
    settings = _settings(plan, server, partner)
    ledger = Ledger(server.report_url, settings.run)
    framework = framework_of(plan, settings, ledger)
    screen.begin(server.title)
    try:
        fleet = start_fleet(processes, plan, settings, framework)
        with screen, Flood(framework, jobs_of(plan)) as flood:
            _follow(plan, screen, _Observer(fleet, partner, ledger, flood, framework))
        account = account_of(plan, partner.record(), ledger.runs(), ledger.deferrals())
        processes.end(fleet.process)
        return account, fleet.log
    finally:
        if plan.url:
            _clear(processes, settings, ledger, framework)


class _Observer:
    """Observes a run from outside."""

    def __init__(self, fleet: Fleet, partner: Partner, ledger: Ledger, flood: Flood, framework: DemoFramework) -> None:
        self._fleet, self._partner, self._ledger, self._flood, self._framework = (
            fleet,
            partner,
            ledger,
            flood,
            framework,
        )
        self._start = time.monotonic()

    def look(self) -> Sample:
        self._flood.check()
        if not self._fleet.alive:
            raise DemoError(f"the workers ended:\n{self._fleet.log}")
        calls, refused = self._partner.counts()
        counts, sent = self._ledger.counts(), self._flood.sent
        return Sample(
            at=time.monotonic() - self._start, sent=sent, calls=calls, refused=refused,
            running=counts.running, done=counts.done, given_up=counts.given_up,
        )  # fmt: skip

    def settled(self) -> bool:
        return self._framework.settled()


def _follow(plan: Plan, screen: Screen, observer: _Observer) -> None:
    """Show the run until all jobs are over, or until it is cut off."""
    progress = Progress(plan)
    sample = observer.look()
    while sample.done + sample.given_up < plan.jobs and sample.at < plan.cut_off:
        pause(_SAMPLE_INTERVAL_S - sample.at % _SAMPLE_INTERVAL_S)
        sample = observer.look()
        screen.show(sample, progress.eta(sample), progress.second(sample))
    until = time.monotonic() + (_SETTLE_TIMEOUT_S if sample.at < plan.cut_off else 0)
    while (sample.running or not observer.settled()) and time.monotonic() < until:
        pause(0.05)
        sample = observer.look()
    screen.show_end(sample, progress.last_second(sample))


def _settings(plan: Plan, server: Server, partner: Partner) -> Settings:
    return Settings(
        run=Settings.new_run(), broker_url=server.broker_url, limiter_url=server.limiter_url,
        report_url=server.report_url, partner_port=partner.port, rate=plan.rate, burst=plan.burst,
        throttled=plan.throttled,
    )  # fmt: skip


def _clear(processes: Processes, settings: Settings, ledger: Ledger, framework: DemoFramework) -> None:
    """Delete every key of the run from the user's server. The workers are killed first: they would write more."""
    from throttlekit import Limiter
    from throttlekit_cli.demo.store import QuietStore

    processes.end_all()
    framework.clear()
    ledger.clear([settings.broker_url, settings.report_url])
    limiter = Limiter(QuietStore(settings.limiter_url))
    limiter.reset(settings.limit())
    limiter.close()
