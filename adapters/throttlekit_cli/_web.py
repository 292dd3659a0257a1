"""The command `throttlekit web`: a page that shows the limits of the fleet."""

from __future__ import annotations

import ipaddress
import secrets

import click

from throttlekit_cli._common import require, show_keys_option, store_errors, title_option, url_option

__all__ = ["web"]


@click.command(short_help="Serve a web page of the fleet's limits.")
@url_option(required=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on. If other machines can reach it, the page needs a token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8321,
    show_default=True,
    metavar="PORT",
    help="The port to listen on. 0: a free one.",
)
@click.option("--allow-control", is_flag=True, help="Let the page pause limits, change rates, and so on.")
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="THROTTLEKIT_WEB_TOKEN",
    show_envvar=True,
    help="The secret that a browser must send. Set it in the environment: other users see command-line options.  "
    "[default: none; with --allow-control or another --host, a random one]",
)
@click.option(
    "--host-name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name at which browsers reach the page, besides localhost and IP addresses. Can be repeated.",
)
@show_keys_option
@title_option
def web(
    url: str,
    host: str,
    port: int,
    allow_control: bool,
    token: str | None,
    names: tuple[str, ...],
    show_keys: bool,
    title: str,
) -> None:
    """
    Serve a web page that shows all limits of the fleet: their use, waiting jobs and denials in the last minutes, each
    key of a limit, why a job waits, the rules in force, and who changed what.

    Like `throttlekit top`, it needs only the store, and none of your code. It reads the store once a second while a
    browser shows the page, and otherwise every 10 seconds.

    Without --allow-control, the page cannot change anything. With it, an operator can pause a limit, change its rate,
    put it into shadow mode, reset it, and end these changes. The page shows the effect of each change before it is
    made, and the history names who made it.

    By default it listens on this machine only. From another machine, use a tunnel: ssh -L 8321:127.0.0.1:8321 HOST.
    With --allow-control or another --host, a browser must send a token. The address that the command prints contains
    it. The server has no TLS.

    \b
    Exit codes:
      0  stopped by Ctrl-C
      2  not started: a wrong option, the port is taken, or the store does not answer

    \b
    Examples:
      throttlekit web --url redis://localhost:6379/1
      throttlekit web --url redis://localhost:6379/1 --allow-control --title production
      throttlekit web --url redis://localhost:6379/1 --host 0.0.0.0 --host-name ops.example.com
    """
    require(["redis"])
    require(["waitress"], "web")
    from throttlekit_web import Site
    from throttlekit_web._serve import serve

    if token is None and (allow_control or not _is_this_machine(host)):
        token = secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host

    def started(port: int) -> None:
        fragment = "" if token is None else f"#token={token}"
        click.echo(f"throttlekit web: http://{shown}:{port}/{fragment}")

    with store_errors():
        site = Site(
            url, token=token, allow_control=allow_control, show_keys=show_keys, title=title, hosts=[*names, host]
        )
        serve(site, host, port, started)


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
