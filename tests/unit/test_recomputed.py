"""Which of an attempt's stages Spark has computed again."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from offsetkeeper.engines import recomputed
from offsetkeeper.engines.recomputed import Stage, again, tell_limits, watched
from offsetkeeper.sinks import Joiner, Writer
from offsetkeeper.sinks.outputs import Prepared

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
