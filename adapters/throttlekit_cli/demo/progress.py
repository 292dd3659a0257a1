"""The progress of a run: samples taken several times a second, the seconds that they make up, and an ETA."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from throttlekit_cli.demo.plan import Plan

__all__ = ["Progress", "Sample", "Second"]

_PACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A run at one instant. Counts are from the start; *at* is seconds since then."""

    at: float
    sent: int
    calls: int
    refused: int
    running: int
    done: int
    given_up: int

    @property
    def waiting(self) -> int:
        """Jobs that were sent, do not run now, and are not over."""
        return max(0, self.sent - self.done - self.given_up - self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of a run: the calls that arrived in it, and the sample at its end."""

    number: int
    calls: int
    refused: int
    end: Sample
    eta: float | None


class Progress:
    """Turns samples into seconds, and estimates how long the run will take."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last = Sample(at=0.0, sent=0, calls=0, refused=0, running=0, done=0, given_up=0)
        self._recent: deque[Sample] = deque([self._last])
        self._number = 0

    def eta(self, sample: Sample) -> float | None:
        """
        Seconds until the last job is done, at the pace of the last seconds, so that the first burst does not
        count. None: no job was done in them, or it is too early to say.
        """
        first = self._recent[0]
        if sample.at <= first.at or sample.done <= first.done:
            return None
        pace = (sample.done - first.done) / (sample.at - first.at)
        return (self._plan.jobs - sample.done - sample.given_up) / min(pace, self._plan.per_second)

    def second(self, sample: Sample) -> Second | None:
        """The second that *sample* ends, if it ends one."""
        if int(sample.at) <= self._number:
            return None
        return self._close(sample, int(sample.at))

    def last_second(self, sample: Sample) -> Second | None:
        """The last, unfinished second, if anything happened in it."""
        return self._close(sample, self._number + 1) if sample.calls > self._last.calls else None

    def _close(self, sample: Sample, number: int) -> Second:
        second = Second(
            number=number,
            calls=sample.calls - self._last.calls,
            refused=sample.refused - self._last.refused,
            end=sample,
            eta=self.eta(sample),
        )
        self._last, self._number = sample, number
        self._recent.append(sample)
        while sample.at - self._recent[0].at > _PACE_SECONDS + 0.5:
            self._recent.popleft()
        return second
