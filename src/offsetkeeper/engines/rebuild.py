"""Builds the state of a query again in a new checkpoint, after the old one is lost.

The ledger has the watermark with which the last batch of the query ran. What was emitted with it is in the output, and
no record of an open window is further before it than the window is long. So the new checkpoint begins with a batch that
is planned here: from the first record of an open window to the ledger's positions, with that watermark. Spark runs it;
its output is dropped, as that of any batch that the ledger counts as done; and the query goes on from its state.
"""

from __future__ import annotations

import io
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.checkpoint.files import WritableFolder
from offsetkeeper.checkpoint.first_batch import SETTINGS, first_batch
from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core import environment
from offsetkeeper.core.duration import time_text
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.core.plan import Plan
from offsetkeeper.engines.query_state import LIST_LENGTH, query_state
from offsetkeeper.engines.settings import QueryRun
from offsetkeeper.engines.unbroken import REBUILDS, Offsets, unbroken
from offsetkeeper.errors import BrokerUnavailable, CheckpointMismatch, SettingsError, listed
from offsetkeeper.readers import StreamStart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("offsetkeeper")
NO_WATERMARK = (
    "The ledger has no watermark for these positions, so OnMismatch(state='rebuild') cannot rebuild the state: the "
    "last batch is not of a query with a watermark, or was its first batch, or an older release committed it, or a "
    "position has moved since"
)
_LONGEST_LIST = 2**31 - 1  # columns
_LONG = Lock()  # two starts in one session would set it back for each other
_ELSE = "give offsets= to build new state from there, or OnMismatch(state='empty')"


class Reach(NamedTuple):
    """Which records a state is built again from, and whether the output has their results already.

    Attributes:
        seconds: how far before the watermark, by timestamps in Kafka, records of open windows may be.
        early: why the query emits a result before its window ends; empty if it does not.
    """

    seconds: float
    early: str = ""


def reach(
    asked: QueryRun, spark: SparkSession, query: Callable[[DataFrame], DataFrame] | None, output_mode: str
) -> Reach:
    """Return which records the state of a query can be built again from.

    Args:
        asked: the settings of the query.
        spark: the session.
        query: the user's function; Spark tells what state it keeps.
        output_mode: that of the query.

    Raises:
        SettingsError: it is not known for this query, or the settings do not fit it.
    """
    wish = asked.on_mismatch
    if query is None:
        raise SettingsError("OnMismatch(state='rebuild') works with Pipeline.start and query=, which tell what is kept")
    if output_mode.lower() not in {"append", "update"}:
        raise SettingsError(f"state='rebuild': in output mode {output_mode!r} a state never ends. Instead {_ELSE}")
    frame = query(asked.run.reader.stream(spark, StreamStart(asked.run.subscription.topics, {})))
    text = io.StringIO()
    with _long_lists(spark), redirect_stdout(text):
        frame.explain("extended")
    found = query_state(text.getvalue())
    window = found.reach_s if wish.window_s is None else wish.window_s
    if window is None:
        raise SettingsError(
            "Spark does not tell how long the windows of the query are: give OnMismatch(state='rebuild', window_s=…), "
            "the seconds of the longest one"
        )
    if found.reach_s is not None and window < found.reach_s:
        raise SettingsError(f"window_s={window:g} is shorter than a window of the query, of {found.reach_s:g} s")
    if not found.in_kafka and wish.ahead_s is None:
        raise SettingsError(
            "the event time of the query is not the column timestamp of the records, and Kafka finds records by that "
            "one: give OnMismatch(state='rebuild', ahead_s=…), by how many seconds at most an event time is ahead of it"
        )
    early = "dropDuplicates" if found.at_once else "output mode update" if output_mode.lower() == "update" else ""
    return Reach(window + (wish.ahead_s or 0), early)


@contextmanager
def _long_lists(spark: SparkSession) -> Iterator[None]:
    """Let Spark write lists into a text as long as they are: by itself it leaves out what comes after 25 columns."""
    with _LONG:
        before = str(spark.conf.get(LIST_LENGTH))
        with suppress(Exception):  # a server may forbid it: a list that is cut then is refused, if there is one
            spark.conf.set(LIST_LENGTH, _LONGEST_LIST)
        try:
            yield
        finally:
            with suppress(Exception):
                spark.conf.set(LIST_LENGTH, before)


class Again(NamedTuple):
    """Which records the first batch of the new checkpoint reads, and where it is written.

    Attributes:
        folder: that of the checkpoint.
        watermark_ms: the watermark that it begins with.
        starts, ends: its offsets.
        gone: why records of open windows may be deleted, if a policy accepts that; else empty.
    """

    folder: WritableFolder
    watermark_ms: int
    starts: Offsets
    ends: Offsets
    gone: str


def read_again(
    asked: QueryRun, spark: SparkSession, plan: Plan, found: Snapshot, reach: Reach, history: Sequence[Entry]
) -> Again:
    """Return which records build the state again. Nothing is changed.

    Args:
        asked: the settings of the query; its checkpoint has no batch.
        spark: the session.
        plan: the plan of the start.
        found: the ledger when the query starts.
        reach: as `reach` returns it.
        history: the ledger's history up to then, newest first.

    Raises:
        CheckpointMismatch: the ledger has no watermark, Kafka may have deleted records of open windows, the history
            does not show that the query has read them, or the output may lack what is dropped.
        SettingsError: the checkpoint cannot be written from here.
        BrokerUnavailable, NotAuthorized, UnknownTopic: see `errors`.
    """
    _check_emitted(asked, reach.early)
    folder = asked.open_folder(spark, asked.checkpoint)
    if not isinstance(folder, WritableFolder):
        raise SettingsError(f"{asked.place} can only be read from here, so no state can be rebuilt: {_ELSE}")
    if found.watermark_ms is None:
        raise CheckpointMismatch(f"{asked.place} has no batch. {NO_WATERMARK}. Instead {_ELSE}")
    if old := [name for name in ("commits", "state") if folder.names(name)]:
        raise CheckpointMismatch(
            f"{asked.place} has no batch, but files in {old[0]}: delete the folder, and start again"
        )
    ends = {row.topic_partition: found.positions[row.topic_partition].offset for row in _read(plan)}
    starts, gone = _starts(asked, plan, ends, found.watermark_ms - int(reach.seconds * 1000) - 1)
    return Again(folder, found.watermark_ms, _unbroken(asked, history, starts, ends), ends, gone)


def _check_emitted(asked: QueryRun, early: str) -> None:
    """Check that the output has the results of open windows, where the query emits them before the windows end.

    Raises:
        CheckpointMismatch: no one says so.
    """
    if early and not asked.on_mismatch.unchanged:
        raise CheckpointMismatch(
            f"the state of {asked.place} cannot be rebuilt for sure: {early} emits a result before its window ends, "
            "and the results of the records that are read again are dropped, because the output has them. Of another "
            "query, or another output mode, it has not. OnMismatch(state='rebuild', unchanged=True) says that the "
            f"query that committed last is this one, in this output mode; or {_ELSE}"
        )


def begin(
    asked: QueryRun, spark: SparkSession, ledger: Ledger, plan: Plan, reach: Reach, history: Sequence[Entry]
) -> None:
    """Plan the first batch of a new checkpoint, which builds the state again, and count it as done in the ledger.

    Args:
        asked: the settings of the query; its checkpoint has no batch.
        spark: the session.
        ledger: ledger of the group, owned.
        plan: the plan of the start; its positions are in the ledger.
        reach: as `reach` returns it.
        history: the ledger's history, newest first.

    Raises:
        StoreUnavailable, Refused: the folder of the checkpoint cannot be written.
        See `read_again`: the guard has asked it before the group was taken, and what it found may have changed since.
    """
    folder, watermark_ms, starts, ends, gone = read_again(asked, spark, plan, ledger.snapshot, reach, history)
    if gone:
        log.warning("group %r: %s", ledger.group, gone)
    query_id = str(uuid.UUID(hex=environment.token(16), version=4))
    metadata: dict[str, Any] = {
        "batchWatermarkMs": watermark_ms,
        "batchTimestampMs": environment.now_ms(),
        "conf": _settings(spark),
    }
    files = first_batch(query_id, starts, ends, metadata, packed=asked.packed)
    size = sum(ends.values()) - sum(starts.values())
    reason = f"{REBUILDS} at the watermark {time_text(watermark_ms)}, from {size} offsets before the positions"
    log.warning("group %r: %s; their output is dropped, because the output has it", ledger.group, reason)
    ledger.place({}, reason=reason, queries={query_id: 1})
    for name, content in files.items():
        ledger.check_held()
        folder.write(name, content)


def started(asked: QueryRun, spark: SparkSession, positions: Positions) -> Positions:
    """Return where a query begins: the positions, or where the first batch begins if that is planned and not done."""
    if not asked.stateful:
        return positions
    topics = asked.run.subscription.topics
    found = BatchLog(asked.open_folder(spark, asked.checkpoint), topics, {}, asked.packed)
    planned = found.planned_starts() if found.newest() == (0, False) else {}
    return {
        tp: at._replace(offset=planned[tp], leader_epoch=None) if tp in planned else at for tp, at in positions.items()
    }


def _read(plan: Plan) -> list[Any]:
    return [row for row in plan.rows if row.start is not None]


def _starts(
    asked: QueryRun, plan: Plan, ends: dict[TopicPartition, int], since_ms: int
) -> tuple[dict[TopicPartition, int], str]:
    """Return the first offset of each partition whose record may be of an open window, and `gone` of `Again`."""
    cluster = asked.run.cluster
    found = asked.run.pace.patiently(BrokerUnavailable, lambda: cluster.offsets_for_times(ends, max(0, since_ms)))
    starts = {tp: min(found[tp], end) for tp, end in ends.items()}
    begins = {row.topic_partition: row.bounds.beginning for row in _read(plan) if row.bounds is not None}
    gone = [tp for tp, start in sorted(starts.items()) if 0 < start <= begins.get(tp, 0)]
    # Of those that Kafka no longer has, all records are gone.
    gone += [row.topic_partition for row in plan.rows if row.start is None and row.stored is not None]
    if not gone:
        return starts, ""
    since = time_text(max(0, since_ms))
    why = f"Kafka holds no record before {since} of {listed(gone, ', ')}: records of open windows may be deleted"
    if asked.run.subscription.policies.below_beginning == "stop":
        raise CheckpointMismatch(
            f"the state of {asked.place} cannot be rebuilt for sure: {why}. Policies(below_beginning='beginning') "
            f"accepts that these windows lack them; or {_ELSE}"
        )
    return starts, why


def _unbroken(asked: QueryRun, history: Sequence[Entry], starts: Offsets, ends: Offsets) -> Offsets:
    """Return the starts, not before those of the query; check that it has read all records from there on."""
    found = unbroken(history, starts, ends)
    if found.why and not (found.short and asked.on_mismatch.read_all):
        way = "OnMismatch(read_all=True) says that this query has read all of them; or " if found.short else ""
        raise CheckpointMismatch(f"the state of {asked.place} cannot be rebuilt for sure: {found.why}; {way}{_ELSE}")
    return found.starts


def _settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings that Spark keeps with a query, as they are in the session."""
    found = {}
    for name in SETTINGS:
        try:
            found[name] = str(spark.conf.get(name))
        except Exception as error:  # each release has its own class for it
            if "SQL_CONF_NOT_FOUND" not in str(error):
                raise
    return found
