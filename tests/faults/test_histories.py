"""The check of histories accepts one that reaches its bound exactly, and rejects one unit or one microsecond more."""

from __future__ import annotations

import random

import pytest

from support.faults.histories import Grant, Rule, bucket, check, fixed_window, sliding_log, sliding_window

DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US
P = 1_000_000


def full_bucket(amount: int, burst: int) -> list[Grant]:
    """Return a history with the burst at once, and then each unit as soon as it is free."""
    return [(START_US, burst), *((START_US + -(-n * P // amount), 1) for n in range(1, 300))]


def fading(amount: int) -> list[Grant]:
    """Return a history with a whole amount at once, and then a unit whenever one has faded."""
    return [(START_US, amount), *((START_US + -(-n * P // amount), 1) for n in range(1, amount + 1))]


EXTREMES: dict[str, tuple[Rule, list[Grant]]] = {
    "token": (bucket(8, P, 20), full_bucket(8, 20)),
    "leaky": (bucket(8, P, 1), full_bucket(8, 1)),
    "fixed": (fixed_window(7, P), [(START_US - 1, 7), (START_US, 3), (START_US, 4), (START_US + P, 7)]),
    "sliding": (sliding_window(8, P), fading(8)),
    "log": (sliding_log(7, P), [(START_US + n * P, 7) for n in range(5)]),
}
extremes = pytest.mark.parametrize("name", EXTREMES)


@extremes
def test_a_history_at_its_bound_is_accepted(name: str) -> None:
    """A history that reaches its bound exactly is accepted, in any order of its lines."""
    rule, grants = EXTREMES[name]
    assert check(rule, grants) is None
    assert check(rule, random.Random(1).sample(grants, len(grants))) is None


@extremes
def test_one_extra_unit_is_found(name: str) -> None:
    """The check finds one extra unit in that history, at each time when the bound is reached."""
    rule, grants = EXTREMES[name]
    for at_us in {grants[0][0], grants[-1][0], grants[len(grants) // 2][0]}:
        broken = check(rule, [*grants, (at_us, 1)])
        assert broken is not None
        assert 0 < broken.by <= 1


@pytest.mark.parametrize(("name", "earlier"), [("token", 150), ("leaky", 150), ("fixed", 1), ("log", -1)])
def test_a_grant_one_microsecond_early_is_found(name: str, earlier: int) -> None:
    """The check finds a grant that is one microsecond early. (A sliding window's bound allows almost another unit.)"""
    rule, grants = EXTREMES[name]
    at_us, units = grants[earlier]
    moved = [*grants]
    moved[earlier] = (at_us - 1, units)
    assert check(rule, moved) is not None


@extremes
def test_an_extra_grant_in_a_long_history_is_found(name: str) -> None:
    """The check finds one extra grant in a thousand quiet days, and reports its time."""
    rule, grants = EXTREMES[name]
    quiet = [(START_US + day * DAY_US, 1) for day in range(1, 1000)]
    at_us = START_US + 500 * DAY_US
    wrong = [(at_us + grant_us - START_US, units) for grant_us, units in [*grants, (grants[0][0], 1)]]
    assert check(rule, [*quiet, *((at_us + g - START_US, u) for g, u in grants if g != START_US)]) is None
    broken = check(rule, [*quiet, *wrong])
    assert broken is not None
    assert abs(broken.at_us - at_us) <= DAY_US // 2


def test_the_check_agrees_with_a_count_of_every_window() -> None:
    """On random histories, the check agrees with a count of the window between each pair of grants."""
    rnd = random.Random(7)
    verdicts = set[bool]()
    for _ in range(400):
        amount, burst = rnd.randint(1, 4), rnd.randint(1, 4)
        times = sorted(START_US + rnd.randint(0, 4 * P) for _ in range(rnd.randint(1, 25)))
        grants = [(at_us, 1) for at_us in times]
        for rule, most in (
            (bucket(amount, P, burst), lambda w: burst + w * amount // P),  # noqa: B023
            (sliding_window(amount, P), lambda w: amount - (-w * amount // P)),  # noqa: B023
            (sliding_log(amount, P), lambda w: amount if w < P else 10**9),  # noqa: B023
        ):
            naive = all(j - i + 1 <= most(times[j] - times[i]) for i in range(len(times)) for j in range(i, len(times)))
            verdicts.add(naive)
            assert (check(rule, grants) is None) is naive
    assert verdicts == {True, False}
