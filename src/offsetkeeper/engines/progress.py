"""Spark's progress reports on a streaming query, for monitoring. They never decide what is processed."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from offsetkeeper.core.spark_session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("offsetkeeper")
_LAST_S = 30.0  # wait for the last report of a query that has ended
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Spark's report on one batch of a streaming query. A crash loses the last reports.

    Attributes:
        query_id: id of the query; it stays the same after a restart from its checkpoint.
        batch_id: Spark's number of the batch.
        records: number of records in the batch.
        arriving: records that arrived per second since the batch before.
        processed: records processed per second.
        seconds: duration of the batch.
        steps: seconds by the names of Spark's steps, such as addBatch, walCommit, latestOffset.
        watermark: the watermark in ISO 8601, or None for a query without one.
        late: rows that were dropped because they came after the watermark.
        state_rows: rows in Spark's state after the batch.
        state_bytes: memory of the state, in bytes.
        json: Spark's whole report.
    """

    query_id: str
    batch_id: int
    records: int
    arriving: float
    processed: float
    seconds: float
    steps: dict[str, float]
    watermark: str | None
    late: int
    state_rows: int
    state_bytes: int
    json: str


OnProgress = Callable[[QueryProgress], None]


class Watch(Protocol):
    """Passes on the reports of one query until it is closed."""

    def follow(self, query: Any) -> None:
        """Pass on the reports of this query, which has just been started."""

    def close(self, *, gone: bool = False) -> None:
        """Pass on the reports so far, then stop. It may be called again. If Spark is gone, it is not asked."""


class Listener:
    """Gets the reports from classic Spark's listener, in a separate thread."""

    def __init__(self, spark: SparkSession, tell: OnProgress) -> None:
        self._spark = spark
        self._tell = tell
        self._run_id = ""
        self._known = threading.Event()
        self._ended = threading.Event()
        self._listener: Any = _listener(self)
        spark.streams.addListener(self._listener)

    def follow(self, query: Any) -> None:
        """See `Watch.follow`."""
        self._run_id = str(query.runId)
        self._known.set()

    def close(self, *, gone: bool = False) -> None:
        """See `Watch.close`. Wait for the last report of a run that has ended."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        if self._known.is_set() and not gone:
            self._ended.wait(_LAST_S)
        self._known.set()
        if not gone:
            self._remove(listener)

    def _remove(self, listener: Any) -> None:
        try:
            self._spark.streams.removeListener(listener)
        except Exception as error:  # noqa: BLE001 - this must not hide the error that ended the query
            log.warning("Spark did not remove the listener of a query: %s", error)

    def progressed(self, progress: Any) -> None:
        """Pass on a report if it is of this query."""
        if self._is_ours(progress.runId):
            tell(self._tell, progress)

    def ended(self, run_id: Any) -> None:
        """Note that no more reports come, if this query has ended."""
        if self._is_ours(run_id):
            self._ended.set()

    def _is_ours(self, run_id: Any) -> bool:
        self._known.wait(_LAST_S)  # the first batch may end before the run id is known here
        return str(run_id) == self._run_id


class Polling:
    """Polls Spark Connect for the reports.

    Its client has listeners too, but PySpark 4.2 waits for their thread while it holds a lock that this thread needs,
    and the thread prevents a program from ending.
    """

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._query: Any = None
        self._told = -1
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def follow(self, query: Any) -> None:
        """See `Watch.follow`."""
        self._query = query
        threading.Thread(target=self._poll, name="offsetkeeper-progress", daemon=True).start()

    def close(self, *, gone: bool = False) -> None:
        """See `Watch.close`."""
        if self._query is not None and not self._stop.is_set():
            self._stop.set()
            if not gone:
                self._look()

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            try:
                found = self._query.recentProgress
            except Exception as error:  # noqa: BLE001 - monitoring must not stop the query
                log.warning("Spark did not report the progress of the query: %s", error)
                return
            for progress in (each for each in found if each.batchId > self._told):
                self._told = progress.batchId
                tell(self._tell, progress)


def watch(spark: SparkSession, on_progress: OnProgress) -> Watch:
    """Return a watch that calls `on_progress` for each batch of a query; create it before the query starts."""
    return Polling(on_progress) if is_connect(spark) else Listener(spark, on_progress)


def tell(on_progress: OnProgress, progress: Any) -> None:
    """Call the function; errors that it raises are logged."""
    try:
        on_progress(query_progress(progress))
    except Exception:
        log.exception("on_progress failed at batch %s; the query goes on", progress.batchId)


def query_progress(told: Any) -> QueryProgress:
    """Return the content of Spark's `StreamingQueryProgress`."""
    states = told.stateOperators
    steps = {name: milliseconds / 1000 for name, milliseconds in told.durationMs.items()}
    return QueryProgress(
        query_id=str(told.id),
        batch_id=told.batchId,
        records=told.numInputRows,
        arriving=_rate(told.inputRowsPerSecond),
        processed=_rate(told.processedRowsPerSecond),
        seconds=steps.get("triggerExecution", told.batchDuration / 1000),
        steps=steps,
        watermark=(told.eventTime or {}).get("watermark"),
        late=sum(state.numRowsDroppedByWatermark for state in states),
        state_rows=sum(state.numRowsTotal for state in states),
        state_bytes=sum(state.memoryUsedBytes for state in states),
        json=told.json,
    )


def _rate(found: float | None) -> float:
    return 0.0 if found is None or not math.isfinite(found) else float(found)


def _listener(to: Listener) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415 - `import offsetkeeper` loads none

    class Ears(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - as above
            to.progressed(event.progress)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - as above
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - as above
            to.ended(event.runId)

    return Ears()
