"""The command `throttlekit wake`, which wakes the jobs of stock RQ workers."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from contextlib import closing

import click

from throttlekit_cli._common import CommandFailed, require, store_errors, url_option
from throttlekit_cli.formatting import printable

__all__ = ["wake"]

_MOST_NAMED = 8


@click.command(short_help="Wake the waiting jobs of stock RQ workers.")
@click.option("--rq", "rq_url", required=True, metavar="URL", help="The Redis of the queues, as in `rq worker --url`.")
@url_option()
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="A queue. Can be repeated.  [default: all queues]"
)
def wake(rq_url: str, url: str | None, queues: tuple[str, ...]) -> None:
    """
    Wake the waiting jobs of stock RQ workers.

    If a limit denies the job of a stock worker, RQ's scheduler enqueues the job again, but it checks only once a
    second. While this command runs, the job is enqueued exactly at its turn. The command also enqueues other scheduled
    jobs that are due, so no worker needs --with-scheduler. The worker classes of throttlekit, such as ThrottledWorker,
    do all this themselves.

    The command runs no jobs and imports none of your code. Start one for all queues; a second one waits until the first
    has ended.

    --url is the store of the workers' limits. The default is the Redis of the queues, as for the workers.

    \b
    Exit codes:
      0  stopped by Ctrl-C or SIGTERM
      2  not started: a wrong option, or a server does not answer

    \b
    Examples:
      throttlekit wake --rq redis://localhost:6379
      throttlekit wake --rq redis://localhost:6379 --url redis://localhost:6379/1 --queue work
    """
    require(["redis", "rq"], "rq")
    import redis

    from throttlekit import Limiter
    from throttlekit_rq._waker import WakerProcess

    try:
        connection = redis.Redis.from_url(rq_url, socket_timeout=5.0, socket_keepalive=True)
        connection.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        raise CommandFailed(f"RQ's Redis does not answer: {type(error).__name__}") from None
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with store_errors(), closing(Limiter(url or rq_url)) as limiter:
        waker = WakerProcess(connection, limiter, queues)
        waker.check_store()
        waker.run(stopped, _show)
    connection.close()


def _show(queues: Sequence[str]) -> None:
    named = ", ".join(printable(each) for each in queues[:_MOST_NAMED])
    more = f" and {len(queues) - _MOST_NAMED} more" if len(queues) > _MOST_NAMED else ""
    click.echo(f"throttlekit wake: {named or 'no queue yet'}{more}")
