"""Limits as values: defaults, keys, costs, and what is refused at the declaration."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from support.ids import stable_repr
from throttlekit import (
    Concurrency,
    ConfigurationError,
    CostExceedsLimit,
    FixedWindow,
    Job,
    LeakyBucket,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from throttlekit._core.algorithm import Use
from throttlekit._core.limit.change import change_rate, scale_rate
from throttlekit._core.limit.template import key_text
from throttlekit._core.serialize import dump, load

ALGORITHMS: tuple[type[Limit], ...] = (TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog)
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def make(algorithm: type[Limit], name: Any = "partner", rate: Any = "10/s", **options: Any) -> Limit:
    """Return a limit of any algorithm, also with options that a type checker would reject."""
    made: Callable[..., Limit] = algorithm
    return made(name, rate, **options)


def call_partner(account_id: int, region: str = "eu", *rest: int, **more: str) -> None: ...


def plain(account_id: int) -> None: ...


JOB = Job(id="1", name="call_partner", args=(42,), kwargs={"region": "us"}, function=call_partner)
TIERS = {"free": "1/m", "pro": "2/m"}


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        ("100/s", 100),
        ("10/s", 10),
        ("1/s", 1),
        ("100/minute", 1),
        ("120/minute", 2),
        ("1/day", 1),
        ("300000/s", 300_000),
    ],
)
def test_default_burst_is_a_second_worth(rate: str, burst: int) -> None:
    """Without `burst`, a limit has one second's worth of its rate, and at least 1."""
    assert TokenBucket("partner", rate).burst == burst


RATE_IS = 'Write it as "100/minute", "10/s", "5/10s", or (5, timedelta(seconds=10)).'
KEY_IS = 'write one in braces, like "{account_id}", or leave it out to count everything together'
UNNAMED = 'must name its arguments, like "{account_id}"'
SCOPE_IS = 'the scope must be "global", "queue", "job" or "process"'
TIERS_ARE = 'tier= needs a rate for each tier, like {"free": "10/m", "pro": "100/m"}'

# Each message begins with "limit 'partner': ", unless the name is what is wrong.
COMMON_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "a limit's name must be some text, not ''"),
    ({"name": None}, "a limit's name must be some text, not None"),
    ({"name": "a\ud800"}, "a limit's name must be text that UTF-8 can encode, not 'a\\ud800'"),
    ({"rate": "10 a minute"}, f"'10 a minute' is not a rate. {RATE_IS}"),
    ({"rate": None}, f"None is not a rate. {RATE_IS}"),
    (
        {"rate": "10/minit"},
        "'minit' in rate '10/minit' is not a unit of time: use s, m, h, d, w, or second … week; "
        "a FixedWindow also takes month and year.",
    ),
    (
        {"rate": "0/s"},
        f"the amount of rate '0/s' must be a whole number of units, at least 1 and at most 999999999999. {RATE_IS}",
    ),
    ({"rate": "1/400d"}, f"the period of rate '1/400d' must be between 1 µs and 366 days. {RATE_IS}"),
    ({"rate": (10, "1s")}, f"the period of rate (10, '1s') must be a timedelta or a number of seconds. {RATE_IS}"),
    ({"key": 7}, 'the key must be a template like "{account_id}" or a callable, not 7'),
    ({"key": b"{a}"}, "the key must be a template like \"{account_id}\" or a callable, not b'{a}'"),
    *(({"key": key}, f"the key template {key!r} names no argument: {KEY_IS}") for key in ("", "all")),
    *(({"key": key}, f"the key template {key!r} {UNNAMED}") for key in ("{}", "{0}", "{a b}")),
    *(
        ({"key": key}, f"the key template {key!r} cannot be read: {fault}")
        for key, fault in (
            ("{", "Single '{' encountered in format string"),
            ("{a:>{b}}", "a format must not contain a field"),
            ("{a:{}}", "a format must not contain a field"),
            ("{a:>1000000000}", "a width or precision must be less than 1000"),
            ("{a:.١٠٠٠٠}", "a width or precision must be less than 1000"),
            ("{a!x}", "there is no conversion !x"),
        )
    ),
    *(
        ({"cost": cost}, f"a cost must be a whole number of at least 0, not {message}")
        for cost, message in ((-1, "-1"), (1.5, "1.5"), (True, "True"), ("1", "str"), (None, "NoneType"))
    ),
    *(({"scope": scope}, f"{SCOPE_IS}, not {scope!r}") for scope in ("worker", "Queue", None, ["queue"])),
    ({"tier": "{plan}"}, TIERS_ARE),
    ({"default_tier": "free"}, TIERS_ARE),
]
BUCKET_IS = "must be a whole number of at least 1, not {!r}: it includes the first unit"
WINDOW_IS = (
    "must fit evenly into a day, like 10s, 15m, 6h or 1d, or be a week, a month or a year: a fixed window begins with "
    "the calendar's. For other periods, use a SlidingWindow or a SlidingLog"
)
ZONE_IS = 'like "Europe/Berlin". If the system has no time zones at all: pip install tzdata'
OWN_FAULTS: list[tuple[type[Limit], dict[str, Any], str]] = [
    *((TokenBucket, {"burst": n}, f"the burst {BUCKET_IS.format(n)}") for n in (0, -1, 1.5, True, "9", {"free": 9})),
    (
        TokenBucket,
        {"rate": "1/day", "burst": 3661},
        "a burst of 3661 at '1/day' would take more than ten years to fill: lower it",
    ),
    *(
        (algorithm, {"queue": n}, f"the queue must be a whole number of at least 0, not {n!r}")
        for algorithm in ALGORITHMS
        for n in (-1, 1.5, True, "9", {"free": 9})
    ),
    (LeakyBucket, {"queue": 2**53}, "the queue must be less than 2**53: without queue=, any number of jobs may wait"),
    *(
        (FixedWindow, {"rate": rate}, f"the period of {rate!r} {WINDOW_IS}")
        for rate in ("1/7s", "1/2d", "1/365d", (5, 0.7), (5, timedelta(days=1, microseconds=1)))
    ),
    *(
        (FixedWindow, {"tz": tz}, f"the time zone {tz!r} is not known here: write it {ZONE_IS}")
        for tz in ("Europe/Berlim", "berlin", "", "+02:00", "Europe", "../etc/passwd", "\x00", "\ud800", "a" * 5000)
    ),
    *(
        (FixedWindow, {"tz": tz}, f'tz must be the name of a time zone, like "Europe/Berlin", not {tz!r}')
        for tz in (1, b"UTC")
    ),
    (
        SlidingLog,
        {"rate": "100001/s"},
        "the amount of '100001/s' is more than 100000: a sliding log stores 7 bytes per unit. "
        "Use a SlidingWindow or a TokenBucket, which store a few numbers",
    ),
]
FAULTS = [(algorithm, *fault) for algorithm in ALGORITHMS for fault in COMMON_FAULTS] + OWN_FAULTS


@pytest.mark.parametrize(("algorithm", "wrong", "message"), FAULTS)
def test_invalid_limit_is_refused_at_once(algorithm: type[Limit], wrong: dict[str, Any], message: str) -> None:
    """An invalid value raises at the declaration, not in a job; the message shows the value and what would be right."""
    with pytest.raises(ConfigurationError) as caught:
        make(algorithm, **wrong)
    assert str(caught.value) == ("" if "name" in wrong else "limit 'partner': ") + message


@pytest.mark.parametrize(
    ("algorithm", "option", "hint"),
    [
        (TokenBucket, "brust", ": did you mean 'burst'?"),
        (SlidingWindow, "scop", ": did you mean 'scope'?"),
        (Concurrency, "leese", ": did you mean 'lease'?"),
        (FixedWindow, "colour", ""),
    ],
)
def test_misspelt_option_names_the_class_and_the_right_name(algorithm: type[Limit], option: str, hint: str) -> None:
    """The error names the class that the user wrote, not its base class."""
    with pytest.raises(TypeError) as caught:
        algorithm("a", 5 if algorithm is Concurrency else "5/s", **{option: 3})  # type: ignore[arg-type]
    assert str(caught.value) == f"{algorithm.__name__}() got an unexpected keyword argument {option!r}{hint}"


@pytest.mark.parametrize(
    ("limit", "capacity"),
    [
        *((FixedWindow("x", rate), 1) for rate in ("1/s", "1/10s", "1/15m", "1/6h", "1/day", (1, 0.5))),
        (FixedWindow("x", (1, timedelta(microseconds=1))), 1),
        (SlidingLog("x", "100000/day", queue=2**53 - 1), 10**5),
        (TokenBucket("x", "1/day", burst=3660, cost=3660), 3660),
    ],
)
def test_largest_valid_values(limit: Limit, capacity: int) -> None:
    """Each value is the last one before a refused one; a cost may be the whole capacity, or 0."""
    assert limit.capacity == capacity == limit.check_cost(capacity)
    assert limit.check_cost(0) == 0


@pytest.mark.parametrize(
    ("algorithm", "most"), [(TokenBucket, 20), (LeakyBucket, 1), (FixedWindow, 9), (SlidingWindow, 9), (SlidingLog, 9)]
)
@pytest.mark.parametrize("given", ["when made", "by a callable", "in a call"])
def test_cost_that_can_never_be_admitted_names_the_remedy(algorithm: type[Limit], most: int, given: str) -> None:
    """A cost that is too high is refused at once, with the numbers and what makes room for it in this algorithm."""
    options: dict[str, Any] = {"burst": 20} if algorithm is TokenBucket else {}
    if given != "in a call":
        options["cost"] = most + 1 if given == "when made" else lambda job: most + 1

    def check() -> int:
        limit = make(algorithm, rate="9/minute", **options)
        return limit.check_cost(most + 1) if given == "in a call" else limit.cost_of(JOB)

    with pytest.raises(CostExceedsLimit) as caught:
        check()
    error, remedy = caught.value, REMEDIES[algorithm].format(cost=most + 1)
    assert (error.cost, error.limit, error.most, error.remedy) == (most + 1, "partner", most, remedy)
    assert str(error) == (
        f"limit 'partner' can never admit a cost of {most + 1}: at most {most} can pass at once. "
        f"Lower the cost, or {remedy}."
    )


REMEDIES: dict[type[Limit], str] = {
    TokenBucket: "raise the burst to at least {cost}",
    LeakyBucket: "use a TokenBucket with a burst of at least {cost}: a leaky bucket admits one unit at a time",
    FixedWindow: "raise the rate's amount to at least {cost}",
    SlidingWindow: "raise the rate's amount to at least {cost}",
    SlidingLog: "raise the rate's amount to at least {cost}",
}


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_cost_error_can_be_pickled_and_copied(copied: Any) -> None:
    """`CostExceedsLimit` keeps its numbers when a framework pickles or copies it."""
    error = copied(CostExceedsLimit(cost=6, limit="partner", most=5, remedy="wait for nothing"))
    assert (error.cost, error.limit, error.most, error.remedy) == (6, "partner", 5, "wait for nothing")
    assert str(error).endswith("a cost of 6: at most 5 can pass at once. Lower the cost, or wait for nothing.")
    rebuilt = copied(CostExceedsLimit(*error.args))  # as Celery's result backend does
    assert (str(rebuilt), rebuilt.cost) == (str(error), 0)


def test_cost_error_without_a_remedy_states_what_is_needed() -> None:
    """A limit without a remedy of its own still states what is needed."""
    assert str(CostExceedsLimit(cost=6, limit="partner", most=5)).endswith("or let 6 pass at once.")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, ""),
        ("{account_id}", "42"),
        ("{region}:{account_id}", "us:42"),
        ("{account_id:05d}", "00042"),
        ("{region!r}", "'us'"),
        (lambda job: job.kwargs["region"], "us"),
        (lambda job: 7, "7"),
        (lambda job: "", ""),
    ],
)
def test_key_is_derived_from_the_job(key: Any, text: str) -> None:
    """A key comes from a template with the arguments by name, or from a callable that gets the job."""
    assert TokenBucket("partner", "10/s", key=key).key_of(JOB) == text


MISSING = "names 'customer', which job 'send' does not have; it has"
NO_TEXT = "a key must be text or a whole number"


@pytest.mark.parametrize(
    ("key", "job", "message"),
    [
        ("{customer}", Job(name="send", kwargs={"b": 1, "a": 2}), f"{MISSING} a, b"),
        ("{customer}", Job(name="send"), "has no arguments"),
        ("{region.code}", JOB, "which job 'call_partner' does not have; it has account_id"),
        ("{rest[9]}", JOB, "which job 'call_partner' does not have; it has account_id"),
        ("{account_id:no such format}", JOB, ""),
        ("{account_id}", None, "pass job=, or the key itself as key="),
        *((lambda job, key=key: key, JOB, NO_TEXT) for key in (None, 1.5, True, ["a"], b"x", object())),
        *(("{a}:{b}", Job(kwargs={"a": value, "b": "x"}), NO_TEXT) for value in (None, True, 1.5)),
        *((lambda job, n=n: n, JOB, "a whole number must have less than 600 digits") for n in (1 << 2000, 10**5000)),
        (lambda job: job.kwargs["customer"], JOB, "failed on job 'call_partner': KeyError"),
    ],
)
def test_key_that_cannot_be_derived_is_a_configuration_error(key: Any, job: Job | None, message: str) -> None:
    """A key that fails on a job is a permanent error: the message names the limit, and what is missing."""
    with pytest.raises(ConfigurationError, match=f"limit 'partner': .*{re.escape(message)}"):
        TokenBucket("partner", "10/s", key=key).key_of(job)


@pytest.mark.parametrize("key", ["{customer!r}", "{customer!s}", "{customer!a:>20}"])
@pytest.mark.parametrize("customer", [object(), [object()], len.__call__])
def test_an_address_in_memory_is_no_key(key: str, customer: object) -> None:
    """
    A key that contains a memory address raises: each process, and each copy of the object, would have its own count.
    """
    with pytest.raises(ConfigurationError, match=f"a memory address, as the text of this {type(customer).__name__}"):
        TokenBucket("partner", "10/s", key=key).key_of(Job(name="send", kwargs={"customer": customer}))


@pytest.mark.parametrize("cost", [-1, 1.5, None, True, "3", len])
def test_callable_cost_must_be_a_whole_number(cost: Any) -> None:
    """The return value of a cost callable is checked like a fixed cost."""
    assert TokenBucket("tokens", "10/s", cost=lambda job: len(job.args)).cost_of(JOB) == 1
    with pytest.raises(ConfigurationError, match="limit 'tokens'"):
        TokenBucket("tokens", "10/s", cost=lambda job: cost).cost_of(JOB)


def test_callable_cost_that_fails_names_limit_and_job() -> None:
    """A cost callable that raises is a permanent error with the original as its cause; it needs a job."""
    limit = TokenBucket("tokens", "10/s", cost=lambda job: 1 // 0)
    with pytest.raises(ConfigurationError, match=r"limit 'tokens': the cost .* failed on job 'call_partner'") as caught:
        limit.cost_of(JOB)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ConfigurationError, match="pass job=, or the cost itself as cost="):
        limit.cost_of(None)


@pytest.mark.parametrize("key", [None, "{account_id}", "{more[zone]}", "{anything}", lambda job: 1])
def test_function_with_the_named_arguments_fits(key: Any) -> None:
    """A template may name any argument of the function; with **kwargs, any name."""
    TokenBucket("partner", "10/s", key=key).check_function(call_partner)


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        (TokenBucket("x", "10/s", key="{account_id}-{t.id}"), "key '{account_id}-{t.id}' names an argument 't'"),
        (TokenBucket("x", TIERS, tier="{plan}", key="{account_id}"), "tier '{plan}' names an argument 'plan'"),
        (Concurrency("x", 2, held_by="{workflow}"), "held_by '{workflow}' names an argument 'workflow'"),
    ],
    ids=["key", "tier", "held_by"],
)
def test_function_without_the_named_argument_is_refused(limit: Limit, fault: str) -> None:
    """A template that names an argument that the function lacks raises when the function is declared."""
    with pytest.raises(ConfigurationError) as caught:
        limit.check_function(plain)
    assert str(caught.value) == f"limit 'x': its {fault} that plain(account_id) does not take"
    TokenBucket("x", "10/s", key="{account_id}").check_function(plain)
    TokenBucket("x", TIERS, tier="{account_id}").check_function(plain)
    TokenBucket("x", TIERS, tier=lambda job: "free").check_function(plain)


def test_key_may_be_long() -> None:
    """A key may have a field 999 characters wide, or a number of 600 digits."""
    assert len(TokenBucket("partner", "10/s", key="{account_id:>999}").key_of(JOB)) == 999
    assert len(key_text(10**600)) == 601


def test_cost_with_thousands_of_digits_is_refused() -> None:
    """The error for a cost with thousands of digits does not repeat them."""
    with pytest.raises(ConfigurationError, match="a cost must be a whole number of at least 0, not something of type"):
        TokenBucket("partner", "10/s").check_units(10**5000)


SECRET = "s3cret-argument"


class Revealing:
    """An argument whose text and whose errors contain the secret."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    def __format__(self, format_spec: str) -> str:
        raise ValueError(SECRET)

    def __getitem__(self, index: object) -> object:
        raise TypeError(SECRET)

    def __repr__(self) -> str:
        return SECRET


def _raises(error: Exception) -> Callable[[Job], Any]:
    def derive(job: Job) -> Any:
        raise error

    return derive


_SOURCES: list[Any] = [
    "{secret.customer}",
    "{secret[9999]}",
    "{secret:no such format}",
    "{secret:Y}",
    "{revealing}",
    "{revealing[1]}",
    "{revealing:x}",
    "{missing}",
    "{secrets}",
    _raises(ValueError(SECRET)),
    _raises(KeyError(SECRET)),
    _raises(AttributeError(SECRET)),
    _raises(ZeroDivisionError()),
    lambda job: job.kwargs["secrets"],
    lambda job: job.kwargs["revealing"],
    lambda job: job.kwargs["secret"].encode(),
]


@pytest.mark.parametrize(
    ("what", "source"),
    [
        ("tier", "{secret}"),
        ("cost", lambda job: job.kwargs["secret"]),
        *((what, each) for what in ("key", "tier", "cost") for each in _SOURCES if what != "cost" or callable(each)),
    ],
)
def test_errors_never_show_an_argument(what: str, source: Any) -> None:
    """The arguments of a job may be secret: no message contains them, whatever fails in key, tier or cost."""
    job = Job(name="send", kwargs={"secret": SECRET, "secrets": [SECRET], "revealing": Revealing()})
    if what == "tier":
        limit = TokenBucket("partner", {"free": "1/s"}, tier=source)
    elif what == "key":
        limit = TokenBucket("partner", "1/s", key=source)
    else:
        limit = TokenBucket("partner", "1/s", cost=source)
    with pytest.raises(ConfigurationError, match=r"^limit 'partner': ") as caught:
        dump(limit.for_job(job), job)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)


# Limits as values


@every_algorithm
def test_all_ways_to_write_one_rate_are_one_definition(algorithm: type[Limit]) -> None:
    """A rate may be given as text or as numbers: the definition is the same."""
    rates: list[Any] = ["60/minute", "60/m", "60/60s", (60, 60), (60, timedelta(minutes=1))]
    limits = [make(algorithm, rate=rate) for rate in rates]
    assert len({limit.fingerprint for limit in limits}) == 1
    assert len(set(limits)) == 1


def test_buckets_of_one_interval_are_one_definition() -> None:
    """A bucket is its interval and its burst: 60 a minute is 1 a second. For windows, the period is part of it."""
    rates: list[Any] = ["60/minute", "1/s", "10/10s", "3600/h", (2, 2.0)]
    same = [TokenBucket("a", rate, burst=1) for rate in rates]
    others = [TokenBucket("a", "60/minute", burst=2), TokenBucket("a", "61/minute")]
    assert len({limit.fingerprint for limit in same}) == 1
    assert len({limit.bucket for limit in same}) == 1
    assert len({limit.fingerprint for limit in [same[0], *others]}) == 3
    assert len({LeakyBucket("a", rate).fingerprint for rate in rates}) == 1
    for algorithm in (FixedWindow, SlidingWindow, SlidingLog):
        assert len({make(algorithm, rate=rate).fingerprint for rate in rates}) == len(rates)


FINGERPRINTS: list[tuple[Limit, str]] = [
    (TokenBucket("a", "100/minute", burst=20), "a85b65378f"),
    (TokenBucket("a", "100/minute"), "1dd641c33d"),
    (LeakyBucket("a", "100/minute", queue=5), "c3dc0af495"),
    (FixedWindow("a", "100/minute"), "cf1ae362c7"),
    (FixedWindow("a", "100/minute", tz="Europe/Berlin"), "374ca784d1"),
    (SlidingWindow("a", "100/minute"), "aa0a907e28"),
    (SlidingLog("a", "100/minute"), "56d50e3ac3"),
    (SlidingLog("a", "100/minute", scope="queue"), "e0334ee4c7"),
    (SlidingLog("a", "100/minute", scope="job"), "44d265cc7c"),
    (SlidingLog("a", "100/minute", scope="process"), "ec3a990684"),
    (SlidingLog("a", {"free": "100/minute", "pro": "200/minute"}, tier="{plan}"), "c4858dda48"),
    (
        SlidingLog("a", {"free": "100/minute", "pro": "200/minute"}, tier="{plan}").for_job(
            Job(kwargs={"plan": "free"})
        ),
        "cd8d60b415",
    ),
]


@pytest.mark.parametrize(("limit", "fingerprint"), FINGERPRINTS)
def test_fingerprint_does_not_depend_on_the_process(limit: Limit, fingerprint: str) -> None:
    """The fingerprint is the same in every process and release: the names of buckets and waitlists contain it."""
    assert limit.fingerprint == fingerprint


def test_no_two_definitions_share_a_fingerprint() -> None:
    """Another algorithm, rate, option, scope or tier is another definition."""
    assert len({limit.fingerprint for limit, _ in FINGERPRINTS}) == len(FINGERPRINTS)


def test_fingerprint_has_only_what_affects_the_count() -> None:
    """
    Name, key, cost and queue are not part of the fingerprint, so waiting jobs keep their positions when a queue
    changes.
    """
    plain = LeakyBucket("a", "1/s")
    others = [
        LeakyBucket("b", "1/s"),
        LeakyBucket("a", "1/s", key="{account}"),
        LeakyBucket("a", "1/s", cost=0),
        LeakyBucket("a", "1/s", queue=7),
    ]
    assert {limit.fingerprint for limit in others} == {plain.fingerprint}


def _size(job: Job) -> int:
    return 1


VALUES: list[Limit] = [
    limit
    for algorithm in ALGORITHMS
    for limit in (
        make(algorithm),
        make(algorithm, key="{account_id}", cost=_size, scope="queue"),
        make(algorithm, rate=TIERS, tier="{plan}", default_tier="free"),
        make(algorithm, rate={"free": "1/m", "pro": "1/m"}, tier="{plan}").for_job(Job(kwargs={"plan": "pro"})),
    )
] + [FixedWindow("partner", "1/day", tz="Europe/Berlin"), LeakyBucket("partner", "1/s", queue=3)]


@pytest.mark.parametrize("limit", VALUES, ids=stable_repr)
def test_limit_is_a_value(limit: Limit) -> None:
    """Limits of every algorithm copy and pickle into equal ones with the same hash, repr and decisions."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(limit, protocol)) == limit
    for copied in (pickle.loads(pickle.dumps(limit)), copy.copy(limit), copy.deepcopy(limit)):
        assert copied == limit
        assert hash(copied) == hash(limit)
        assert repr(copied) == repr(limit)
        assert copied.fingerprint == limit.fingerprint
        job = Job(kwargs={"plan": "pro"})
        assert copied.for_job(job).bind(1) == limit.for_job(job).bind(1)


def test_limits_are_equal_only_if_all_options_are() -> None:
    """Another name, rate, option, key, cost, scope, tier or algorithm is another limit."""
    limits = [
        *VALUES[:2],
        TokenBucket("other", "10/s"),
        TokenBucket("partner", "11/s"),
        TokenBucket("partner", "10/s", burst=3),
        TokenBucket("partner", "10/s", key="{account_id}"),
        TokenBucket("partner", "10/s", cost=2),
        TokenBucket("partner", "10/s", scope="job"),
        TokenBucket("partner", TIERS, tier="{plan}"),
        TokenBucket("partner", TIERS, tier="{level}"),
        TokenBucket("partner", TIERS, tier="{plan}", default_tier="free"),
        *(make(algorithm) for algorithm in ALGORITHMS[1:]),
        LeakyBucket("partner", "10/s", queue=3),
        LeakyBucket("partner", TIERS, tier="{plan}", queue=3),
        LeakyBucket("partner", TIERS, tier="{plan}", queue={"free": 0, "pro": 3}),
    ]

    class Own(TokenBucket): ...

    limits += [Own("partner", "10/s")]
    assert len(set(limits)) == len(limits)
    assert all((one == other) == (one is other) for one in limits for other in limits)


@pytest.mark.parametrize("other", [None, "partner", 7, object()])
def test_limit_compares_with_limits_only(other: object) -> None:
    """A value of any other type is never equal."""
    assert TokenBucket("partner", "10/s") != other
    assert TokenBucket("partner", "10/s").__eq__(other) is NotImplemented


@pytest.mark.parametrize("attribute", ["name", "amount", "fingerprint", "burst", "cost", "by_value", "anything"])
def test_limit_cannot_be_changed(attribute: str) -> None:
    """A limit is immutable, and the message says so. A missing attribute raises the usual error."""
    limit = TokenBucket("partner", "10/s")
    with pytest.raises(AttributeError, match=f"a limit cannot be changed: create a new one .* setting '{attribute}'"):
        setattr(limit, attribute, "other")
    with pytest.raises(AttributeError, match=f"a limit cannot be changed: '{attribute}' cannot be deleted"):
        delattr(limit, attribute)
    with pytest.raises(AttributeError, match="'TokenBucket' object has no attribute 'brust'"):
        _ = limit.brust  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (TokenBucket("a", "10/s"), "TokenBucket('a', '10/s', burst=10)"),
        (
            TokenBucket("a", (5, 10), burst=2, key="{b}", cost=2, scope="job"),
            "TokenBucket('a', (5, 10), burst=2, key='{b}', cost=2, scope='job')",
        ),
        (LeakyBucket("a", "10/s", queue=0), "LeakyBucket('a', '10/s', queue=0)"),
        (FixedWindow("a", "1/d", tz="Asia/Tokyo"), "FixedWindow('a', '1/d', tz='Asia/Tokyo')"),
        (SlidingWindow("a", "10/s", scope="process"), "SlidingWindow('a', '10/s', scope='process')"),
        (
            SlidingLog("a", {"free": "1/m"}, tier="{plan}", default_tier="free"),
            "SlidingLog('a', {'free': '1/m'}, tier='{plan}', default_tier='free')",
        ),
    ],
)
def test_repr_is_the_code_of_the_limit(limit: Limit, shown: str) -> None:
    """The repr of a limit is the code that creates it, because error messages show it."""
    assert repr(limit) == shown
    assert eval(repr(limit)) == limit


def test_subclasses_of_users_do_not_replace_ours() -> None:
    """A subclass that only presets values does not change the class that a message loads."""

    class Partner(TokenBucket):
        def __init__(self) -> None:
            super().__init__("partner", "10/s")

    loaded = load(dump(Partner(), JOB))
    assert type(loaded) is TokenBucket
    assert loaded.fingerprint == Partner().fingerprint


# Remaining units, queues and errors


@every_algorithm
def test_remaining_is_what_is_not_used(algorithm: type[Limit]) -> None:
    """The remaining units are a whole number from 0 to the capacity, also below empty."""
    limit, now_us = make(algorithm, rate="9/minute"), 1_800_000_000_000_000
    charge = limit.bind(limit.capacity)
    assert limit.remaining(charge.use(None, now_us), now_us) == limit.capacity
    used = charge.admit(None, now_us)
    assert limit.remaining(charge.use(used, now_us), now_us) == 0
    assert limit.remaining(charge.use(charge.settle(used, now_us, now_us, charge.size), now_us), now_us) == 0
    assert limit.remaining(Use(0, now_us - 1), now_us) == limit.capacity


@every_algorithm
@pytest.mark.parametrize("queue", [None, 0, 3])
def test_queue_is_the_number_of_jobs_that_may_wait(algorithm: type[Limit], queue: int | None) -> None:
    """`queue=None` means any number of jobs. The option does not affect the count, and stays when the rate changes."""
    limit = make(algorithm, queue=queue)
    assert limit.queue == queue
    assert limit.fingerprint == make(algorithm).fingerprint
    assert (limit == make(algorithm)) == (queue is None)
    assert ("queue=" in repr(limit)) == (queue is not None or algorithm is LeakyBucket)
    assert change_rate(limit, "7/s").queue == queue
    assert algorithm is SlidingLog or scale_rate(limit, 500).queue == queue
    assert load(dump(limit, JOB)).queue == queue
    assert ("queue" in dump(limit, JOB)) == (queue is not None or algorithm is LeakyBucket)


def test_queue_of_tiers_of_rates_and_of_a_share() -> None:
    """One queue for all tiers, or one each; a callable rate keeps it; no job waits in a process's share."""
    one = TokenBucket("partner", TIERS, tier="{plan}", queue=3)
    each = TokenBucket("partner", TIERS, tier="{plan}", queue={"free": 0, "pro": 3})
    assert [[limit.tiers[tier].queue for tier in TIERS] for limit in (one, each) if limit.tiers] == [[3, 3], [0, 3]]
    assert one.definition == each.definition
    varying = SlidingWindow("partner", lambda job: "5/s", queue=3)
    assert (varying.queue, varying.at("5/s").queue) == (3, 3)
    assert varying.fingerprint == SlidingWindow("partner", lambda job: "5/s").fingerprint
    local = TokenBucket("partner", "10/s", queue=3, on_store_failure="local", processes=2).local_part
    assert local is not None
    assert local.queue is None


def test_length_of_a_token_lease_is_kept_to_the_microsecond() -> None:
    """A number of seconds that no float represents exactly loses nothing."""
    limit = TokenBucket("partner", "100000/s", burst=1000, prefetch=4, prefetch_for=0.001001)
    assert limit.prefetch_quota is not None
    assert (limit.prefetch_for, limit.prefetch_quota.for_us) == (0.001001, 1001)


@pytest.mark.parametrize(("scope", "job"), [("queue", Job(queue=7)), ("job", Job(name=b"x"))])  # type: ignore[arg-type]
def test_scope_that_is_not_text_is_refused(scope: Any, job: Job) -> None:
    """A queue or a job name that is not text cannot be part of a key."""
    with pytest.raises(ConfigurationError, match=f"counts each {scope} apart: the job's must be text, not "):
        make(TokenBucket, scope=scope).part_of(job)


def test_limit_without_an_algorithm_cannot_be_made() -> None:
    """`Limit`, the base class of all algorithms, cannot be instantiated."""
    made: Any = Limit
    with pytest.raises(TypeError):
        made("partner", "10/s")


@pytest.mark.parametrize(
    "limit",
    [TokenBucket("p", "1/s", burst=2), LeakyBucket("p", "1/s"), FixedWindow("p", "1/s"), Concurrency("p", 1)],
    ids=lambda limit: type(limit).__name__,
)
def test_error_repeats_no_number_of_400_digits(limit: Limit) -> None:
    """A cost that is too long to read is shown by its magnitude; the error's own fields have it exactly."""
    with pytest.raises(CostExceedsLimit) as caught:
        limit.check_cost(10**400)
    assert "a cost of about 10^400: at most" in str(caught.value)
    assert len(str(caught.value)) < 250
    assert caught.value.cost == 10**400
    with pytest.raises(CostExceedsLimit, match=f"a cost of {10**20}: at most"):
        limit.check_cost(10**20)
