"""The arithmetic of the benchmarks: their figures are not wrong in favour of throttlekit."""

from __future__ import annotations

import random

import pytest

from support.flood.figures import (
    bursts_beyond_us,
    figures,
    full_from,
    inversions,
    lateness,
    most_within,
    unexplained_charges,
)
from support.flood.limits import FloodLimit
from support.flood.run import Flood, FloodRecord, Grant, Start
from throttlekit._core.algorithms.gcra import GcraAlgorithm, Measure, Tat


def _every_window_us(times: list[int], burst: int, interval: int) -> int:
    """Return by how much the worst window exceeds the bound, from every pair of grants."""
    return max(
        (j - i + 1 - burst) * interval - (times[j] - times[i]) for i in range(len(times)) for j in range(i, len(times))
    )


@pytest.mark.parametrize("burst", [1, 3, 10])
def test_worst_window_is_the_worst_of_all_windows(burst: int) -> None:
    """One pass over the instants finds the same worst window as a check of each window."""
    chance = random.Random(burst)
    for _ in range(50):
        times = sorted(chance.randrange(1_000_000) for _ in range(40))
        assert bursts_beyond_us(times, burst, 20_000) == _every_window_us(times, burst, 20_000)


def test_bound_is_kept_exactly_and_broken_by_a_microsecond() -> None:
    """A burst and then one grant per interval is at the bound; one grant a microsecond earlier exceeds it by that."""
    times = [0] * 10 + [20_000 * n for n in range(1, 50)]
    assert bursts_beyond_us(times, 10, 20_000) == 0
    times[30] -= 1
    assert bursts_beyond_us(times, 10, 20_000) == 1


def test_most_within_excludes_a_start_one_window_later() -> None:
    """Two starts that are exactly one window apart are not in the same window."""
    assert most_within([0, 999_999, 1_000_000], 1_000_000) == 2


@pytest.mark.parametrize(("order", "share"), [([1, 2, 3, 4], 0), ([4, 3, 2, 1], 1), ([2, 1, 3, 4], 1 / 6), ([], 0)])
def test_inversions_are_a_share_of_all_pairs(order: list[int], share: float) -> None:
    """0 means first in, first out; 1 means last in, first out."""
    assert inversions(order) == pytest.approx(share)


def test_order_is_that_of_jobs_with_the_same_limits() -> None:
    """Jobs of an account that has units pass those of another account, and the worst account counts."""
    flood = Flood(limits=(FloodLimit("account", "10/s", 1, "{account}"),), jobs=6, account_of=lambda job: str(job % 2))

    def inverted(*begun: int) -> float:
        starts = [Start(at_us, str(job), 0) for at_us, job in enumerate(begun)]
        ends = [start.job for start in starts]
        record = FloodRecord(
            flood=flood, starts=starts, ends=ends, grants=[], counts={}, broker_commands=None, left=0, log=""
        )
        return figures(record).inverted

    assert inverted(1, 3, 5, 0, 2, 4) == 0
    assert inverted(0, 2, 4, 1, 5, 3) == pytest.approx(1 / 3)


def test_charge_without_a_grant_is_found() -> None:
    """A replay of the grants agrees with the store's states, unless a unit was charged without a grant."""
    measure = Measure(200_000, 20_000, 1)
    charge, grants = GcraAlgorithm(20_000, 180_000, measure, measure), []
    tat: Tat | None = None
    for now in range(1_000_000, 1_200_000, 10_000):
        tat = charge.admit(tat, now)
        assert tat is not None
        grants.append(Grant(now, (("bucket", charge.size, tat.at_us),)))
    assert unexplained_charges(grants) == 0
    del grants[7]
    assert unexplained_charges(grants) == 1


def test_a_job_that_was_granted_early_may_begin_after_one_that_was_charged_later() -> None:
    """Grants are replayed in the order in which the store charged them, which is not the order of the bodies."""
    state, grants = 2_000_000, list[Grant]()
    for begins_us in (1_000_000, 1_030_000, 1_010_000, 1_040_000):
        state += 20_000
        grants.append(Grant(begins_us, (("bucket", 20_000, state),)))
    grants.sort(key=lambda grant: grant.at_us)
    assert unexplained_charges(grants) == 1, "only the first one, before which the bucket was charged"
    del grants[2]
    assert unexplained_charges(grants) == 2


@pytest.mark.parametrize(
    ("order", "found"),
    [([], (0, 0)), ([0, 1, 2, 3], (0, 0)), ([3, 0, 1, 2], (0.75, 3)), ([1, 0, 2, 9], (0.25, 6))],
)
def test_lateness_counts_jobs_that_began_after_a_later_job(order: list[int], found: tuple[float, int]) -> None:
    """The result is the share of overtaken jobs, and the greatest distance of a job from its place."""
    assert lateness(order) == found


def test_limit_is_full_from_the_instant_that_enough_starts_follow() -> None:
    """Earlier starts do not count, and a window that has not ended is unknown."""
    times = [1.0, 8.0, *(10 + n / 10 for n in range(50))]
    assert full_from(times, 5.0, units=20, seconds=2.0) == 10.0
    assert full_from(times, 10.05, units=20, seconds=2.0) == 10.05
    assert full_from(times, 14.0, units=20, seconds=2.0) is None
    assert full_from(times, 5.0, units=30, seconds=2.0) is None
