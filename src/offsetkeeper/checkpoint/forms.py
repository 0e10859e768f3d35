"""Plans that give a checkpoint another form: seeded, in the other format of its offset log, completed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offsetkeeper.checkpoint.contents import Checkpoint, kafka_offsets
from offsetkeeper.checkpoint.edit import Edit, make_edit
from offsetkeeper.checkpoint.log_format import OffsetLog, dump_initial_offsets, dump_offset_log, dump_offsets
from offsetkeeper.core.model import TopicPartition, check_offset, check_partition
from offsetkeeper.errors import NotAllowed, SettingsError

_SOURCE = re.compile("[a-zA-Z0-9_]+")
_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def plan_seed(checkpoint: Checkpoint, offsets: Mapping[str, Mapping[TopicPartition, int]]) -> Edit:
    """Return the plan that makes a new query begin at given offsets, with state or without.

    Only Spark's own Kafka source reads them. It begins partitions that are not named at their beginning.

    Args:
        checkpoint: a folder without batches, which need not be there yet.
        offsets: the first offset to read, by source ("0" is the first in the plan, or its name) and partition.

    Raises:
        NotAllowed: a query has begun in it.
        SettingsError: nothing is given.
    """
    if checkpoint.offsets or checkpoint.commits or checkpoint.state:
        raise NotAllowed(f"{checkpoint.where}: a query has begun here. Seed an empty folder, or move the offsets")
    if not offsets or not all(offsets.values()):
        raise SettingsError("there are no offsets to seed a checkpoint with")
    writes = {}
    for source, given in offsets.items():
        if not _SOURCE.fullmatch(source):
            raise SettingsError(f"{source!r} is no source: give its number in the plan, or its name")
        checked = {check_partition(tp): check_offset(offset) for tp, offset in given.items()}
        writes[f"sources/{source}/0"] = dump_initial_offsets(dump_offsets(checked)).encode()
    note = "partitions that are not named begin at their beginning; a query without Kafka's source passes this over"
    return make_edit(checkpoint, "seed", writes, notes=[note])


def plan_convert(checkpoint: Checkpoint, version: int, sources: Sequence[str] = ()) -> Edit:
    """Return the plan that writes the offset log in the other format, which Spark itself never does.

    With `sources` a query whose sources have names can go on (version 2), or go on without (version 1).

    Args:
        checkpoint: as it is.
        version: 1 or 2.
        sources: ids of the sources, in the order in which the query's plan has them; as they are if none are given.

    Raises:
        NotAllowed: no batch was planned yet; the ids do not fit; a source that would get a name is not Kafka's.
        CorruptStore: a file is torn.
    """
    if version not in {1, 2}:
        raise SettingsError(f"there is no version {version} of the offset log: use 1 or 2")
    if not checkpoint.offsets:
        raise NotAllowed(f"{checkpoint.where}: no batch was planned yet, there is nothing to convert")
    logs = {batch: checkpoint.offset_log(batch) for batch in checkpoint.offsets}
    old = tuple(logs[checkpoint.offsets[-1]].sources)
    renamed = _renamed(checkpoint, old, version, sources)
    converted = {batch: _converted(log, version, renamed) for batch, log in logs.items()}
    writes = {
        f"offsets/{batch}": dump_offset_log(log).encode() for batch, log in converted.items() if log != logs[batch]
    }
    moved = {name: new for name, new in renamed.items() if name != new}
    initial = {name: f"sources/{name}/0" for name in moved if f"sources/{name}/0" in checkpoint.logs}
    writes |= {f"sources/{renamed[name]}/0": checkpoint.logs[file] for name, file in initial.items()}
    deletes = [file for file in initial.values() if file not in writes]
    return make_edit(checkpoint, f"convert to version {version}", writes, deletes)


def plan_complete(checkpoint: Checkpoint) -> Edit:
    """Return the plan that lets a micro-batch query go on from the checkpoint of a continuous one.

    A continuous query leaves the line of metadata empty, at which the other fails.

    Raises:
        CorruptStore: a file is torn.
    """
    logs = {batch: checkpoint.offset_log(batch) for batch in checkpoint.offsets}
    known = [log.metadata for log in logs.values() if log.metadata]
    metadata = known[-1] if known else {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    writes = {
        f"offsets/{batch}": dump_offset_log(replace(log, metadata=metadata)).encode()
        for batch, log in logs.items()
        if not log.metadata
    }
    return make_edit(checkpoint, "complete", writes)


def _renamed(checkpoint: Checkpoint, old: Sequence[str], version: int, given: Sequence[str]) -> dict[str, str]:
    """Return the new id of each source, in the order of the new file."""
    numbers = [str(number) for number in range(len(old))]
    if version == 1:
        order = given or sorted(old, key=lambda name: int(name) if name.isdigit() else -1)
        if sorted(order) != sorted(old) or (not given and sorted(old) != sorted(numbers)):
            raise NotAllowed(f"{checkpoint.where}: give its sources {', '.join(old)} in the order of the query's plan")
        renamed = dict(zip(order, numbers, strict=True))
    else:
        if given and (len(given) != len(old) or len(set(given)) < len(given)):
            raise NotAllowed(f"{checkpoint.where}: it has {len(old)} sources: give as many different names")
        renamed = dict(zip(old, given or old, strict=True))
    last = checkpoint.offset_log(checkpoint.offsets[-1]).sources
    for name, new in renamed.items():
        if name != new and last[name] is not None and not kafka_offsets(last[name], f"source {name}"):
            raise NotAllowed(f"{checkpoint.where}: source {name} is not Kafka's, its files would not be found as {new}")
    return renamed


def _converted(log: OffsetLog, version: int, renamed: Mapping[str, str]) -> OffsetLog:
    metadata: dict[str, Any] = dict(log.metadata)
    if version == 1:
        metadata.pop("sourceMetadataInfo", None)
        metadata.pop("controlBatchInfo", None)
    elif metadata:
        metadata.setdefault("sourceMetadataInfo", {})
    if _EVOLUTION in metadata.get("conf", {}):
        named = not all(name.isdigit() for name in renamed.values())
        metadata["conf"] = {**metadata["conf"], _EVOLUTION: "true" if named else "false"}
    sources = {new: log.sources[name] for name, new in renamed.items() if name in log.sources}
    return OffsetLog(version, metadata, sources)
