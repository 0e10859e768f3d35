"""Whether the sources of a running query are those of its checkpoint, in the same order.

Spark gives each source the offsets that stand in its place of the checkpoint. For a new batch its Kafka source refuses
those of another topic. But a batch that was planned runs again with the offsets it has, and then the source reads them,
of whatever topic they are: two sources that have changed places read each other's records, without an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from offsetkeeper.checkpoint.log_format import kafka_offsets
from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.spark_session import is_connect
from offsetkeeper.engines.checkpoint_match import other_sources
from offsetkeeper.engines.stop import spark_gone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
_OF_JAVA = re.compile(r"&&|\[[^\]]*\[")  # classes of characters that Python reads otherwise; of more it says an error
_KAFKA = re.compile(r"Kafka\w*\[(Subscribe|SubscribePattern|Assign)\[(.*)\]\]")


def check_sources(frame: DataFrame, logs: BatchLog, batch_id: int, place: str) -> None:
    """Check that no source of a query that runs reads the offsets of another one; not with Spark Connect.

    Args:
        frame: that of the batch.
        logs: the checkpoint of the query.
        batch_id: number of the batch.
        place: the checkpoint without credentials.

    Raises:
        CheckpointMismatch: one does.
        CorruptStore: a file of the checkpoint is not what Spark writes.
    """
    planned = logs.offset_log(batch_id).sources
    if len(planned) > 1 and all(name.isdecimal() for name in planned):  # those with names are found by them
        given = [{tp.topic for tp in kafka_offsets(text, f"{place}/offsets/{batch_id}")} for text in planned.values()]
        if found := misplaced(_sources(frame, logs.query_id()), given):
            raise other_sources(
                place,
                f"has planned batch {batch_id} with its sources in another order, or with other ones: {found}. Nothing "
                "of it was written. Start the query as it was",
            )


def misplaced(sources: Sequence[str], given: Sequence[Collection[str]]) -> str:
    """Return which source has the offsets of another one, as text; empty if it is known of none.

    A topic that no source reads any more is none of another source, if its source still reads a topic of its offsets.

    Args:
        sources: Spark's text of each.
        given: the topics of the offsets that each of them gets.
    """
    reads = [_reads(source) for source in sources]
    for number, (mine, topics) in enumerate(zip(reads, given, strict=False)):
        others = {topic for topic in topics if mine is not None and not mine(topic)}
        if others and (others == {*topics} or any(each is not None and each(t) for each in reads for t in others)):
            return f"source {number}, {sources[number]}, would read {', '.join(sorted(topics))}"
    return ""


def _reads(source: str) -> Callable[[str], bool] | None:
    """Return the function that says whether a source reads a topic; None if it is not Kafka's, or not known."""
    found = _KAFKA.fullmatch(source)
    if found is None:
        return None
    how, what = found.groups()
    if how == "SubscribePattern":
        if _OF_JAVA.search(what):
            return None
        try:
            fits = re.compile(what).fullmatch
        except re.error:
            return None
        return lambda topic: fits(topic) is not None
    names = what.split(", ")
    return {name.rpartition("-")[0] if how == "Assign" else name for name in names}.__contains__


def _sources(frame: DataFrame, query_id: str) -> list[str]:
    """Return Spark's text of each source of a query that runs, in their order; empty where Spark does not tell."""
    session = frame.sparkSession
    if is_connect(session):
        return []
    try:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark does not tell the sources of a query
        running = frame._jdf.sparkSession().sharedState().activeStreamingQueries()  # noqa: SLF001 - as above
        sources = running.get(jvm.java.util.UUID.fromString(query_id)).sources()
        return [sources.apply(number).toString() for number in range(sources.size())]
    except Exception as error:
        if spark_gone(error):
            raise
        log.warning(
            "Spark does not tell the sources of the query (%s): if two of them have changed places, nobody notices",
            f"{type(error).__name__}: {error}"[:300],
        )
        return []
