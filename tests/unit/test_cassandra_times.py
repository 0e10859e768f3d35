"""Which write time each attempt of a task has, over landings, runs and applications."""

from __future__ import annotations

from typing import Any

import pytest

from offsetkeeper.core import environment
from offsetkeeper.errors import SinkError
from offsetkeeper.sinks.cassandra import times
from offsetkeeper.sinks.cassandra.marks import State
from offsetkeeper.sinks.cassandra.task import WIDTH, Window

SECOND = 1_000_000


class Clock(environment.Environment):
    """A clock that is set.

    Attributes:
        us: the time, in microseconds since 1970.
    """

    us = 10_000 * SECOND

    def now_ms(self) -> int:
        """See `Environment`."""
        return self.us // 1000


class Application:
    """A Spark application, as far as it numbers attempts; and the row of the mark in the cluster.

    Attributes:
        started: attempts so far, of all its jobs.
        asked: how often a job was run only for the number of its attempt.
    """

    row: State | None = None

    def __init__(self, started: int) -> None:
        self.started, self.asked = started, 0

    def land(self, writes: times.WriteTimes, attempts: int = 1, *, fails: bool = False) -> tuple[Window, list[int]]:
        """Land a batch; return its window and the write times of its attempts."""
        session: Any = self
        window = writes.begin(session, Application.row)
        assert Application.row is None or window.last > (Application.row.write_time or 0)
        Application.row = State("mark", "mark", window.last)
        numbers = range(self.started + 1, self.started + 1 + attempts)
        self.started += attempts
        try:
            given = [window.time(each) for each in numbers]
        except SinkError:
            writes.end(window, ())
            raise
        assert given == sorted(set(given))
        assert given[-1] <= window.last
        writes.end(window, () if fails else numbers)
        return window, given


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock; the job that asks for a number is a count."""

    def newest(application: Any) -> int:
        application.asked, application.started = application.asked + 1, application.started + 1
        return int(application.started)

    monkeypatch.setattr(times, "_newest", newest)
    monkeypatch.setattr(Application, "row", None)
    clock = Clock()
    with environment.using(clock):
        yield clock


def test_batches_in_quick_succession_do_not_run_ahead_of_the_clock(clock: Clock) -> None:
    """Nor do tries that fail. Only the first landing of a run asks Spark for a number."""
    application, writes, highest = Application(5_000_000_000), times.WriteTimes(), 0
    for number in range(1000):
        clock.us += SECOND // 20
        _, given = application.land(writes, 40, fails=number % 7 == 3)
        assert highest < given[0] <= given[-1] < clock.us + SECOND // 20
        highest = given[-1]
    assert application.asked == 1 + 143


def test_a_run_that_takes_over_is_above_all_attempts_that_the_other_may_still_start(clock: Clock) -> None:
    """Also where its own application counts from 0, and its clock is behind."""
    old, older = Application(7_000_000), times.WriteTimes()
    for _ in range(3):
        window, _ = old.land(older, 100)
    clock.us -= 3600 * SECOND
    _, given = Application(0).land(times.WriteTimes())
    assert given[0] > window.time(window.after + WIDTH)
    _, late = old.land(older, 1)
    assert late[0] > given[0], "it has begun again, after the other's landing"


def test_a_job_that_may_still_run_has_no_time_above_the_next_landing() -> None:
    """As of a driver that was interrupted, or has lost its connection to Spark."""
    application, writes = Application(100), times.WriteTimes()
    application.land(writes)
    interrupted = writes.begin(application, Application.row)  # type: ignore[arg-type]  # what is asked for a number
    Application.row = State("mark", "mark", interrupted.last)
    _, given = application.land(writes)
    assert given[0] > interrupted.time(interrupted.after + WIDTH)


def test_an_application_that_has_started_many_other_tasks_meanwhile_is_asked_again(clock: Clock) -> None:
    application, writes = Application(0), times.WriteTimes()
    _, first = application.land(writes)
    application.started += 3 * WIDTH
    with pytest.raises(SinkError, match="has no write time"):
        application.land(writes)
    _, given = application.land(writes)
    assert (application.asked, given[0] > first[0]) == (2, True)
    clock.us += 3600 * SECOND
    application.started += 3 * WIDTH
    application.land(writes)
    assert application.asked == 3


def test_an_application_that_counts_anew_gets_no_time_below_those_before(clock: Clock) -> None:
    writes = times.WriteTimes()
    _, given = Application(9_000_000).land(writes)
    clock.us -= 3600 * SECOND
    _, after = Application(0).land(writes)
    assert after[0] > given[0]
    with pytest.raises(SinkError, match="was started again"):
        writes.begin(Application(0), None).time(1)  # type: ignore[arg-type]  # as above
