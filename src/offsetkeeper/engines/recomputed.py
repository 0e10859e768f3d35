"""Whether Spark has computed a stage again while a batch was staged.

An executor dies, and the rows that its tasks have shuffled are gone. Spark computes them again, and then only the tasks
that are still missing. If a frame gives other rows this time, some tasks have staged rows of the first computation,
and others rows of the second: rows are lost, and rows are there twice. No task and no row shows it.

Spark's status store shows it, where the driver runs here. The jobs of an attempt have a tag. A stage of them that
has a second attempt was computed again. A shuffle that is computed in one job and is there no more in the next one is
a stage of its own in each: both have the same RDDs, and both ran.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.core import environment
from offsetkeeper.core.mark import named
from offsetkeeper.core.spark_session import is_connect
from offsetkeeper.engines.stop import spark_gone
from offsetkeeper.errors import ComputedAgain
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.outputs import Prepared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("offsetkeeper")
_HEARD_S = 10.0  # Spark's own limit for events that are under way
_POLL_S = 0.001
_RUNNING = "RUNNING"
_SKIPPED = "SKIPPED"
_RETRIES_ALL = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"


class Stage(NamedTuple):
    """A stage as the status store shows it.

    Attributes:
        number: its id.
        attempt: number of its newest attempt, from 0 on.
        rdds: ids of its RDDs.
        shuffled: bytes that its tasks wrote for later stages.
    """

    number: int
    attempt: int
    rdds: frozenset[str]
    shuffled: int


@contextmanager
def watched(frame: DataFrame) -> Iterator[Callable[[], None]]:
    """Watch the jobs that this thread runs in the block; lend a function that checks those which have ended.

    The function raises `ComputedAgain` if Spark has computed one of their stages again. With Spark Connect, or where
    Spark does not answer, it checks nothing.

    Args:
        frame: a frame of the session that runs the jobs.
    """
    jobs = _begin(frame)
    if jobs is None:
        yield lambda: None
        return
    try:
        yield jobs.check
    finally:
        with suppress(Exception):  # Spark may have died: the error of the block says more
            jobs.context.removeJobTag(jobs.tag)


def _begin(frame: DataFrame) -> _Jobs | None:
    tag = f"offsetkeeper-{environment.token()}"
    try:
        session = frame.sparkSession
        if is_connect(session):
            return None
        jobs = _Jobs(session.sparkContext, tag)
        session.sparkContext.addJobTag(tag)
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from answering, the batch is as it was before
        _cannot_tell(f"{type(error).__name__}: {error}"[:300])
        return None
    return jobs


def again(stages: list[Stage]) -> str:
    """Return which of an attempt's stages Spark has computed again, as text; empty if there is none."""
    ran: dict[frozenset[str], Stage] = {}
    for stage in stages:
        if stage.attempt:
            return f"stage {stage.number} has attempt {stage.attempt}"
        before = ran.setdefault(stage.rdds, stage)
        if before is not stage and (before.shuffled or stage.shuffled):
            return f"stage {stage.number} computes again what stage {before.number} has shuffled"
    return ""


class _Jobs:
    """The jobs of an attempt.

    Attributes:
        context: the context that runs them.
        tag: the tag that they have.
    """

    def __init__(self, context: Any, tag: str) -> None:
        self.context, self.tag = context, tag
        spark = context._jsc.sc()  # noqa: SLF001 - PySpark gives no tags of jobs
        self._scheduler, self._tracker, self._store = spark.dagScheduler(), spark.statusTracker(), spark.statusStore()
        self._first: int = self._scheduler.numTotalJobs()

    def check(self) -> None:
        """See `watched`."""
        try:
            self._tag_again()
            found = again(self._stages(self._ended()))
        except Exception as error:
            if spark_gone(error):
                raise
            _cannot_tell(f"{type(error).__name__}: {error}"[:300])
            return
        if found:
            raise ComputedAgain(
                f"Spark computed a part of the batch again ({found}), as an executor or its files were lost: rows of "
                "both computations may be mixed"
            )

    def _tag_again(self) -> None:
        """Give the thread its tag back if code in the block has cleared it: the jobs since then cannot be found."""
        if self.tag not in self.context.getJobTags():
            self.context.addJobTag(self.tag)
            _cannot_tell("code in the batch has cleared the tags of its jobs: let it remove its own with removeJobTag")

    def _ended(self) -> list[Any]:
        """Return the jobs with the tag, once the status store has heard of all jobs up to now.

        The events of an application come in order: who knows the newest job knows what came before it.
        """
        newest: int = self._scheduler.numTotalJobs() - 1
        if newest < self._first:
            return []
        until = environment.monotonic() + _HEARD_S
        while True:
            heard = self._tracker.getJobInfo(newest).isDefined()
            jobs = [self._store.job(number) for number in sorted(self._tracker.getJobIdsForTag(self.tag))]
            running = any(job.status().toString() == _RUNNING for job in jobs)
            if heard and not running:
                break
            if environment.monotonic() > until:
                _cannot_tell(f"its status store has not heard of job {newest} for {_HEARD_S:.0f} s")
                break
            environment.wait(_POLL_S)
        if not self._tracker.getJobInfo(self._first).isDefined():
            _cannot_tell(f"it has forgotten job {self._first}: raise spark.ui.retainedJobs and spark.ui.retainedStages")
        return jobs

    def _stages(self, jobs: list[Any]) -> list[Stage]:
        """Return the stages of jobs that have run.

        One that Spark has not run, as its rows were there, is none. When the status store has too many stages, it
        forgets these first; the jobs still tell how many there were. Of two jobs that ran at the same time, only one
        counts a stage that both skipped.

        Raises:
            LookupError: it has forgotten another one.
        """
        numbers = {int(number) for job in jobs for number in job.stageIds().mkString(" ").split()}
        shown = {number: data for number in sorted(numbers) if (data := self._shown(number)) is not None}
        ran = [number for number, data in shown.items() if data.status().toString() != _SKIPPED]
        if len(numbers) - len(ran) > sum(job.numSkippedStages() for job in jobs):
            raise LookupError("it has forgotten a stage: raise spark.ui.retainedStages")
        rdds = {number: frozenset(shown[number].rddIds().mkString(" ").split()) for number in ran}
        return [Stage(each, shown[each].attemptId(), rdds[each], shown[each].shuffleWriteBytes()) for each in ran]

    def _shown(self, number: int) -> Any:
        """Return what the status store has of a stage; None if it has nothing."""
        try:
            return self._store.lastStageAttempt(number)
        except Exception as error:
            if "NoSuchElementException" in str(error):
                return None
            raise


def tell_limits(spark: SparkSession, outputs: Prepared) -> None:
    """Say at a start with exactly once which outputs nobody watches, and why.

    Args:
        spark: the session that runs the batches.
        outputs: how each output is written.
    """
    apart = [name for name, way in outputs.writers.items() if not isinstance(way, Once)]
    watched_here = len(apart) < len(outputs.writers) + len(outputs.joiners)
    if watched_here and is_connect(spark) and spark.conf.get(_RETRIES_ALL, "false") != "true":
        _cannot_tell("Spark Connect shows no stages, and this Spark does not try all of their tasks again, as 4.2 does")
    for name in apart:
        log.info(
            "%s writes by itself: if Spark loses an executor meanwhile and computes other rows for the same records, "
            "nobody notices",
            named(name),
        )


@lru_cache(maxsize=8)  # says each reason once
def _cannot_tell(why: str) -> None:
    log.warning(
        "Spark does not tell whether it has computed a stage again (%s). If an executor is lost, and the function "
        "gives other rows for the same records, rows may be lost or doubled",
        why,
    )
