"""A first batch that is planned before Spark runs it: from offsets on, with a watermark. Pure.

Spark runs a batch that `offsets/0` has and `commits/0` lacks, with the watermark and the settings in that file. So a
new checkpoint can begin with the watermark of an old one: what was late there is late here, and what was closed stays
closed.

The source: MicroBatchExecution.populateStartOffsets and OffsetSeqMetadata of Spark 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from offsetkeeper.checkpoint.log_format import (
    STARTS,
    OffsetLog,
    Offsets,
    dump_initial_offsets,
    dump_metadata,
    dump_offset_log,
    dump_offsets,
)
from offsetkeeper.core.offsets import by_topic

SETTINGS = (
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled",
    "spark.sql.function.protobufExtensions.enabled",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    "spark.sql.streaming.join.stateFormatVersion",
    "spark.sql.streaming.multipleWatermarkPolicy",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
    "spark.sql.streaming.stateStore.compression.codec",
    "spark.sql.streaming.stateStore.encodingFormat",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion",
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion",
    "spark.sql.streaming.stateStore.rowChecksum.enabled",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled",
    "spark.sql.streaming.statefulOperator.useStrictDistribution",
)
"""The settings that Spark keeps with a query. It takes one that is not there as its oldest release had it."""


def first_batch(
    query_id: str,
    starts: Offsets,
    ends: Offsets,
    metadata: Mapping[str, Any],
    *,
    packed: bool,
) -> dict[str, bytes]:
    """Return the files of a checkpoint with a first batch that is planned and not run, in the order to write them.

    Args:
        query_id: id of the query, new.
        starts: where the batch begins in each partition.
        ends: where it ends in each partition.
        metadata: watermark, time and settings of the batch: `batchWatermarkMs`, `batchTimestampMs` and `conf`.
        packed: whether the packed source reads the batch; else Spark's own.
    """
    text = json.dumps(by_topic(ends)) if packed else dump_offsets(ends)  # as each source writes it: Spark compares text
    conf = {**metadata["conf"], STARTS: dump_offsets(starts)}
    log = OffsetLog(1, {**metadata, "conf": conf}, {"0": text})
    source = {} if packed else {"sources/0/0": dump_initial_offsets(starts)}
    return {"metadata": dump_metadata(query_id), **source, "offsets/0": dump_offset_log(log)}
