"""`install`: what it refuses, what it reads, and its effects without a worker."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from support.servers.stores import Recording
from throttlekit import ConfigurationError, LeakyBucket, Limit, Limiter, TokenBucket
from throttlekit.adapter import WaitRules, Waker
from throttlekit_celery import install
from throttlekit_celery._options import TaskLimits

PARTNER = TokenBucket("partner", "100/s")


def nothing() -> None: ...


@pytest.fixture
def make_app(restore_signals: None) -> Iterator[Callable[..., Celery]]:
    """Return a function that makes apps. They are closed afterwards."""
    made: list[Celery] = []

    def make(**conf: Any) -> Celery:
        made.append(Celery(f"app{len(made)}", broker="memory://", set_as_current=False))
        made[-1].conf.update(conf)
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_wait": -1}, "max_wait must be a number of seconds"),
        ({"max_wait": "soon"}, "max_wait must be"),
        ({"max_deferrals": -1}, "max_deferrals must be a whole number"),
        ({"max_deferrals": 1.5}, "max_deferrals must be a whole number"),
        ({"on_waited_too_long": "retry"}, 'on_waited_too_long must be "fail", "drop" or "run"'),
        ({"max_hold": 0.1}, "max_hold must be at least 1 s"),
        ({"max_hold": float("inf")}, "max_hold must be"),
        ({"max_held": 0}, "max_held must be a whole number of at least 1"),
        ({"eager": "yes"}, 'eager must be "ignore" or "wait"'),
        ({"throttle": [PARTNER]}, "takes a mapping of task names"),
        ({"throttle": {"a": "100/s"}}, "task 'a': throttle= takes a limit"),
        ({"throttle": {1: PARTNER}}, "takes task names, not 1"),
    ],
)
def test_an_argument_that_can_never_work_is_refused(
    make_app: Callable[..., Celery], options: dict[str, Any], message: str
) -> None:
    """The error names the value. The app is unchanged, so that the call can be corrected."""
    app = make_app()
    with pytest.raises(ConfigurationError, match=message):
        install(app, Limiter(), **options)
    install(app, Limiter())


def test_arguments_other_than_an_app_and_a_limiter_are_refused(make_app: Callable[..., Celery]) -> None:
    """`install` refuses arguments in the wrong order, or a URL instead of a limiter."""
    with pytest.raises(ConfigurationError, match="install takes a limiter"):
        install(make_app(), "redis://:secret@host")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="install takes a Celery app"):
        install(Limiter(), Limiter())


def test_a_second_install_for_one_app_is_refused(make_app: Callable[..., Celery]) -> None:
    """A second `install` for an app raises, because it would charge each task twice. Another app can have its own."""
    app = make_app()
    install(app, Limiter())
    with pytest.raises(ConfigurationError, match="called before for this app"):
        install(app, Limiter())
    install(make_app(), Limiter())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"throttle": "100/s"}, "throttle= takes a limit or a list of limits"),
        ({"throttle": [PARTNER, PARTNER]}, "named twice"),
        ({"throttle": [PARTNER, TokenBucket("partner", "1/s")]}, "named twice"),
        ({"throttle": PARTNER, "throttle_max_wait": -1}, "throttle_max_wait must be a number of seconds"),
        ({"throttle": TokenBucket("each", "1/s", key="{account}")}, r"names an argument 'account'.*\(number\)"),
    ],
)
def test_a_task_option_is_checked_where_the_task_is_declared(
    make_app: Callable[..., Celery], options: dict[str, Any], message: str
) -> None:
    """Celery itself would check the task much later, in the worker."""
    app = make_app()
    install(app, Limiter())

    def job(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        app.task(**options)(job)


def test_declaring_tasks_is_otherwise_unchanged(make_app: Callable[..., Celery]) -> None:
    """Celery's own decorator declares tasks with and without arguments, bound tasks and named tasks."""
    app = make_app()
    install(app, Limiter())

    @app.task
    def plain(a: int) -> int:
        return a

    @app.task(bind=True, shared=False, name="other", throttle=[PARTNER])
    def bound(self: Any, a: int) -> tuple[str, int]:
        return self.name, a

    assert plain(1) == 1
    assert bound(2) == ("other", 2)
    assert bound.throttle == [PARTNER]


def test_existing_tasks_are_checked_by_install(make_app: Callable[..., Celery]) -> None:
    """`install` checks the tasks of an app that is finalized. The worker checks the tasks of one that is not."""
    app = make_app()
    app.task(name="early", shared=False, throttle="100/s")(nothing)
    app.finalize()
    with pytest.raises(ConfigurationError, match="task 'early'"):
        install(app, Limiter())


def test_one_name_with_two_definitions_is_refused_across_tasks(make_app: Callable[..., Celery]) -> None:
    """One name means one budget, in all tasks of an app."""
    app = make_app()
    install(app, Limiter())
    app.task(shared=False, throttle=PARTNER)(nothing)
    with pytest.raises(ConfigurationError, match="used for two limits"):
        app.task(shared=False, throttle=TokenBucket("partner", "1/s"))(nothing)


def test_limits_by_name_override_those_of_the_task(make_app: Callable[..., Celery]) -> None:
    """
    Limits by name override the task's own. None frees a task. Annotations and base classes count as the task's own.
    """
    one, two = TokenBucket("one", "1/s"), TokenBucket("two", "1/s")
    app = make_app(task_annotations={"annotated": {"throttle": two}})

    class Base(app.Task):  # type: ignore[misc, name-defined]
        throttle = two
        abstract = True

    for name, options in {
        "own": {"throttle": one},
        "named": {"throttle": one},
        "freed": {"throttle": one},
        "annotated": {},
        "based": {"base": Base},
        "plain": {},
    }.items():
        app.task(name=name, shared=False, **options)(nothing)
    limits = TaskLimits(Limiter(), {"named": [two], "freed": None}, WaitRules())
    found = {
        name: limits.of(app.tasks[name]).limits for name in ("own", "named", "freed", "annotated", "based", "plain")
    }
    assert found == {"own": (one,), "named": (two,), "freed": (), "annotated": (two,), "based": (two,), "plain": ()}


def test_a_task_that_would_bypass_admission_is_refused(make_app: Callable[..., Celery]) -> None:
    """A class with a Strategy of its own, such as those of celery-batches, may have no limits: they would not hold."""
    for throttle in (None, PARTNER):
        app = make_app()

        class Batches(app.Task):  # type: ignore[misc, name-defined]
            abstract = True

            def Strategy(self, task: Any, app: Any, consumer: Any) -> Any: ...  # noqa: N802

        app.task(name="batch", shared=False, base=Batches, throttle=throttle)(nothing)
        app.finalize()
        if throttle is None:
            install(app, Limiter())
        else:
            with pytest.raises(ConfigurationError, match="task 'batch': its class has its own Strategy"):
                install(app, Limiter())


def eager_task(app: Celery, limiter: Limiter, limit: Limit, eager: Any = "wait") -> Any:
    """Install *limiter* in *app*, and return a task that has *limit* and returns its argument."""
    install(app, limiter, eager=eager)
    return app.task(shared=False, throttle=limit)(same)


def same(number: int) -> int:
    return number


@pytest.mark.parametrize("eager", ["ignore", "wait"])
def test_eager_tasks_ignore_limits_or_wait_in_place(make_app: Callable[..., Celery], eager: Any) -> None:
    """With task_always_eager there is no worker. Limits are ignored, or the call of the task waits for them."""
    store, slow = Recording(), TokenBucket("slow", "20/s", burst=1)
    job = eager_task(make_app(task_always_eager=True), Limiter(store), slow, eager)
    began = time.monotonic()
    assert [job.delay(n).get() for n in range(4)] == [0, 1, 2, 3]
    assert store.grants == (4 if eager == "wait" else 0)
    if eager == "wait":
        assert time.monotonic() - began > 0.14, "the limit alone delays by 0.15 s"


def test_an_eager_task_is_woken_although_no_thread_could_start_at_first(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a limit on threads, for example, an eager task tries again to start the thread that wakes it."""
    begin, fails = Waker.begin, [True, True]

    def fail_at_first(waker: Waker[Any]) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("can't start new thread")
        begin(waker)

    monkeypatch.setattr(Waker, "begin", fail_at_first)
    slow = TokenBucket("slow", "20/s", burst=1)
    job = eager_task(make_app(task_always_eager=True), Limiter("memory://"), slow)
    assert [job.delay(n).get() for n in range(2)] == [0, 1]
    assert not fails


def test_an_eager_task_waits_if_the_queue_is_full(make_app: Callable[..., Celery]) -> None:
    """An eager task that finds a full queue requests again when it could be admitted, and not continuously."""
    store, no_queue = Recording(), LeakyBucket("no queue", "10/s", queue=0)
    job = eager_task(make_app(task_always_eager=True), Limiter(store), no_queue)
    assert [job.delay(n).get() for n in range(3)] == [0, 1, 2]
    assert len(store.asked) < 20


def test_imports_load_no_celery_and_no_worker() -> None:
    """`import throttlekit` loads no Celery, and `import throttlekit_celery` no worker."""
    code = (
        "import sys, throttlekit; assert 'celery' not in sys.modules and 'kombu' not in sys.modules;"
        "import throttlekit_celery; assert 'celery.worker' not in sys.modules and 'redis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
