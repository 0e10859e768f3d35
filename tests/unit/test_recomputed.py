"""Which of an attempt's stages Spark has computed again."""

from __future__ import annotations

import logging
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from offsetkeeper.engines import recomputed
from offsetkeeper.engines.recomputed import Stage, again, tell_limits, watched
from offsetkeeper.errors import ComputedAgain
from offsetkeeper.sinks import Joiner, Writer
from offsetkeeper.sinks.outputs import Prepared
from offsetkeeper.testing.clock import no_waiting

READS, WRITES = Stage(0, 0, frozenset("01"), 90), Stage(1, 0, frozenset("23"), 0)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], ""),
        ([READS, WRITES], ""),
        ([READS, WRITES._replace(attempt=1)], "stage 1 has attempt 1"),
        # A result that is fetched partition by partition is a job for each.
        ([READS, WRITES, WRITES._replace(number=2)], ""),
        # The next job of it lacks what the first has shuffled.
        ([READS, WRITES, READS._replace(number=2), WRITES._replace(number=3)], "stage 2 computes again what stage 0"),
        # The tasks that were lost had no rows, or have none now.
        ([READS, READS._replace(number=2, shuffled=0)], "stage 2 computes again what stage 0"),
        ([READS._replace(shuffled=0), READS._replace(number=2)], "stage 2 computes again what stage 0"),
    ],
)
def test_a_stage_is_computed_again_by_a_second_attempt_or_in_a_later_job(stages: list[Stage], said: str) -> None:
    found = again(stages)
    assert found.startswith(said)
    assert bool(found) == bool(said)


class Remote:
    """A session of Spark Connect.

    Attributes:
        conf: its settings.
    """

    def __init__(self, retries_all: str | None) -> None:
        given = {} if retries_all is None else {recomputed._RETRIES_ALL: retries_all}
        self.conf = SimpleNamespace(get=given.get)


Remote.__module__ = "pyspark.sql.connect.session"
ROWS = Joiner(lambda *_: lambda _: None)


@pytest.mark.parametrize(
    ("retries_all", "joiners", "told"),
    [(None, {"": ROWS}, 1), ("false", {"": ROWS}, 1), ("true", {"": ROWS}, 0), (None, {}, 0)],
)
def test_a_start_with_spark_connect_says_that_nobody_watches_its_stages(
    retries_all: str | None, joiners: dict[str, Joiner], told: int, caplog: pytest.LogCaptureFixture
) -> None:
    """But where Spark tries all of their tasks again, as 4.2 does."""
    recomputed._cannot_tell.cache_clear()
    spark: Any = Remote(retries_all)
    for _ in range(2):
        tell_limits(spark, Prepared({}, joiners))
    assert len(caplog.messages) == told
    with watched(SimpleNamespace(sparkSession=spark)) as check:  # type: ignore[arg-type] # a stand-in
        check()


def test_a_start_says_which_output_writes_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tell_limits(SimpleNamespace(), Prepared({"archive": Writer(print), "": Writer(print)}, {}))  # type: ignore[arg-type]
    assert [text.partition(" writes by itself")[0] for text in caplog.messages] == ["output 'archive'", "the output"]


def test_a_spark_that_does_not_answer_keeps_no_batch_from_landing(caplog: pytest.LogCaptureFixture) -> None:
    """Its reason is told once."""
    recomputed._cannot_tell.cache_clear()
    for _ in range(2):
        with watched(SimpleNamespace()) as check:  # type: ignore[arg-type] # a stand-in
            check()
    [text] = caplog.messages
    assert "AttributeError" in text
    assert "rows may be lost or doubled" in text


SUCCEEDED = SimpleNamespace(toString=lambda: "SUCCEEDED")


class Late:
    """A Spark whose status store hears of the jobs of an attempt late, or has forgotten them.

    Args:
        heard_after: questions that it does not answer.
        jobs: of each, its stages, and how many of them it counts as skipped.

    Attributes:
        asked: how often it was asked for the newest job.
        tags: that the thread's jobs get.
    """

    def __init__(self, heard_after: int, *jobs: tuple[str, int]) -> None:
        self.asked, self._heard_after = 0, heard_after
        self._of_jobs = jobs or (("5", 0),)
        sees = SimpleNamespace(getJobIdsForTag=lambda _: self._jobs(), getJobInfo=self._info)
        scheduler = SimpleNamespace(numTotalJobs=chain([5], repeat(6)).__next__)
        parts = {"dagScheduler": scheduler, "statusTracker": sees, "statusStore": self}
        spark = SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()})
        self.tags: set[str] = set()
        tags = {"addJobTag": self.tags.add, "removeJobTag": self.tags.discard, "getJobTags": self.tags.copy}
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark), **tags)

    def job(self, number: int) -> Any:
        """Return a job; the first one has the number 5."""
        stages, skipped = self._of_jobs[number - 5]
        ids = SimpleNamespace(mkString=lambda _: stages)
        return SimpleNamespace(status=lambda: SUCCEEDED, stageIds=lambda: ids, numSkippedStages=lambda: skipped)

    def lastStageAttempt(self, number: int) -> Any:  # noqa: N802 - Spark's name
        """Return stage 5, which has a second attempt; others are forgotten."""
        if number != 5:
            raise RuntimeError(f"java.util.NoSuchElementException: No stage with id {number}")
        rdds = SimpleNamespace(mkString=lambda _: "1")
        told = {"status": SUCCEEDED, "rddIds": rdds, "attemptId": 1, "shuffleWriteBytes": 0}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in told.items()})

    def _jobs(self) -> list[int]:
        return [*range(5, 5 + len(self._of_jobs))] if self.asked > self._heard_after else []

    def _info(self, _: int) -> Any:
        self.asked += 1
        return SimpleNamespace(isDefined=lambda: self.asked > self._heard_after)


def test_the_status_store_is_asked_until_it_has_heard_of_the_newest_job() -> None:
    """It hears of an attempt of a stage a moment after it: no earlier answer counts."""
    frame: Any = SimpleNamespace(sparkSession=Late(3))
    with no_waiting(), watched(frame) as check, pytest.raises(ComputedAgain, match="stage 5 has attempt 1"):
        check()


def test_a_stage_that_was_skipped_may_be_forgotten() -> None:
    """Spark forgets these first, when it has a thousand: the others are looked at as ever."""
    frame: Any = SimpleNamespace(sparkSession=Late(0, ("3 4 5", 2)))
    with no_waiting(), watched(frame) as check, pytest.raises(ComputedAgain, match="stage 5 has attempt 1"):
        check()


def test_a_stage_that_two_jobs_skipped_at_the_same_time_is_counted_by_one_of_them() -> None:
    frame: Any = SimpleNamespace(sparkSession=Late(0, ("3 4", 2), ("3 5", 0)))
    with no_waiting(), watched(frame) as check, pytest.raises(ComputedAgain, match="stage 5 has attempt 1"):
        check()


def test_a_stage_that_has_run_and_is_forgotten_is_told(caplog: pytest.LogCaptureFixture) -> None:
    recomputed._cannot_tell.cache_clear()
    frame: Any = SimpleNamespace(sparkSession=Late(0, ("3 4 5", 1)))
    with no_waiting(), watched(frame) as check:
        check()
    assert "it has forgotten a stage: raise spark.ui.retainedStages" in caplog.messages[0]


def test_a_status_store_that_has_forgotten_the_jobs_of_an_attempt_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It keeps a thousand. The batch lands."""
    recomputed._cannot_tell.cache_clear()
    with no_waiting(), watched(SimpleNamespace(sparkSession=Late(10**9))) as check:  # type: ignore[arg-type] # as above
        check()
    assert "has not heard of job 5 for 10 s" in caplog.messages[0]
    assert "raise spark.ui.retainedJobs and spark.ui.retainedStages" in caplog.messages[1]


def test_code_that_clears_the_tags_of_its_jobs_is_told_of_and_the_next_jobs_have_the_tag_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`sc.clearJobTags()` left the watch blind, and it said nothing."""
    recomputed._cannot_tell.cache_clear()
    spark = Late(0, ("", 0))
    frame: Any = SimpleNamespace(sparkSession=spark)
    with watched(frame) as check:
        [tag] = spark.tags
        check()
        assert caplog.messages == []
        spark.tags.clear()
        check()
        assert spark.tags == {tag}
    [text] = caplog.messages
    assert "has cleared the tags of its jobs" in text
    assert "rows may be lost or doubled" in text
    assert spark.tags == set()
