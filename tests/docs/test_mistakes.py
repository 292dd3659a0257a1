"""The common mistakes of docs/mistakes.md: each is caught as the page describes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import dramatiq
import pytest
import redis
from celery import Celery
from click.testing import CliRunner
from dramatiq.brokers.stub import StubBroker
from huey import RedisHuey
from rq import Queue, SimpleWorker
from taskiq import InMemoryBroker

import throttlekit_celery
import throttlekit_huey
import throttlekit_rq
import throttlekit_taskiq
from support.doctor import run_doctor
from support.markdown import ROOT
from support.servers.processes import free_port, patient, redis_server
from support.waiting import wait_until
from throttlekit import ConfigurationError, CostExceedsLimit, Job, Limiter, TokenBucket
from throttlekit_cli._commands import cli
from throttlekit_dramatiq import Throttle
from throttlekit_rq import ThrottledQueue

PARTNER = TokenBucket("partner", "10/s", burst=5)


@dataclass
class Site:
    """The environment of a mistake: a folder, a Redis with a connection to it, and the log."""

    folder: Path
    url: str
    connection: redis.Redis
    log: pytest.LogCaptureFixture
    environment: pytest.MonkeyPatch

    @property
    def process_options(self) -> dict[str, Any]:
        """The options of a command that runs in the folder, and can import from it."""
        path = os.pathsep.join([str(self.folder), *(each for each in sys.path if each)])
        return {"cwd": self.folder, "env": {**os.environ, "PYTHONPATH": path, "COLUMNS": "1000"}}

    def doctor(self, *options: str, app: str = "", finds: bool = True) -> str:
        """Return what `throttlekit doctor` prints about an application. *finds*: whether it must find something."""
        (self.folder / "shop.py").write_text(app)
        done = run_doctor(*(["--strict"] if finds else []), *options, folder=self.folder)
        assert done.exit_code == finds, done.output
        return done.stdout


def celery_app(limiter: str, declared: str) -> str:
    return (
        "from celery import Celery\nfrom throttlekit import Limiter, TokenBucket\nimport throttlekit_celery\n"
        "app = Celery('shop', broker='redis://localhost:1/0')\n"
        "app.conf.broker_transport_options = {'visibility_timeout': 600}\n"
        f"partner = TokenBucket('partner', '10/s')\n{limiter}\n@app.task({declared})\ndef call(): ...\n"
    )


INSTALLED = "throttlekit_celery.install(app, Limiter({url!r}))"
CASES: dict[str, Callable[[Site], object]] = {}


def case(mistake: str) -> Callable[[Callable[[Site], object]], Callable[[Site], object]]:
    """Register the check of the row of the page that begins with *mistake*."""
    return lambda check: CASES.setdefault(mistake, check)


def assert_refused(text: str, what: Callable[[], object], error: type[Exception] = ConfigurationError) -> None:
    with pytest.raises(error, match=re.escape(text)):
        what()


@case("Dramatiq: `throttle=` without the middleware")
def _(site: Site) -> None:
    broker = StubBroker()
    assert_refused("options are undefined: throttle", lambda: _actor(broker), ValueError)


def _actor(broker: Any, **options: Any) -> Any:
    return dramatiq.actor(lambda: None, actor_name="call", broker=broker, throttle=options.pop("throttle", PARTNER))


@case("Celery: `throttle=` without `install`")
def _(site: Site) -> None:
    assert "not installed in this app; 1 of its tasks name limits" in site.doctor(
        "--celery", "shop", app=celery_app("", "throttle=partner")
    )

    app = celery_app("", "throttle=partner").replace("redis://localhost:1/0", site.url)
    _assert_worker_warns(
        site, app, "celery -A shop worker --pool solo", "call throttlekit_celery.install(app, limiter)"
    )


@case("huey: `throttle=` without `install`")
def _(site: Site) -> None:
    app = _UNLIMITED.format(declared=f"from huey import RedisHuey\nqueue = RedisHuey(url={site.url!r})\n@queue.task")
    _assert_worker_warns(site, app, "huey.bin.huey_consumer shop.queue", "call throttlekit_huey.install(huey, limiter)")
    assert "not installed in this huey; 1 of its tasks name limits" in site.doctor("--huey", "shop.queue", app=app)


@case("taskiq: `throttle=` without the middleware")
def _(site: Site) -> None:
    declared = f"from taskiq_redis import ListQueueBroker\nbroker = ListQueueBroker({site.url!r})\n@broker.task"
    app = _UNLIMITED.format(declared=declared)
    _assert_worker_warns(
        site, app, "taskiq worker shop:broker --workers 1", "call broker.add_middlewares(throttlekit_taskiq.Throttle("
    )
    assert "has 0 Throttle middlewares" in site.doctor("--taskiq", "shop:broker", app=app)


_UNLIMITED = """
from throttlekit import TokenBucket
partner = TokenBucket("partner", "10/s")
{declared}(throttle=[partner])
def call(): ...
"""


def _assert_worker_warns(site: Site, app: str, worker: str, remedy: str) -> None:
    """Assert that a worker of *app* logs one warning, which contains *remedy*."""
    (site.folder / "shop.py").write_text(app)
    log, command = site.folder / "log", [sys.executable, "-m", *worker.split()]
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, **site.process_options) as process,
    ):
        try:
            wait_until(lambda: remedy in log.read_text(), description="the worker warns", timeout=60)
        finally:
            process.terminate()
    assert log.read_text().count("Limits are not kept in this worker") == 1, log.read_text()


@case("Celery: `@throttled(partner)` without `install`")
def _(site: Site) -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.task_always_eager = True
    task = app.task(shared=False)(throttlekit_celery.throttled(PARTNER)(_ran))
    assert task() == "ran", "called directly, it is a function"
    result = task.delay()
    assert isinstance(result.result, ConfigurationError)
    assert "call install(app, limiter)" in str(result.result)
    throttlekit_celery.install(app, Limiter("memory://"))
    assert task.delay().get() == "ran"


def _ran() -> str:
    return "ran"


@case("Celery: `throtle=`")
def _(site: Site) -> None:
    app = Celery("shop", set_as_current=False)
    throttlekit_celery.install(app, Limiter("memory://"))
    assert_refused("did you mean 'throttle'?", lambda: app.task(throtle=PARTNER, shared=False))
    assert "'throtle', which Celery ignores" in site.doctor("--celery", "shop", app=celery_app("", "throtle=partner"))


@case("Celery: `.map`, `.starmap` or `.chunks` of a task with limits")
def _(site: Site) -> None:
    app = Celery("shop", set_as_current=False)
    throttlekit_celery.install(app, Limiter("memory://"))
    limited = app.task(throttle=PARTNER, name="limited", shared=False)(_ran)
    for call in (lambda: limited.map([1]), lambda: limited.starmap([(1,)]), lambda: limited.chunks([(1,)], 1)):
        assert_refused("send a group of 'limited', or declare a task that takes the list, with a cost", call)


@case("RQ, taskiq, huey: `throtle=`")
def _(site: Site) -> None:
    limiter, huey, broker = Limiter("memory://"), RedisHuey(url=site.url), InMemoryBroker()
    throttlekit_huey.install(huey, limiter)
    broker.add_middlewares(throttlekit_taskiq.Throttle(limiter))
    queue = throttlekit_rq.ThrottledQueue(connection=site.connection)
    for wrong in (
        lambda: throttlekit_rq.ThrottledQueue(connection=site.connection, throtle=PARTNER),
        lambda: queue.enqueue(_ran, throtle=PARTNER),
        lambda: huey.task(throtle=PARTNER)(_ran),
        lambda: huey.task()(_ran)(throtle=PARTNER),
        lambda: broker.task(throtle=PARTNER)(_ran),
    ):
        assert_refused("did you mean 'throttle'?", wrong)


@case("django-rq: `ThrottledQueue` as the `QUEUE_CLASS`")
def _(site: Site) -> None:
    assert_refused(
        "class ThrottledDjangoQueue(DjangoRQ, ThrottledQueue)",
        lambda: throttlekit_rq.ThrottledQueue(connection=site.connection, autocommit=None, commit_mode=None),
    )


@case("RQ: `throttle=` on a plain `rq.Queue`")
def _(site: Site) -> None:
    job = Queue(connection=site.connection).enqueue(len, "abc", throttle=[PARTNER.name])
    SimpleWorker(["default"], connection=site.connection).work(burst=True)
    result = job.latest_result()
    assert result is not None
    assert "TypeError" in str(result.exc_string)


@case("`@throttled` without limits")
def _(site: Site) -> None:
    for throttled in (throttlekit_rq.throttled, throttlekit_celery.throttled):
        assert_refused("write @throttled(partner)", lambda throttled=throttled: throttled(_ran))  # type: ignore[misc]


@case('a rate like `"100/min."`, `"1.5/s"` or `"0/s"`')
def _(site: Site) -> None:
    for rate in ("100/min.", "1.5/s"):
        assert_refused("is not a rate. Write it as", lambda rate=rate: TokenBucket("p", rate))  # type: ignore[misc]
    assert_refused("at least 1", lambda: TokenBucket("p", "0/s"))


@case("the name and the rate swapped")
def _(site: Site) -> None:
    assert_refused("limit '5/s': 'partner' is not a rate", lambda: TokenBucket("5/s", "partner"))


@case('`"100/minute"` without `burst=`, and 100 are expected at once')
def _(site: Site) -> None:
    limiter = Limiter("memory://")
    limit = TokenBucket("p", "100/minute")
    assert [bool(limiter.acquire(limit)) for _ in range(2)] == [True, False]
    assert limiter.peek(limit).retry_after == pytest.approx(0.6, abs=0.1)


@case("a typo in a key's template")
def _(site: Site) -> None:
    keyed = TokenBucket("account", "1/s", key="{acount_id}")
    broker = StubBroker()
    broker.add_middleware(Throttle(Limiter("memory://")))
    assert_refused(
        "acount_id",
        lambda: dramatiq.actor(lambda account_id: None, actor_name="c", broker=broker, throttle=keyed),
        Exception,
    )


@case("a cost above the burst")
def _(site: Site) -> None:
    assert_refused("can never admit a cost of 6", lambda: TokenBucket("p", "10/s", burst=5, cost=6), CostExceedsLimit)
    computed = TokenBucket("p", "10/s", burst=5, cost=lambda job: 6)
    assert_refused("can never admit", lambda: Limiter("memory://").acquire(computed, job=Job()), CostExceedsLimit)


@case("a misspelt argument: `brust=3`")
def _(site: Site) -> None:
    assert_refused(
        "TokenBucket() got an unexpected keyword argument 'brust': did you mean 'burst'?",
        lambda: TokenBucket("partner", "5/s", brust=3),  # type: ignore[arg-type]
        TypeError,
    )


@case("an adapter without its framework")
def _(site: Site) -> None:
    done = subprocess.run([sys.executable, "-c", _ADAPTERS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{name} is not installed: pip install 'throttlekit-jobs[{name}]'" for name in _FRAMEWORKS
    ]


_FRAMEWORKS = ["celery", "django", "dramatiq", "fastapi", "flask", "httpx", "huey", "requests", "rq", "taskiq"]
_ADAPTERS = f"""
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {_FRAMEWORKS}:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Absent())
for name in {_FRAMEWORKS}:
    try:
        importlib.import_module("throttlekit_" + name)
    except ModuleNotFoundError as error:
        print(error)
"""


@case("a limit, `install` or the middleware twice")
def _(site: Site) -> None:
    limiter, app = Limiter("memory://"), Celery("shop", set_as_current=False)
    throttlekit_celery.install(app, limiter)
    assert_refused("each task would be charged twice", lambda: throttlekit_celery.install(app, limiter))
    assert_refused("twice", lambda: app.task(throttle=[PARTNER, PARTNER], shared=False))


@case("`Limiter(redis_client)`")
def _(site: Site) -> None:
    assert_refused("write Limiter(client=…)", lambda: Limiter(site.connection))  # type: ignore[arg-type]


@case('`Limiter("localhost:6379")`')
def _(site: Site) -> None:
    assert_refused("did you mean 'redis://localhost:6379'?", lambda: Limiter("localhost:6379"))


@case("`limiter.acquire` in a coroutine")
def _(site: Site) -> None:
    async def main(limiter: Limiter) -> None:
        with pytest.warns(RuntimeWarning, match=r"Write `await limiter\.acquire\(…\)` with an AsyncLimiter"):
            limiter.acquire(PARTNER)
        assert_refused("this would stop the event loop", lambda: limiter.wait(PARTNER))

    with contextlib.closing(Limiter(patient(site.url))) as limiter:
        asyncio.run(main(limiter))


@case("`Limiter()` in a worker, without a store")
def _(site: Site) -> None:
    site.environment.setenv("THROTTLEKIT_URL", site.url)
    with Limiter() as limiter:
        assert not limiter.in_memory
    site.environment.delenv("THROTTLEKIT_URL")
    broker = StubBroker()
    broker.add_middleware(Throttle(Limiter()))
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    worker.stop()
    assert sum("limits are kept in memory" in message for message in site.log.messages) == 1
    app = celery_app(INSTALLED.format(url="memory://"), "throttle=partner")
    assert "keeps limits in memory" in site.doctor("--celery", "shop", app=app)


@case("workers and the command line use different stores")
def _(site: Site) -> None:
    with redis_server() as other:
        app = celery_app(INSTALLED.format(url=f"{other}/1"), "throttle=partner")
        found = site.doctor("--url", site.url, "--celery", "shop", app=app)
        assert f"counts in another store ({other.removeprefix('redis://')}/1) than --url" in found
        same = f"{other}/1".replace("127.0.0.1", "localhost")
        assert "counts in another store (" not in site.doctor("--url", same, "--celery", "shop", app=app, finds=False)


@case("the limiter counts in the broker's database")
def _(site: Site) -> None:
    app = celery_app(INSTALLED.format(url="redis://127.0.0.1:1/0"), "throttle=partner")
    assert "counts in the broker's database" in site.doctor("--celery", "shop", app=app)


@case("RQ: workers without `configure`")
def _(site: Site) -> None:
    with redis_server() as rq:
        with contextlib.closing(redis.Redis.from_url(f"{rq}/0")) as connection:
            ThrottledQueue("work", connection=connection).enqueue(_ran, throttle=[PARTNER])
            throttlekit_rq.ThrottledSimpleWorker(["work"], connection=connection).work(burst=True)
            throttlekit_rq._settings.limiter_for(connection).close()
        assert sum("Limits are counted in RQ's own Redis" in message for message in site.log.messages) == 1
        assert "Workers have counted in RQ's database" in site.doctor("--url", site.url, "--rq", f"{rq}/0")


@case("RQ: stock workers import throttlekit for each job")
def _(site: Site) -> None:
    queue = ThrottledQueue("work", connection=site.connection)
    job = queue.enqueue(print, "ran", throttle=[PARTNER])
    command = [sys.executable, "-m", "rq.cli", "worker", "work", "--burst", "--url", site.url]
    environment = {**os.environ, "THROTTLEKIT_URL": site.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    assert job.is_finished, done.stderr
    assert done.stdout.count("import throttlekit for each job") == 1
    assert "imports throttlekit again in the process of each job" in site.doctor("--rq", site.url, finds=False)


@case("RQ: no process moves denied jobs back to their queue")
def _(site: Site) -> None:
    Queue("reports", connection=site.connection).enqueue_in(timedelta(days=1), len, "x")
    assert "No process moves delayed jobs back" in site.doctor("--rq", site.url)


@case("an eviction policy other than `noeviction`")
def _(site: Site) -> None:
    with redis_server("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as base:
        assert "evicts keys (allkeys-lru)" in site.doctor("--url", f"{base}/0")


@case("two definitions of one name")
def _(site: Site) -> None:
    for rate in ("10/s", "20/s"):
        with contextlib.closing(Limiter(patient(site.url))) as limiter:
            limiter.acquire(TokenBucket("partner", rate))
    assert "'partner' is in use with several definitions" in site.doctor("--url", site.url)
    shown = CliRunner().invoke(cli, ["top", "--once", "--json", "--url", site.url]).stdout
    assert shown.count("another definition of this name is in use") == 2


@case("workers use another rate than the code")
def _(site: Site) -> None:
    with contextlib.closing(Limiter(patient(site.url))) as limiter:
        limiter.acquire(TokenBucket("partner", "10/s"))
    app = "from throttlekit import TokenBucket\nLIMIT = TokenBucket('partner', '7/s')\n"
    found = site.doctor("--url", site.url, "--app", "shop", app=app)
    assert "the code declares token-bucket 7/s burst 7, and workers use token-bucket 10/s burst 10" in found


@case("another package named `throttlekit` is installed")
def _(site: Site) -> None:
    site.environment.setattr("importlib.metadata.packages_distributions", lambda: {"throttlekit": ["throttlekit"]})
    outcome = CliRunner().invoke(cli, ["doctor", "--url", site.url])
    assert "The distribution 'throttlekit' installs a package named" in " ".join(outcome.output.split())


@case("the store is down")
def _(site: Site) -> None:
    port = free_port()
    with contextlib.closing(Limiter(f"redis://:sesame@127.0.0.1:{port}/3")) as limiter:
        denied = [limiter.acquire(PARTNER, job=Job()) for _ in range(3)]
    assert {decision.reason for decision in denied} == {"store unavailable"}
    (warning,) = [message for message in site.log.messages if "no usable answer" in message]
    assert f"(server 127.0.0.1:{port}/3)" in warning
    assert "sesame" not in warning


@case("`throttlekit pause partnr`")
def _(site: Site) -> None:
    _refused(site, "Did you mean partner?", "pause", "partnr")


@case("`throttlekit set tokens 50`, for a rate")
def _(site: Site) -> None:
    _refused(site, "50 is not a rate", "set", "partner", "50")


def _refused(site: Site, text: str, *words: str) -> None:
    with contextlib.closing(Limiter(patient(site.url))) as limiter:
        limiter.acquire(PARTNER)
    outcome = CliRunner().invoke(cli, [*words, "--url", site.url])
    assert outcome.exit_code == 2
    assert text in outcome.stderr
    assert CliRunner().invoke(cli, ["rules", "--url", site.url]).exit_code == 1


def test_each_row_of_the_page_is_a_test() -> None:
    """The mistakes of the page are those that are tested here, in the same order."""
    rows = re.findall(r"^\| (.+?) \|", (ROOT / "docs" / "mistakes.md").read_text("utf-8"), re.MULTILINE)
    assert [row for row in rows if row != "mistake"] == list(CASES)


@pytest.mark.parametrize("mistake", CASES)
def test_a_mistake_is_caught(
    mistake: str, tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake is caught as the page describes."""
    monkeypatch.delenv("THROTTLEKIT_URL", raising=False)
    with caplog.at_level(logging.INFO, "throttlekit"), redis.Redis.from_url(redis_url) as connection:
        CASES[mistake](Site(tmp_path, redis_url, connection, caplog, monkeypatch))
