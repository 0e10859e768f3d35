"""A checkpoint at a glance: what ran last, what would run next, state, formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from offsetkeeper.checkpoint.contents import Checkpoint, Next, StateStore
from offsetkeeper.checkpoint.log_format import format_version, offsets_by_source
from offsetkeeper.core.model import TopicPartition
from offsetkeeper.core.plain import plain

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


class InspectionRow(NamedTuple):
    """One partition of one source: what the newest committed batch has read of it, and where reading goes on.

    Attributes:
        source: the source's id.
        topic_partition: which one.
        ran_from, ran_to: offsets of the newest committed batch; None where it did not know the partition.
        next_from: where the next batch starts; None where its source decides.
        next_to: where it ends, if that is decided.
    """

    source: str
    topic_partition: TopicPartition
    ran_from: int | None
    ran_to: int | None
    next_from: int | None
    next_to: int | None


@dataclass(frozen=True)
class Inspection:
    """A checkpoint at a glance.

    Attributes:
        where: the checkpoint.
        query_id: of its query; None where none has started.
        planned, committed: the newest batch in `offsets` and in `commits`; None where there is none.
        next: what a query does first.
        rows: one for each partition of each source of Kafka, sorted.
        others: by source of another kind, where it goes on, as it has written it.
        planned_at_ms: when the newest batch was planned; 0 where that is not known.
        state: the stores of the state, sorted.
        formats: versions of what was found, by name.
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
        """By operator the state versions that all of its stores can load, of those newer than 0."""
        found: dict[int, list[int]] = {}
        for operator in sorted({store.operator for store in self.state}):
            stores = [store for store in self.state if store.operator == operator]
            newest = min(store.newest for store in stores)
            named = set.union(*(set(store.whole | store.steps) for store in stores))
            found[operator] = sorted(n for n in named if n <= newest and all(store.has(n) for store in stores))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
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
            "first": "none was planned yet, it begins at sources/, else at startingOffsets",
            "new": "a new one, from where the last one ended",
            "again": "again with the same ranges, as it was not committed",
        }
        at = datetime.fromtimestamp(self.planned_at_ms / 1000, UTC)
        planned = f" at {at:%Y-%m-%dT%H:%M:%SZ}" if self.planned_at_ms else ""
        lines = [
            f"query {self.query_id or 'not started'}",
            f"newest batch planned {_or(self.planned)}{planned}, committed {_or(self.committed)}",
            f"next: batch {self.next.batch}, {words[self.next.kind]}; watermark {self.next.watermark_ms} ms",
            "formats: " + ", ".join(f"{name} {version}" for name, version in self.formats.items()),
        ]
        lines += [f"source {name} is not Kafka's: {text or 'not begun'}" for name, text in self.others.items()]
        lines += [
            f"state of operator {operator}: versions {_runs(versions)}"
            for operator, versions in self.state_versions.items()
        ]
        return "\n".join(lines)


def inspect(checkpoint: Checkpoint) -> Inspection:
    """Return what a checkpoint says.

    Raises:
        CorruptStore: a file that Spark reads at the start is torn or missing, or a change was not finished.
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
    at_ms = metadata.get("batchTimestampMs")
    return Inspection(
        checkpoint.where,
        checkpoint.query_id() if "metadata" in checkpoint.logs else None,
        offsets[-1] if offsets else None,
        commits[-1] if commits else None,
        following,
        rows,
        others,
        at_ms if isinstance(at_ms, int) else 0,
        tuple(checkpoint.state_stores()),
        _formats(checkpoint, metadata),
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
        found["state store"] = str(metadata.get("conf", {}).get(_PROVIDER, "unknown")).rpartition(".")[2]
    return found


def _or(batch: int | None) -> str:
    return "none" if batch is None else str(batch)


def _runs(versions: list[int]) -> str:
    """Return numbers as `1-4, 7`."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and runs[-1][-1] == version - 1:
            runs[-1][1:] = [version]
        else:
            runs.append([version])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"
