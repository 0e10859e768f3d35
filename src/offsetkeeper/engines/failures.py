"""The progress of a run with one batch: what has returned, what failed, and how often or how long that may be.

An output that is away costs no attempt: it is waited for as long as a store.

A try that was interrupted tells nothing of its batch, and may cost no attempt. Spark runs a lost task again, so most
outputs do not fail if an executor is lost. But Spark does not run a lost task of a barrier stage again: the job fails.
`Topic` writes by such a stage. An older run can interrupt a try too: it wakes up, and takes the place of this run in an
output.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from offsetkeeper.core import environment
from offsetkeeper.core.executors import TRACEBACK, error_text
from offsetkeeper.engines.settings import Pace
from offsetkeeper.errors import ComputedAgain, MarkMoved, OutcomeUnknown, RangeGone, StoreUnavailable
from offsetkeeper.sinks.blame import Blame, blame, kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
_BARRIER = "Could not recover from a failed barrier ResultStage"
_SETTING, _AS_SPARK_COMES = "spark.task.maxFailures", 4
# Half of all attempts may lose an executor, and one batch in a thousand ends a run.
_STAGED_ANEW = 10
_TOO_OFTEN = (
    "That was the {}th time for this batch. Find out why Spark loses executors. Then keep shuffled rows outside of "
    "them (an external shuffle service, or decommissioning), or make batches shorter with max_records"
)
_FAILED = "attempt {} of {} failed"
_ANEW = "it is staged anew ({} of {})"
_INTERRUPTED = "it was interrupted ({} of {}), which costs no attempt"
_AWAY = "its output is away since {}, which costs no attempt (try {}, for at most {:g} s)"
_LONGEST_S, _LONGEST_AWAY_S = 30.0, 10.0


class Failure(NamedTuple):
    """A failure of a batch, counted among those of its kind.

    Attributes:
        text: what has failed, and how often, for the log.
        times: number of such failures.
        is_last: whether the run ends with it.
        pause_s: seconds until the next try.
        advice: what the user can do where the run ends; it may be empty.
        away: whether an output is away.
        why: what it answered, or the client said; see `blame.kept`.
    """

    text: str
    times: int
    is_last: bool
    pause_s: float
    advice: str = ""
    away: bool = False
    why: str = ""


def _counted(text: str, times: int, most: int, advice: str = "") -> Failure:
    return Failure(text.format(times, most), times, times >= most, _doubled(times, _LONGEST_S), advice)


def _doubled(times: int, longest_s: float) -> float:
    return float(min(2.0 ** (times - 1), longest_s))


@dataclass(slots=True)
class Course:
    """The progress of a run with a batch.

    Attributes:
        returned: the separate outputs whose write has returned, with the identities of their targets; this run does
            not write them again.
        failures: failures of outputs; each uses up one attempt.
        outages: failures of the store while a change was recorded; they use up no attempt.
        anew: how often Spark has computed a part of the batch again; it uses up no attempt either.
        waits: how often an output was away in a row, which uses up none.
        away_since: when it was first away, by `environment.monotonic`, and by `environment.now_ms`.
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
    waits: int = 0
    away_since: tuple[float, int] | None = None
    interruptions: int = 0
    frame: DataFrame | None = None
    telling: bool = False
    gone: bool = False
    checked: bool = False

    @property
    def tried(self) -> bool:
        """Whether an attempt of this run has failed after it may have written something."""
        return self.failures + self.anew + self.waits + self.interruptions > 0

    def tell(self, change: Callable[..., T], *arguments: Any) -> T:
        """Change the ledger, and return what `change` does; if that fails, `telling` stays set."""
        self.telling = True
        returned = change(*arguments)
        self.telling = False
        return returned

    def failed(self, error: Exception, pace: Pace) -> Failure:
        """Count a failure.

        Args:
            error: the error.
            pace: how often a batch is tried, and how long an output may be away.
        """
        self.gone = isinstance(error, RangeGone)
        if self.telling and isinstance(error, StoreUnavailable | OutcomeUnknown):
            self.telling = False
            self.outages += 1
            return _counted(_FAILED, self.outages, pace.attempts)
        self.telling = False
        if isinstance(error, ComputedAgain):
            self.anew += 1
            return _counted(_ANEW, self.anew, _STAGED_ANEW, _TOO_OFTEN.format(self.anew))
        most = tries_of_a_task(self.frame) if interrupted(error) else 0
        if self.interruptions + 1 < most:
            self.interruptions += 1
            return _counted(_INTERRUPTED, self.interruptions, most)
        self.interruptions = 0
        if blame(error) is Blame.AWAY:
            return self._away(pace, kept(error))
        self.waits, self.away_since = 0, None
        self.failures += 1
        return _counted(_FAILED, self.failures + self.spent, pace.attempts)

    def _away(self, pace: Pace, why: str) -> Failure:
        now = environment.monotonic()
        self.away_since = self.away_since or (now, environment.now_ms())
        self.waits += 1
        since, since_ms = self.away_since
        left_s, pause_s = since + pace.retry_timeout_s - now, _doubled(self.waits, _LONGEST_AWAY_S)
        is_last = left_s <= 0 and self.waits + self.spent >= pace.attempts
        at = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(" ", "seconds")
        text = _AWAY.format(at, self.waits, pace.retry_timeout_s)
        return Failure(text, self.waits, is_last, min(pause_s, left_s) if left_s > 0 else pause_s, away=True, why=why)


def interrupted(error: Exception) -> bool:
    """Whether Spark has lost a task that it does not run again, or another run has moved the mark or taken its place.

    A mark that forbids the batch is a `MarkError`, and no interruption.
    """
    if isinstance(error, MarkMoved) or isinstance(error.__cause__, MarkMoved):
        return True
    text = error_text(error)
    return _BARRIER in text and TRACEBACK not in text  # no code has raised in the task: it was lost


def tries_of_a_task(frame: DataFrame | None) -> int:
    """Return how often Spark tries a task of another stage, before it takes the task for the cause.

    Args:
        frame: a frame of the session; None or without a setting, it is as Spark comes.
    """
    with suppress(Exception):  # Spark may have died, or hide its settings
        return int(str(frame.sparkSession.conf.get(_SETTING, None)))  # type: ignore[union-attr]  # None raises
    return _AS_SPARK_COMES
