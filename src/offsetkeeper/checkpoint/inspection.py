"""Summary of a checkpoint: the last batch, the next batch, state, formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from offsetkeeper.checkpoint.contents import Checkpoint, Next, StateStore, integer
from offsetkeeper.checkpoint.log_format import format_version, offsets_by_source
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import Refused

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


class InspectionRow(NamedTuple):
    """One partition of one source: the range of the newest committed batch, and the range of the next batch.

    Attributes:
        source: the source's id.
        topic_partition: the partition.
        ran_from, ran_to: offsets of the newest committed batch; None if it did not know the partition.
        next_from: start of the next batch; None if its source decides.
        next_to: end of the next batch, if it is decided.
    """

    source: str
    topic_partition: TopicPartition
    ran_from: int | None
    ran_to: int | None
    next_from: int | None
    next_to: int | None


class BatchRow(NamedTuple):
    """One partition of one source in a batch.

    Attributes:
        source: the source's id.
        topic_partition: the partition.
        start: offset of the first record; None if the file of the batch before is gone or lacks the partition.
        end: offset after the last record.
    """

    source: str
    topic_partition: TopicPartition
    start: int | None
    end: int


@dataclass(frozen=True)
class BatchInspection:
    """One batch of a checkpoint.

    Attributes:
        where: the checkpoint.
        batch: number of the batch.
        committed: whether it is in `commits`.
        planned_at_ms: time of its plan, milliseconds since 1970; 0 if unknown.
        watermark_ms: watermark of the batch.
        rows: one for each partition of each Kafka source, sorted.
        others: end of the batch in sources of other kinds, as the source has written it.
    """

    where: str
    batch: int
    committed: bool
    planned_at_ms: int
    watermark_ms: int
    rows: tuple[BatchRow, ...]
    others: Mapping[str, str | None]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "checkpoint": self.where,
            "batch": self.batch,
            "committed": self.committed,
            "planned_at_ms": self.planned_at_ms,
            "watermark_ms": self.watermark_ms,
            "partitions": list(map(plain, self.rows)),
            "others": dict(self.others),
        }

    def __str__(self) -> str:
        state = "committed" if self.committed else "not committed"
        planned = f"batch {self.batch}, planned{_at(self.planned_at_ms)}, {state}"
        head = f"{planned}; watermark {self.watermark_ms} ms{_at(self.watermark_ms)}"
        return "\n".join([head, *_others(self.others)])


@dataclass(frozen=True)
class Inspection:
    """Summary of a checkpoint.

    Attributes:
        where: the checkpoint.
        query_id: id of its query; None if no query has started.
        planned, committed: the newest batch in `offsets` and in `commits`; None if there is none.
        next: the first batch of a query that starts now.
        rows: one for each partition of each Kafka source, sorted.
        others: where sources of other kinds resume, as the source has written it.
        planned_at_ms: time of the newest batch's plan; 0 if unknown.
        state: the stores of the state, sorted.
        formats: format versions of the files, by name.
    """

    where: str
    query_id: str | None
    planned: int | None
    committed: int | None
    next: Next
    rows: tuple[InspectionRow, ...]
    others: Mapping[str, str | None]
    planned_at_ms: int
    state: tuple[StateStore, ...]
    formats: Mapping[str, str]

    @property
    def state_versions(self) -> dict[int, list[int]]:
        """The state versions above 0 that all stores of an operator can load, by operator."""
        found: dict[int, set[int]] = {}
        for store in self.state:
            versions = store.loadable()
            found[store.operator] = found.get(store.operator, versions) & versions
        return {operator: sorted(versions) for operator, versions in sorted(found.items())}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        following = {"batch": self.next.batch, "kind": self.next.kind, "watermark_ms": self.next.watermark_ms}
        return {
            "checkpoint": self.where,
            "query_id": self.query_id,
            "planned": self.planned,
            "committed": self.committed,
            "planned_at_ms": self.planned_at_ms,
            "next": following,
            "partitions": list(map(plain, self.rows)),
            "others": dict(self.others),
            "state_versions": {str(operator): versions for operator, versions in self.state_versions.items()},
            "formats": dict(self.formats),
        }

    def __str__(self) -> str:
        words = {
            "first": "the first one, from the offsets in sources/, else from startingOffsets",
            "new": "a new one, from the end of the last one",
            "again": "again with the same ranges, because it was not committed",
        }
        watermark = self.next.watermark_ms
        lines = [
            f"query {self.query_id or 'not started'}",
            f"newest batch planned {_or(self.planned)}{_at(self.planned_at_ms)}, committed {_or(self.committed)}",
            f"next: batch {self.next.batch}, {words[self.next.kind]}; watermark {watermark} ms{_at(watermark)}",
        ]
        if self.formats:
            lines.append("formats: " + ", ".join(f"{name} {version}" for name, version in self.formats.items()))
        lines += _others(self.others)
        lines += [
            f"state of operator {operator}: versions {runs(versions)}"
            for operator, versions in self.state_versions.items()
        ]
        return "\n".join(lines)


def inspect(checkpoint: Checkpoint) -> Inspection:
    """Return the summary of a checkpoint.

    Raises:
        CorruptStore: a file that Spark needs at the start is damaged or missing, or a change was not finished.
    """
    following = checkpoint.next()
    offsets, commits = checkpoint.offsets, checkpoint.commits
    done = max(set(offsets) & set(commits), default=None)
    ran = {} if done is None else checkpoint.offset_log(done).sources
    before: Mapping[str, str | None] = checkpoint.initial()
    if done:
        before = checkpoint.offset_log(done - 1).sources if done - 1 in offsets else {}
    columns = [offsets_by_source(each) for each in (before, ran, following.starts, following.ends or {})]
    keys = sorted(set().union(*columns))
    rows = tuple(InspectionRow(*key, *(column.get(key) for column in columns)) for key in keys)
    sources = {**(following.ends or {}), **following.starts}
    others = {name: text for name, text in sources.items() if name not in {row.source for row in rows}}
    metadata = checkpoint.offset_log(offsets[-1]).metadata if offsets else {}
    return Inspection(
        checkpoint.where,
        checkpoint.query_id() if "metadata" in checkpoint.logs else None,
        offsets[-1] if offsets else None,
        commits[-1] if commits else None,
        following,
        rows,
        others,
        integer(metadata.get("batchTimestampMs")),
        tuple(checkpoint.state_stores()),
        _formats(checkpoint, metadata),
    )


def inspect_batch(checkpoint: Checkpoint, batch: int) -> BatchInspection:
    """Return the offsets of one batch.

    Raises:
        Refused: the batch is not in `offsets`; the message names the batches there.
        CorruptStore: its file, or the one before, is damaged.
    """
    known = checkpoint.offsets
    if batch not in known:
        there = runs(known) if known else "no batch"
        raise Refused(f"{checkpoint.where} does not have the offsets of batch {batch}: it has {there}")
    log = checkpoint.offset_log(batch)
    before: Mapping[str, str | None] = {}
    if not batch:
        before = checkpoint.initial()
    elif batch - 1 in known:
        before = checkpoint.offset_log(batch - 1).sources
    starts, ends = offsets_by_source(before), offsets_by_source(log.sources)
    rows = tuple(BatchRow(*key, starts.get(key), end) for key, end in sorted(ends.items()))
    named = {row.source for row in rows}
    return BatchInspection(
        checkpoint.where,
        batch,
        batch in checkpoint.commits,
        integer(log.metadata.get("batchTimestampMs")),
        integer(log.metadata.get("batchWatermarkMs")),
        rows,
        {name: text for name, text in log.sources.items() if name not in named},
    )


def _formats(checkpoint: Checkpoint, metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    if checkpoint.offsets:
        found["offset log"] = f"v{checkpoint.offset_log(checkpoint.offsets[-1]).version}"
    if checkpoint.commits:
        content = checkpoint.logs[f"commits/{checkpoint.commits[-1]}"]
        found["commit log"] = f"v{format_version(content) or '?'}"
    if checkpoint.stateful:
        found["state"] = "v2" if checkpoint.state_ids else "v1"
        conf = metadata.get("conf")
        provider = conf.get(_PROVIDER) if isinstance(conf, dict) else None
        found["state store"] = str(provider or "unknown").rpartition(".")[2]
    return found


def _at(at_ms: int) -> str:
    """Return a time as ` at 2026-01-31T12:00:00Z`, or an empty text if it is unknown or invalid."""
    try:
        return f" at {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if at_ms else ""
    except (OverflowError, ValueError, OSError):
        return ""


def _others(others: Mapping[str, str | None]) -> list[str]:
    return [f"source {name} is not a Kafka source: {text or 'not begun'}" for name, text in others.items()]


def _or(batch: int | None) -> str:
    return "none" if batch is None else str(batch)


def runs(versions: list[int]) -> str:
    """Return numbers as `1-4, 7`."""
    found: list[list[int]] = []
    for version in versions:
        if found and found[-1][-1] == version - 1:
            found[-1][1:] = [version]
        else:
            found.append([version])
    return ", ".join("-".join(map(str, run)) for run in found) or "none"
