"""The structured engine: Spark plans the batches and keeps the state; the ledger follows each batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.offsets import Positions
from offsetkeeper.core.plan import Plan
from offsetkeeper.core.spark_session import is_connect
from offsetkeeper.core.urls import shown_location
from offsetkeeper.engines import rebuild
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.checkpoint_guard import CheckpointGuard
from offsetkeeper.engines.checkpoint_match import OnMismatch, sources_changed
from offsetkeeper.engines.foreach_batch import ForeachBatch
from offsetkeeper.engines.loop import Loop, release
from offsetkeeper.engines.progress import QueryProgress, Watch, watch
from offsetkeeper.engines.settings import QueryRun
from offsetkeeper.engines.stop import spark_gone, telling_spark_gone
from offsetkeeper.engines.workers import check_workers
from offsetkeeper.errors import GuaranteeRefused, SettingsError, SparkGone
from offsetkeeper.readers import StreamStart, reading_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("offsetkeeper")
Trigger = Mapping[str, Any]
Builder = Callable[["DataFrame"], "DataFrame"]
"""The user's function from the streaming frame of records to another one."""
_TRIGGERS = {"processingTime", "availableNow", "once"}


def open_stream(engine: Loop, asked: QueryRun, query: Builder | None = None, output_mode: str = "append") -> Stream:
    """Take the group, store the start positions of the query, and return the parts of the query.

    Args:
        engine: takes the group, and finishes the batch that an earlier run began.
        asked: the settings of the query.
        query: the user's function, if the query is known: from it Spark tells which state can be built again.
        output_mode: that of the query.

    Raises:
        CheckpointMismatch: the checkpoint does not match the ledger, see `CheckpointGuard`.
        StartRefused, GuaranteeRefused, SettingsError: see `Pipeline.start`; nothing was changed.
    """
    _check_settings(engine, asked)
    try:
        return _open_stream(engine, asked, query, output_mode)
    except BaseException:
        engine.ledger.store.close()
        raise


def _open_stream(engine: Loop, asked: QueryRun, query: Builder | None, output_mode: str) -> Stream:
    asked = _with_reader(engine, asked)
    check_workers(engine.spark, asked.run.worker_modules, asked.run.worker_variables)
    guard = CheckpointGuard(asked, engine.spark, engine.ledger)
    if asked.on_mismatch.state == "rebuild" and guard.begins():
        guard = replace(guard, reach=rebuild.reach(asked, engine.spark, query, output_mode))
    plan = engine.take(guard)
    try:
        if guard.reach is not None and guard.begins() and guard.lacks(plan):
            rebuild.begin(asked, engine.spark, engine.ledger, plan, guard.reach, guard.history())
        return _stream(engine, asked, plan)
    except BaseException as error:
        release(engine.ledger, error)
        raise


def start_query(
    engine: Loop,
    asked: QueryRun,
    query: Builder | None,
    trigger: Trigger | None,
    output_mode: str,
    name: str | None,
    on_progress: Callable[[QueryProgress], None] | None = None,
) -> Query:
    """Open the stream and start a query on it.

    Raises:
        SettingsError: the trigger has no batches.
        CheckpointMismatch, StartRefused, GuaranteeRefused: see `open_stream`.
    """
    interval_s = asked.run.pace.interval_s
    usual = {} if interval_s is None else {"processingTime": f"{interval_s * 1000:.0f} milliseconds"}
    given = usual if trigger is None else dict(trigger)
    if not given.keys() <= _TRIGGERS or len(given) > 1:
        raise SettingsError(
            f"trigger={given!r}: use {{'processingTime': '10 seconds'}} or {{'availableNow': True}}; "
            "with other triggers there are no batches to commit"
        )
    stream = open_stream(engine, asked, query, output_mode)
    watching = None if on_progress is None else watch(engine.spark, on_progress)
    try:
        frame = stream.records if query is None else query(stream.records)
        writer = frame.writeStream.foreachBatch(stream.write).outputMode(output_mode)
        writer = writer.option("checkpointLocation", asked.checkpoint)
        writer = writer.trigger(**given) if given else writer
        writer = writer.queryName(name) if name else writer
        started = writer.start()
        if watching is not None:
            watching.follow(started)
        return Query(started, stream, watching)
    except BaseException as raised:
        if watching is not None:
            watching.close()
        with closing(stream):
            error = stream.ended_by(raised)
        if error is raised:
            raise
        raise error from raised


class Stream:
    """The two parts for your own query; as a context manager, it releases the group at the end.

    Attributes:
        records: a streaming frame with the columns of Spark's Kafka source. It starts at the ledger's positions.
        write: the function for `foreachBatch`.
        checkpoint: the value for `option("checkpointLocation", …)`.
    """

    def __init__(self, records: DataFrame, write: ForeachBatch, checkpoint: str, delivery: Delivery) -> None:
        self.records = records
        self.write = write
        self.checkpoint = checkpoint
        self._delivery: Delivery | None = delivery
        self._error: BaseException | None = None

    def close(self) -> None:
        """Release the group after the query has ended. It may be called again."""
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            return
        self.write.close()
        if not self.write.wait(delivery.asked.pace.retry_timeout_s):
            log.warning("a batch of group %r is still running: the group is not released", delivery.ledger.group)
            return
        try:
            release(delivery.ledger, self.write.error or self._error, rejoin=True)
        finally:
            delivery.ledger.store.close()

    def error(self, raised: Exception) -> BaseException:
        """Return the original error of a batch from Spark's error, or ours for what Spark says of the checkpoint."""
        found = self.write.error or reading_error(raised) or sources_changed(raised, shown_location(self.checkpoint))
        self._error = found or spark_gone(raised) or raised
        return self._error

    def ended_by(self, raised: BaseException) -> BaseException:
        """Return `error` of what Spark has raised, and any other error as it is; the history gets its class."""
        if isinstance(raised, Exception) and _is_of_spark(raised):
            return self.error(raised)
        self._error = raised
        return raised

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: object) -> None:
        """Release the group; where Spark ended the block with an error, raise `error` of it instead."""
        with closing(self):
            told = raised and self.ended_by(raised)
        if told is not None and told is not raised:
            raise told from raised


class Query:
    """Spark's streaming query, as `Pipeline.start` returns it; as a context manager, it stops the query at the end.

    It has all attributes of Spark's `StreamingQuery`. Methods that end the query release the group, and raise the
    original error of a batch.
    """

    def __init__(self, query: StreamingQuery, stream: Stream, watch: Watch | None = None) -> None:
        self._query = query
        self._stream = stream
        self._watch = watch

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query ends, or for `timeout` seconds; with a timeout, return whether it has ended.

        Raises:
            CheckpointMismatch: ledger and checkpoint do not match; nothing was written.
            Fenced: another run has taken the group.
            SparkGone: Spark and the query have died; the group is released.
            OffsetkeeperError: see the tree in `errors`.
            Exception: the error of the output, or Spark's own error.
        """
        return self._told(lambda: self._query.awaitTermination(timeout))

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until everything that is now in Kafka is processed. It raises the errors of `awaitTermination`."""
        self._told(self._query.processAllAvailable)

    def stop(self) -> None:
        """Stop the query: the current batch is finished or left uncommitted, and the group is released.

        Raises:
            SparkGone: Spark and the query have died; the group is released.
        """
        try:
            with telling_spark_gone():
                self._query.stop()
        except SparkGone as gone:
            self._stream.ended_by(gone)
            self._close(gone=True)
            raise
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: object) -> None:
        if raised is not None:
            self._stream.ended_by(raised)
        if kind is not SparkGone:  # already raised, and everything is closed
            self.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def _told(self, call: Callable[[], bool | None]) -> bool | None:
        with self._ending():
            try:
                return call()
            except Exception as raised:
                error = self._stream.error(raised)
                if error is raised:
                    raise
                raise error from raised

    @contextmanager
    def _ending(self) -> Iterator[None]:
        gone = False
        try:
            yield
        except SparkGone:
            gone = True  # do not ask Spark again: with Spark Connect each request would take ten minutes
            raise
        finally:
            if gone or self._has_ended():
                self._close(gone=gone)

    def _has_ended(self) -> bool:
        try:
            return not self._query.isActive
        except Exception as error:
            if spark_gone(error) is None:
                raise
            return True

    def _close(self, *, gone: bool = False) -> None:
        try:
            if self._watch is not None:
                self._watch.close(gone=gone)
        finally:
            self._stream.close()


def _is_of_spark(error: Exception) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _check_settings(engine: Loop, asked: QueryRun) -> None:
    if not isinstance(asked.checkpoint, str) or not asked.checkpoint:
        raise SettingsError("no checkpoint: give the folder in which Spark keeps the query's progress")
    if not isinstance(asked.on_mismatch, OnMismatch):
        raise SettingsError(f"on_mismatch={asked.on_mismatch!r}: write OnMismatch(hole='follow'), for example")
    if asked.run.dead_letters is not None:
        raise SettingsError(
            "Policies(poison='quarantine') works only with Pipeline.run: the checkpoint of a query fixes the content "
            "of a batch, so the batch cannot be cut"
        )
    url = asked.run.store_url
    if is_connect(engine.spark) and (url is None or url.startswith("memory:")):
        raise GuaranteeRefused(
            "with Spark Connect another process writes the batches, so it must be able to open the store: give "
            f"the store as a URL that is not in memory, instead of {engine.ledger.store.address}"
        )


def _with_reader(engine: Loop, asked: QueryRun) -> QueryRun:
    """Return the settings with a reader that works for a query here; a run's pending batch keeps the run's reader."""

    def connector_began() -> bool:
        folder = asked.open_folder(engine.spark, asked.checkpoint)
        return BatchLog(folder, asked.run.subscription.topics, {}, packed=False).connector_began()

    reader = asked.run.reader.for_query(engine.spark, _start(asked, {}), connector_began)
    return replace(asked, run=replace(asked.run, reader=reader))


def _start(asked: QueryRun, positions: Positions) -> StreamStart:
    subscription = asked.run.subscription
    new_topics = subscription.policies.new_topics
    return StreamStart(subscription.topics, positions, asked.run.pace.limits, new_topics, whole=asked.stateful)


def _stream(engine: Loop, asked: QueryRun, plan: Plan) -> Stream:
    run, stored = asked.run, engine.ledger.snapshot.positions
    positions = {row.topic_partition: stored[row.topic_partition] for row in plan.rows if row.start is not None}
    start = _start(asked, rebuild.started(asked, engine.spark, positions))
    records = run.reader.stream(engine.spark, start)
    engine.batches.delivery.asked = run  # from here on its reader may be another
    foreach_batch = ForeachBatch(asked, start, engine.ledger.owner_id, engine.batches.delivery)
    if not is_connect(engine.spark):
        foreach_batch.open()
    return Stream(records, foreach_batch, asked.checkpoint, engine.batches.delivery)
