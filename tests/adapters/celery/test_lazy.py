"""An app with `install` is as lazy as any other. Until a worker runs, only the limits of tasks have an effect."""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import celery
import celery.signals
import pytest
from celery import Celery, _state
from celery.local import PromiseProxy

from throttlekit import ConfigurationError, Limiter, TokenBucket
from throttlekit_celery import install
from throttlekit_celery._installation import installation_of

pytestmark = pytest.mark.usefixtures("restore_signals")

PARTNER = TokenBucket("partner", "100/s")
Install = Callable[[Celery], None]


def job() -> None: ...


def other() -> None: ...


class Settings:
    task_acks_late = True
    task_serializer = "pickle"
    task_annotations = {"job": {"priority": 7}}  # noqa: RUF012


def _app(**options: Any) -> Celery:
    return Celery("lazy", broker="memory://", set_as_current=False, **options)


def _declared(app: Celery, function: Callable[..., Any] = job, **options: Any) -> Any:
    return app.task(name=function.__name__, shared=False, **options)(function)


def finalized(install: Install) -> Any:
    app = _app()
    install(app)
    _declared(app)
    return app.finalized, app.configured


def kind_of_task(install: Install) -> Any:
    app = _app()
    install(app)
    found = [type(app.task(shared=False)(job)), type(app.task(other, shared=False)), app.finalized]
    app.finalize()
    return [*found, type(app.task(name="late", shared=False)(job)).__mro__[1].__name__]


def after_configure(install: Install) -> Any:
    app, calls = _app(), []
    install(app)

    @app.on_after_configure.connect(weak=False)
    def periodic(sender: Any, **_: Any) -> None:
        calls.append("configure")
        sender.add_periodic_task(10.0, task.s(), name="every 10")

    task = _declared(app)
    app.conf.broker_url  # noqa: B018
    return calls, list(app.conf.beat_schedule)


def after_finalize(install: Install) -> Any:
    app, calls = _app(), []
    install(app)
    app.on_after_finalize.connect(lambda **_: calls.append("finalize"), weak=False)
    app.finalize()
    return calls


def setting_after_tasks(install: Install) -> Any:
    app = _app()
    before = _declared(app)
    install(app)
    after = _declared(app, other)
    app.conf.update(
        task_acks_late=True, task_ignore_result=True, task_track_started=True, task_default_rate_limit="1/m"
    )
    names = ("acks_late", "ignore_result", "track_started", "rate_limit")
    return [getattr(task, name) for task in (before, after) for name in names]


def one_setting_after_tasks(install: Install) -> Any:
    app = _app()
    before = _declared(app)
    install(app)
    after = _declared(app, other)
    app.conf.task_acks_late = True
    return before.acks_late, after.acks_late


def object_after_tasks(install: Install) -> Any:
    app = _app()
    before = _declared(app)
    install(app)
    app.config_from_object(Settings)
    return before.acks_late, before.serializer, before.priority, app.tasks["celery.chord_unlock"].acks_late


def defaults_after_install(install: Install) -> Any:
    app, calls = _app(), []
    install(app)

    def defaults() -> dict[str, Any]:
        calls.append(1)
        return {"task_acks_late": True}

    app.add_defaults(defaults)
    task = _declared(app)
    return list(calls), task.acks_late


def explicit_finalize(install: Install) -> Any:
    app = _app(autofinalize=False)
    install(app)
    task = _declared(app)
    errors: list[Any] = []
    try:
        _ = task.name
    except RuntimeError as error:
        errors.append(str(error))
    app.finalize()
    return errors, task.name, app.finalized


def missing_module(install: Install) -> Any:
    app = _app()
    app.config_from_object("no_such_module_of_settings")
    install(app)
    _declared(app)
    try:
        return app.conf.task_acks_late
    except ImportError as error:
        return type(error).__name__


def imported_modules(install: Install) -> Any:
    app = _app(include=["no_such_module_of_tasks"])
    app.config_from_object("colorsys")
    sys.modules.pop("colorsys", None)
    install(app)
    _declared(app)
    return "colorsys" in sys.modules


class _Evaluated:
    """Settings such as `django.conf.settings`, which are evaluated when an attribute is read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.read.append(name)
        raise AttributeError(name)


def lazy_settings(install: Install) -> Any:
    settings = _Evaluated()
    app = _app()
    app.config_from_object(settings)
    before = len(settings.read)
    install(app)
    _declared(app)
    app.autodiscover_tasks(["no_such_package"])
    return len(settings.read) - before


def autodiscovery(install: Install) -> Any:
    app, calls = _app(), []
    app.autodiscover_tasks(lambda: calls.append(1) or [])
    install(app)
    _declared(app)
    return calls


def pending(install: Install) -> Any:
    app = _app()
    _declared(app)
    install(app)
    _declared(app, other)
    return len(app._pending), len(app._tasks)


def sends_by_name(install: Install) -> Any:
    app = _app()
    install(app)
    app.send_task("elsewhere")
    return app.finalized


def subclass_of_task(install: Install) -> Any:
    app = _app(task_cls="celery.app.task:Task")
    install(app)
    return app.finalized, "Task" in vars(app)


def amqp_and_backend(install: Install) -> Any:
    app = _app()
    install(app)
    _declared(app)
    return [name for name in ("amqp", "backend", "control", "events", "loader", "tasks") if name in vars(app)]


OBSERVED: list[tuple[Callable[[Install], Any], Any]] = [
    (finalized, (False, False)),
    (kind_of_task, [PromiseProxy, PromiseProxy, False, "Task"]),
    (after_configure, (["configure"], ["every 10"])),
    (after_finalize, ["finalize"]),
    (setting_after_tasks, [True, True, True, "1/m"] * 2),
    (one_setting_after_tasks, (True, True)),
    (object_after_tasks, (True, "pickle", 7, True)),
    (defaults_after_install, ([], True)),
    (explicit_finalize, (["Contract breach: app not finalized"], "job", True)),
    (missing_module, "ModuleNotFoundError"),
    (imported_modules, False),
    (lazy_settings, 0),
    (autodiscovery, []),
    (pending, (2, 0)),
    (sends_by_name, False),
    (subclass_of_task, (False, False)),
    (amqp_and_backend, []),
]


@pytest.mark.parametrize("observe", [each for each, _ in OBSERVED], ids=lambda each: each.__name__)
def test_install_does_not_change_the_behaviour_of_an_app(observe: Callable[[Install], Any]) -> None:
    """Until a worker runs, an app behaves the same with and without install."""
    without = observe(lambda app: None)
    assert without == dict(OBSERVED)[observe], "what Celery itself does"
    assert observe(lambda app: install(app, Limiter("memory://"))) == without


@pytest.mark.skipif(not hasattr(celery.exceptions, "DuplicateTaskNameWarning"), reason="Celery 5.7 warns")
@pytest.mark.parametrize("with_install", [False, True])
@pytest.mark.parametrize("declare", ["bare", "options", "eager", "lazy"])
def test_a_warning_about_a_task_names_the_line_of_the_user(with_install: bool, declare: str) -> None:
    """Celery reports the line of the first frame outside Celery, so no frame of throttlekit may be in between."""
    app = _app()
    if with_install:
        install(app, Limiter())
    if declare != "lazy":
        app.finalize()
    app.task(name="one", shared=False)(job)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if declare == "bare":
            app.gen_task_name = lambda name, module: "one"
            app.task(other)
        elif declare == "options":
            app.task(name="one", shared=False, throttle=PARTNER)(other)
        elif declare == "eager":
            app.task(name="one", shared=False, lazy=False)(other)
        else:
            app.task(name="one", shared=False)(other)
            app.finalize()
    assert [(each.category.__name__, each.filename) for each in caught] == [("DuplicateTaskNameWarning", __file__)]


def test_an_installed_app_is_garbage_collected() -> None:
    """Neither a signal nor an exit handler keeps a reference to the app, or to what is installed in it."""
    found: list[weakref.ref[Any]] = []
    for with_install in (False, True):
        app = _app()
        if with_install:
            install(app, Limiter(), eager="wait")
            found.append(weakref.ref(installation_of(app)))
        app.task(name="one", shared=False)(job)
        app.finalize()
        found.append(weakref.ref(app))
        app.close()
        del app
    gc.collect()
    assert [each() for each in found] == [None, None, None]


def test_every_install_costs_the_same() -> None:
    """300 installed apps have as many receivers, finalizers and exit handlers as one."""

    def receivers() -> list[int]:
        signals = [getattr(celery.signals, name) for name in ("task_received", "task_prerun", "task_postrun")]
        signals.append(celery.signals.worker_shutdown)
        return [*(len(each.receivers) for each in signals), len(_state._on_app_finalizers), atexit._ncallbacks()]

    apps = [_app()]
    install(apps[0], Limiter(), eager="wait")
    before = receivers()
    for _ in range(299):
        apps.append(_app())
        install(apps[-1], Limiter(), eager="wait")
    assert receivers() == before


def test_wrong_limits_of_a_lazy_task_are_reported_by_the_worker() -> None:
    """Install does not evaluate the task. A worker does so as it starts, and names the task."""
    app = _app()
    app.task(name="early", shared=False, throttle="100/s")(job)
    install(app, Limiter())
    assert not app.finalized
    (step,) = [each for each in app.steps["consumer"] if each.__name__ == "ThrottlekitHeld"]
    with pytest.raises(ConfigurationError, match="task 'early': throttle= takes a limit"):
        step(SimpleNamespace(app=app))
