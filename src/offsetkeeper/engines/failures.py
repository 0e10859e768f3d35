"""The progress of a run with one batch: what has returned, what failed, and how often that may be.

A try that was interrupted tells nothing of its batch, and may cost no attempt. Spark runs a lost task again, so most
outputs do not fail if an executor is lost. But Spark does not run a lost task of a barrier stage again: the job fails.
`Topic` writes by such a stage. An older run can interrupt a try too: it wakes up, and takes the place of this run in an
output.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.errors import ComputedAgain, MarkMoved, OutcomeUnknown, RangeGone, StoreUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BARRIER = "Could not recover from a failed barrier ResultStage"
_RAISED = "Traceback (most recent call last):"  # by Python code in the task, not by its death
_SETTING, _AS_SPARK_COMES = "spark.task.maxFailures", 4
# Half of all attempts may lose an executor, and one batch in a thousand ends a run.
_STAGED_ANEW = 10
_TOO_OFTEN = (
    "That was the {}th time for this batch. Find out why Spark loses executors. Then keep shuffled rows outside of "
    "them (an external shuffle service, or decommissioning), or make batches shorter with max_records"
)
_FAILED = "batch %s, attempt %d of %d failed: %s"
_ANEW = "batch %s is staged anew (%d of %d): %s"
_INTERRUPTED = "batch %s was interrupted (%d of %d), which costs no attempt: %s"


class Failure(NamedTuple):
    """A failure of a batch, counted among those of its kind.

    Attributes:
        text: for the log, with the batch, both numbers and the error.
        times: number of such failures.
        most: the number at which the run ends.
        advice: what the user can do where the run ends; it may be empty.
    """

    text: str
    times: int
    most: int
    advice: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the run ends with this failure."""
        return self.times >= self.most


@dataclass(slots=True)
class Course:
    """The progress of a run with a batch.

    Attributes:
        returned: the separate outputs whose write has returned, with the identities of their targets; this run does
            not write them again.
        failures: failures of outputs; each uses up one attempt.
        outages: failures of the store while a change was recorded; they use up no attempt.
        anew: how often Spark has computed a part of the batch again; it uses up no attempt either.
        interruptions: of this attempt, see `interrupted`. So many as Spark tries a task use it up.
        frame: the records of the last try.
        telling: whether a change is being recorded in the store.
        gone: whether the last try found that the topic was deleted or created again.
        checked: whether it is known that the records which all outputs have are from the topics of the plan.
        spent: attempts that are not available to this batch.
    """

    spent: int = 0
    returned: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    outages: int = 0
    anew: int = 0
    interruptions: int = 0
    frame: DataFrame | None = None
    telling: bool = False
    gone: bool = False
    checked: bool = False

    @property
    def tried(self) -> bool:
        """Whether an attempt of this run has failed after it may have written something."""
        return self.failures + self.anew + self.interruptions > 0

    def tell(self, change: Callable[..., object], *arguments: Any) -> None:
        """Change the ledger; if that fails, `telling` stays set."""
        self.telling = True
        change(*arguments)
        self.telling = False

    def failed(self, error: Exception, attempts: int) -> Failure:
        """Count a failure.

        Args:
            error: the error.
            attempts: how often a batch is tried.
        """
        self.gone = isinstance(error, RangeGone)
        if self.telling and isinstance(error, StoreUnavailable | OutcomeUnknown):
            self.telling = False
            self.outages += 1
            return Failure(_FAILED, self.outages, attempts)
        self.telling = False
        if isinstance(error, ComputedAgain):
            self.anew += 1
            return Failure(_ANEW, self.anew, _STAGED_ANEW, _TOO_OFTEN.format(self.anew))
        most = tries_of_a_task(self.frame) if interrupted(error) else 0
        if self.interruptions + 1 < most:
            self.interruptions += 1
            return Failure(_INTERRUPTED, self.interruptions, most)
        self.interruptions = 0
        self.failures += 1
        return Failure(_FAILED, self.failures + self.spent, attempts)


def interrupted(error: Exception) -> bool:
    """Whether Spark has lost a task that it does not run again, or another run has moved the mark or taken its place.

    A mark that forbids the batch is a `MarkError`, and no interruption.
    """
    if isinstance(error, MarkMoved) or isinstance(error.__cause__, MarkMoved):
        return True
    return _BARRIER in str(error) and _RAISED not in str(error)


def tries_of_a_task(frame: DataFrame | None) -> int:
    """Return how often Spark tries a task of another stage, before it takes the task for the cause.

    Args:
        frame: a frame of the session; None or without a setting, it is as Spark comes.
    """
    with suppress(Exception):  # Spark may have died, or hide its settings
        return int(str(frame.sparkSession.conf.get(_SETTING, None)))  # type: ignore[union-attr]  # None raises
    return _AS_SPARK_COMES
