"""One run from beginning to end."""

from __future__ import annotations

import time

import redis

from throttlekit import ThrottleError
from throttlekit_cli.demo.account import Account, account_of
from throttlekit_cli.demo.fleet import Fleet, Partner, start_fleet, start_partner
from throttlekit_cli.demo.flood import Flood, jobs_of
from throttlekit_cli.demo.ledger import Ledger
from throttlekit_cli.demo.plan import Plan, Settings
from throttlekit_cli.demo.processes import CannotRun, Processes, Stopped, pause, signals_noted
from throttlekit_cli.demo.report import broken_promises, print_report
from throttlekit_cli.demo.screen import Screen, open_screen
from throttlekit_cli.demo.server import Server, find_server
from throttlekit_cli.demo.sides import Side, side_of
from throttlekit_cli.demo.watch import Pace, Sample

__all__ = ["run"]

_LOOK_EVERY = 0.2
_SETTLE_WITHIN = 5.0


def run(plan: Plan) -> int:
    """
    Run *plan*, show it, and return the exit code. No process is left behind, whichever way it ends.

    Raises:
        CannotRun: Something that it needs is not there.
    """
    screen = open_screen(plan)
    with signals_noted():
        try:
            with Processes() as processes:
                account, log = _run(plan, processes, screen)
        except Stopped as stopped:
            screen.say(f"Stopped by {stopped}. No process is left behind.")
            return 128 + stopped.number
        except BrokenPipeError:  # nobody reads on: click ends quietly
            raise
        except (redis.RedisError, OSError, ThrottleError) as error:
            raise CannotRun(f"the run broke off: {error!r}") from error
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
    side = side_of(plan, settings, ledger)
    screen.begin(server.title)
    try:
        fleet = start_fleet(processes, plan, settings, side)
        with screen, Flood(side, jobs_of(plan)) as flood:
            _look_on(plan, screen, _Window(fleet, partner, ledger, flood, side))
        account = account_of(plan, partner.record(), ledger.runs(), ledger.deferrals())
        processes.end(fleet.process)
        return account, fleet.log
    finally:
        if plan.url:
            _clear(processes, settings, ledger, side)


class _Window:
    """All that can be seen of a run from outside."""

    def __init__(self, fleet: Fleet, partner: Partner, ledger: Ledger, flood: Flood, side: Side) -> None:
        self._fleet, self._partner, self._ledger, self._flood, self._side = fleet, partner, ledger, flood, side
        self._start = time.monotonic()

    def look(self) -> Sample:
        self._flood.check()
        if not self._fleet.alive:
            raise CannotRun(f"the workers ended:\n{self._fleet.log}")
        calls, refused = self._partner.counts()
        counts, sent = self._ledger.counts(), self._flood.sent
        return Sample(
            at=time.monotonic() - self._start, sent=sent, calls=calls, refused=refused,
            running=counts.running, done=counts.done, given_up=counts.given_up,
        )  # fmt: skip

    def settled(self) -> bool:
        return self._side.settled()


def _look_on(plan: Plan, screen: Screen, window: _Window) -> None:
    pace = Pace(plan)
    sample = window.look()
    while sample.done + sample.given_up < plan.jobs and sample.at < plan.cut_off:
        pause(_LOOK_EVERY - sample.at % _LOOK_EVERY)
        sample = window.look()
        screen.show(sample, pace.eta(sample), pace.second(sample))
    until = time.monotonic() + (_SETTLE_WITHIN if sample.at < plan.cut_off else 0)
    while (sample.running or not window.settled()) and time.monotonic() < until:
        pause(0.05)
        sample = window.look()
    screen.show_end(sample, pace.rest(sample))


def _settings(plan: Plan, server: Server, partner: Partner) -> Settings:
    return Settings(
        run=Settings.new_run(), broker_url=server.broker_url, limiter_url=server.limiter_url,
        report_url=server.report_url, partner_port=partner.port, rate=plan.rate, burst=plan.burst,
        throttled=plan.throttled,
    )  # fmt: skip


def _clear(processes: Processes, settings: Settings, ledger: Ledger, side: Side) -> None:
    """Take every key of the run off a server that is not ours. The workers first: they would write anew."""
    from throttlekit import Limiter
    from throttlekit_cli.demo.store import QuietStore

    processes.end_all()
    side.clear()
    ledger.clear([settings.broker_url, settings.report_url])
    limiter = Limiter(QuietStore(settings.limiter_url))
    limiter.reset(settings.limit())
    limiter.close()
