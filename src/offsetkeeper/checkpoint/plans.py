"""Plans of changes: the files to write and delete, and what Spark reads afterwards. Pure: nothing changes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from offsetkeeper.checkpoint.contents import Checkpoint, Next, StateStore
from offsetkeeper.checkpoint.log_format import (
    OffsetLog,
    dump_commit,
    dump_initial_offsets,
    dump_metadata,
    dump_offset_log,
    kafka_offsets,
    lowest_offsets,
    move_offsets,
    offsets_by_source,
)
from offsetkeeper.checkpoint.state_ids import lost_ids
from offsetkeeper.core import environment
from offsetkeeper.core.offsets import TopicPartition, check_offset, check_partition
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import CorruptStore, NotAllowed, SettingsError

_SOURCE = re.compile("[a-zA-Z0-9_]+")
_SHOWN = 8
_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
COUNTS_ANEW = (
    "its batches count from 0, and an output that knows the numbers of batches drops those that it has, without an "
    "error: Spark's own file sink by its _spark_metadata, Delta by txnVersion, a table of your own by the batches that "
    "are done. Give it a new folder or a new txnAppId"
)
"""What a new checkpoint means for the output."""


@dataclass(frozen=True, slots=True)
class Step:
    """The effect of a change on one partition.

    Attributes:
        source: the id of the source that reads it.
        topic_partition: the partition.
        old, new: where the query resumes before and after the change; None if its source decides.
    """

    source: str
    topic_partition: TopicPartition
    old: int | None
    new: int | None


@dataclass(frozen=True)
class Edit:
    """A change of a checkpoint that is not executed yet.

    Attributes:
        action: name of the change, for people.
        where: the checkpoint.
        before, after: fingerprints of its logs; a checkpoint that has changed since is refused.
        old, new: the first batch of a query before and after; None if a damaged file hides it.
        writes: content of files, by name.
        deletes: names of files.
        restores: names of files that come from the backup `origin`.
        notes: further remarks.
    """

    action: str
    where: str
    before: str
    after: str
    old: Next | None
    new: Next | None
    writes: Mapping[str, bytes] = field(repr=False)
    deletes: tuple[str, ...] = ()
    restores: tuple[str, ...] = ()
    origin: str = ""
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> list[Step]:
        """Each partition whose position in a source changes or disappears, sorted."""
        old, new = (offsets_by_source(found.starts) if found else {} for found in (self.old, self.new))
        keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return [Step(*key, old.get(key), new.get(key)) for key in keys]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.writes or self.deletes or self.restores)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "action": self.action,
            "checkpoint": self.where,
            "next_batch": {"old": self.old and self.old.batch, "new": self.new and self.new.batch},
            "steps": list(map(plain, self.steps)),
            "writes": sorted(self.writes),
            "deletes": sorted(self.deletes),
            "restores": sorted(self.restores),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"{self.action}: {self.where}", f"next: {_told(self.old)} -> {_told(self.new)}"]
        lines += [f"source {s.source} {s.topic_partition}: {_at(s.old)} -> {_at(s.new)}" for s in self.steps]
        files = (("write", self.writes), ("delete", self.deletes), ("restore", self.restores))
        lines += [f"{verb} {_short(sorted(names))}" for verb, names in files if names]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def plan_move(checkpoint: Checkpoint, targets: Mapping[TopicPartition, int]) -> Edit:
    """Return the plan that moves a query without state to other offsets, by a batch that processes nothing.

    The batch has its own number, so that a number is never used twice. A pending batch (begun, not committed) is given
    up, and the new batch gets its number. Partitions that are not named do not move.

    Args:
        checkpoint: the current checkpoint.
        targets: the next offset to read, by partition.

    Raises:
        NotAllowed: the query has state, no batch yet, or does not read one of the topics.
        CorruptStore: a file that Spark needs at the start is damaged or missing.
    """
    found = checkpoint.next()
    _check_movable(checkpoint)
    last = checkpoint.offsets[-1]
    log = checkpoint.offset_log(last)
    moved = {name: _moved(found.starts.get(name), targets) for name in log.sources}
    _check_read(checkpoint, moved, targets)
    if all(found.starts.get(name) == text for name, text in moved.items()):
        return make_edit(checkpoint, "move", {})
    settings = {**log.metadata, "batchWatermarkMs": found.watermark_ms}
    if found.batch - 1 in checkpoint.offsets:  # by this time `verify` recognises a move
        settings |= _times(checkpoint.offset_log(found.batch - 1))
    done = checkpoint.commits
    commit = checkpoint.logs[f"commits/{done[-1]}"] if done else dump_commit(found.watermark_ms)
    writes = {
        f"offsets/{found.batch}": dump_offset_log(replace(log, metadata=settings, sources=moved)),
        f"commits/{found.batch}": commit,
    }
    given_up = (
        f"batch {last} was begun and never committed: its output stays, it does not run again, and partitions that are "
        "not named are read from its start"
    )
    return make_edit(checkpoint, "move", writes, notes=[given_up] if found.kind == "again" else [])


def plan_truncate(checkpoint: Checkpoint, batch: int, *, query_id: Literal["", "keep", "new"] = "") -> Edit:
    """Return the plan that takes a query back to the end of a batch, with its state of that time.

    The numbers of later batches are used again. Outputs that identify batches by (query id, batch number), such as
    Delta's, would silently drop the replay with the same query id.

    Args:
        checkpoint: the current checkpoint.
        batch: the last batch to keep.
        query_id: "new" if such an output must write the replay, "keep" if it must not write batches twice.

    Raises:
        NotAllowed: `query_id` was not chosen, or the batch or its state no longer exists.
        CorruptStore: a file that Spark would then need is damaged.
    """
    _check_batch(checkpoint, batch)
    deletes = [f"offsets/{n}" for n in checkpoint.offsets if n > batch]
    deletes += [f"commits/{n}" for n in checkpoint.commits if n > batch]
    deletes += checkpoint.state_after(batch + 1)
    if deletes and query_id not in {"keep", "new"}:
        raise NotAllowed(
            f"batches {batch + 1} and later will run again with the same numbers. Choose the query id: new, so that "
            "outputs that identify batches by (query id, batch) write the replay; or keep, so that they drop it"
        )
    checkpoint.changed({}, deletes).next()
    whose = "a new" if query_id == "new" else "the same"
    notes = [
        f"the numbers of batches {batch + 1} and later are used again, with {whose} query id",
        "Spark's own file sink checks only the batch number and always drops the replay; see its _spark_metadata",
    ]
    writes = {"metadata": dump_metadata(_new_id())} if deletes and query_id == "new" else {}
    return make_edit(checkpoint, f"truncate after batch {batch}", writes, deletes, notes=notes if deletes else ())


def _new_id() -> str:
    return str(uuid.UUID(hex=environment.token(16), version=4))


def offsets_after(checkpoint: Checkpoint, batch: int) -> dict[TopicPartition, int]:
    """Return the end of a batch; if several sources read a partition, the lowest offset.

    Raises:
        CorruptStore: the file is damaged or missing.
        NotAllowed: the file is a copy of the next one, see `verify`.
    """
    sources = checkpoint.offset_log(batch).sources
    if _is_copy(checkpoint, batch):
        raise NotAllowed(f"{checkpoint.where}: {_copied(batch)}. Choose another batch")
    return lowest_offsets(sources, lambda name: checkpoint.at(f"offsets/{batch}, source {name}"))


def plan_seed(checkpoint: Checkpoint, offsets: Mapping[str, Mapping[TopicPartition, int]]) -> Edit:
    """Return the plan that makes a new query start at given offsets, with state or without.

    Only Spark's own Kafka source reads them. It starts other partitions at their beginning.

    Args:
        checkpoint: a folder without batches, which need not exist yet.
        offsets: the first offset to read, by source ("0" is the first in the plan, or its name) and partition.

    Raises:
        NotAllowed: a query has begun in it.
        SettingsError: no offsets are given.
    """
    if checkpoint.offsets or checkpoint.commits or checkpoint.state:
        raise NotAllowed(f"{checkpoint.where}: a query has begun here. Seed an empty folder, or move the offsets")
    if not offsets or not all(offsets.values()):
        raise SettingsError("no offsets were given to seed a checkpoint with")
    writes = {}
    for source, given in offsets.items():
        if not _SOURCE.fullmatch(source):
            raise SettingsError(f"{source!r} is not a source: give its number in the plan, or its name")
        checked = {check_partition(tp): check_offset(offset) for tp, offset in given.items()}
        writes[f"sources/{source}/0"] = dump_initial_offsets(checked)
    notes = [
        "partitions that are not named start at their beginning; only a query with Spark's Kafka source reads a seed",
        f"if an output had rows of an older query: {COUNTS_ANEW}",
        "the checkpoint of an older query without state keeps its numbers: checkpoint move --from-file",
    ]
    return make_edit(checkpoint, "seed", writes, notes=notes)


def plan_convert(checkpoint: Checkpoint, version: int, sources: Sequence[str] = ()) -> Edit:
    """Return the plan that converts the offset log to the other format; Spark itself never does this.

    With `sources`, a query whose sources have names can resume (version 2), or resume without names (version 1).

    Args:
        checkpoint: the current checkpoint.
        version: 1 or 2.
        sources: ids of the sources, in the order of the query's plan; without them, the ids do not change.

    Raises:
        NotAllowed: no batch was planned yet; the ids do not fit; or a source that gets a name is not a Kafka source.
        CorruptStore: a file is torn.
    """
    if version not in {1, 2}:
        raise SettingsError(f"unknown version {version} of the offset log: use 1 or 2")
    if not checkpoint.offsets:
        raise NotAllowed(f"{checkpoint.where}: no batch was planned yet, so there is nothing to convert")
    logs = {batch: checkpoint.offset_log(batch) for batch in checkpoint.offsets}
    old = tuple(logs[checkpoint.offsets[-1]].sources)
    renamed = _renamed(checkpoint, old, version, sources)
    converted = {batch: _converted(log, version, renamed) for batch, log in logs.items()}
    writes = {f"offsets/{batch}": dump_offset_log(log) for batch, log in converted.items() if log != logs[batch]}
    moved = {name: new for name, new in renamed.items() if name != new}
    initial = {name: f"sources/{name}/0" for name in moved if f"sources/{name}/0" in checkpoint.logs}
    writes |= {f"sources/{renamed[name]}/0": checkpoint.logs[file] for name, file in initial.items()}
    deletes = [file for file in initial.values() if file not in writes]
    return make_edit(checkpoint, f"convert to version {version}", writes, deletes)


def plan_complete(checkpoint: Checkpoint) -> Edit:
    """Return the plan that lets a micro-batch query resume from the checkpoint of a continuous query.

    A continuous query leaves the metadata line empty, and a micro-batch query fails on that.

    Raises:
        CorruptStore: a file is torn.
    """
    logs = {batch: checkpoint.offset_log(batch) for batch in checkpoint.offsets}
    known = [log.metadata for log in logs.values() if log.metadata]
    metadata = known[-1] if known else {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    writes = {
        f"offsets/{batch}": dump_offset_log(replace(log, metadata=metadata))
        for batch, log in logs.items()
        if not log.metadata
    }
    return make_edit(checkpoint, "complete", writes)


def make_edit(
    checkpoint: Checkpoint,
    action: str,
    writes: Mapping[str, bytes],
    deletes: Sequence[str] = (),
    *,
    restores: Sequence[str] = (),
    origin: str = "",
    notes: Sequence[str] = (),
) -> Edit:
    """Return the change, with Spark's first batch before and after it.

    Raises:
        NotAllowed: an earlier change was interrupted, and this is not its undo.
    """
    if checkpoint.barrier and not origin:
        raise NotAllowed(f"{checkpoint.where}: a change was not finished. Undo it first")
    after = checkpoint.changed(writes, deletes)
    changes = {name: content for name, content in writes.items() if checkpoint.logs.get(name) != content}
    edit = Edit(
        action, checkpoint.where, checkpoint.fingerprint, after.fingerprint, _next(checkpoint), _next(after), changes
    )
    return replace(edit, deletes=tuple(deletes), restores=tuple(restores), origin=origin, notes=tuple(notes))


def _times(log: OffsetLog) -> dict[str, Any]:
    return {name: value for name, value in log.metadata.items() if name == "batchTimestampMs"}


def _check_movable(checkpoint: Checkpoint) -> None:
    if not checkpoint.offsets:
        raise NotAllowed(f"{checkpoint.where}: no batch was planned yet. Seed it instead, or set startingOffsets")
    if checkpoint.stateful:
        raise NotAllowed(
            f"{checkpoint.where}: the query keeps state, and its state belongs to its offsets. Truncate to a batch "
            "whose state still exists, or seed a new checkpoint and build new state"
        )
    if (ahead := max(checkpoint.commits, default=-1)) > checkpoint.offsets[-1]:
        raise NotAllowed(
            f"{checkpoint.where}: batch {ahead} is committed without offsets. First correct this, see checkpoint verify"
        )
    if not checkpoint.offset_log(checkpoint.offsets[-1]).metadata:
        raise NotAllowed(f"{checkpoint.where}: a continuous query wrote it. Run checkpoint complete first")


def _moved(text: str | None, targets: Mapping[TopicPartition, int]) -> str | None:
    offsets = kafka_offsets(text, "the source")
    topics = {tp.topic for tp in offsets}
    ours = {tp: check_offset(offset) for tp, offset in targets.items() if tp.topic in topics}
    return text if text is None or ours.items() <= offsets.items() else move_offsets(text, ours)


def _check_read(checkpoint: Checkpoint, moved: Mapping[str, str | None], targets: Mapping[TopicPartition, int]) -> None:
    reached = {tp for text in moved.values() for tp in kafka_offsets(text, "the source")}
    if missing := sorted(targets.keys() - reached):
        raise NotAllowed(f"{checkpoint.where}: no source of the query has begun to read topic {missing[0].topic}")


def _check_batch(checkpoint: Checkpoint, batch: int) -> None:
    planned = set(checkpoint.offsets)
    both = planned & set(checkpoint.commits)
    whole = sorted(n for n in both if n == 0 or n - 1 in planned)  # without n-1 Spark does not start
    whole = [n for n in whole if not _is_copy(checkpoint, n)]
    if batch not in whole:
        why = f" ({_copied(batch)})" if _is_copy(checkpoint, batch) else ""
        raise NotAllowed(
            f"{checkpoint.where}: batch {batch} cannot be the last one{why}; possible batches: {_listed(whole)}"
        )
    stores = checkpoint.state_stores()
    if missing := _without(checkpoint, stores, batch):
        kept = [n for n in whole if not _without(checkpoint, stores, n)]
        raise NotAllowed(
            f"{checkpoint.where}: {missing[0]} no longer has version {batch + 1}, which the query needs after batch "
            f"{batch}. Batches with their state: {_listed(kept)}"
        )


def _is_copy(checkpoint: Checkpoint, batch: int) -> bool:
    """Whether a file of `offsets` is a copy of the next one, which took the place of a lost one.

    Spark writes no two alike, as each has its time; only a continuous query writes no time.
    """
    content = checkpoint.logs.get(f"offsets/{batch}")
    if content is None or content != checkpoint.logs.get(f"offsets/{batch + 1}"):
        return False
    try:
        return bool(_times(checkpoint.offset_log(batch)).get("batchTimestampMs"))
    except CorruptStore:
        return False  # both are empty, or cut off


def _copied(batch: int) -> str:
    return f"offsets/{batch} is a copy of offsets/{batch + 1}, so where batch {batch} ended is not known"


def _without(checkpoint: Checkpoint, stores: Sequence[StateStore], batch: int) -> list[str]:
    """Return the parts of the state that cannot be loaded in their version after a batch."""
    return [str(store) for store in stores if not store.has(batch + 1)] or lost_ids(checkpoint, batch)


def _listed(numbers: list[int]) -> str:
    return "none" if not numbers else ", ".join(map(str, numbers[-20:]))


def _renamed(checkpoint: Checkpoint, old: Sequence[str], version: int, given: Sequence[str]) -> dict[str, str]:
    """Return the new id of each source, in the order of the new file."""
    numbers = [str(number) for number in range(len(old))]
    if version == 1:
        order = given or sorted(old, key=lambda name: int(name) if name.isascii() and name.isdigit() else -1)
        if sorted(order) != sorted(old) or (not given and sorted(old) != sorted(numbers)):
            raise NotAllowed(f"{checkpoint.where}: give its sources {', '.join(old)} in the order of the query's plan")
        renamed = dict(zip(order, numbers, strict=True))
    else:
        if given and (len(given) != len(old) or len(set(given)) < len(given)):
            raise NotAllowed(f"{checkpoint.where}: it has {len(old)} sources: give {len(old)} different names")
        renamed = dict(zip(old, given or old, strict=True))
    last = checkpoint.offset_log(checkpoint.offsets[-1]).sources
    for name, new in renamed.items():
        if name != new and last[name] is not None and not kafka_offsets(last[name], f"source {name}"):
            raise NotAllowed(
                f"{checkpoint.where}: source {name} is not a Kafka source: its files would not be found as {new}"
            )
    return renamed


def _converted(log: OffsetLog, version: int, renamed: Mapping[str, str]) -> OffsetLog:
    metadata: dict[str, Any] = dict(log.metadata)
    if version == 1:
        metadata.pop("sourceMetadataInfo", None)
        metadata.pop("controlBatchInfo", None)
    elif metadata:
        metadata.setdefault("sourceMetadataInfo", {})
    conf = metadata.get("conf")
    if isinstance(conf, dict) and _EVOLUTION in conf:
        named = not all(name.isdigit() for name in renamed.values())
        metadata["conf"] = {**conf, _EVOLUTION: "true" if named else "false"}
    sources = {new: log.sources[name] for name, new in renamed.items() if name in log.sources}
    return OffsetLog(version, metadata, sources)


def _next(checkpoint: Checkpoint) -> Next | None:
    try:
        return checkpoint.next()
    except CorruptStore:
        return None


def _told(found: Next | None) -> str:
    return "unknown" if found is None else f"batch {found.batch} ({found.kind})"


def _at(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _short(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
