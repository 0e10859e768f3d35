"""A change of a checkpoint that is planned and not yet done: which files, and what Spark will read then. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offsetkeeper.checkpoint.contents import Checkpoint, Next, kafka_offsets
from offsetkeeper.core.model import TopicPartition
from offsetkeeper.errors import CorruptStore, NotAllowed


@dataclass(frozen=True, slots=True)
class Step:
    """What a change does to one partition.

    Attributes:
        source: the id of the source that reads it.
        topic_partition: which one.
        old, new: where the query goes on before and after the change; None for "as its source decides".
    """

    source: str
    topic_partition: TopicPartition
    old: int | None
    new: int | None


@dataclass(frozen=True)
class Edit:
    """A change of a checkpoint, not yet done.

    Attributes:
        action: what it is, for people.
        where: the checkpoint.
        before, after: fingerprints of its logs; a checkpoint that is no more as it was is not changed.
        old, new: what a query does first, before and after; None where a torn file hides it.
        writes: content of files, by name.
        deletes: names of files.
        restores: names of files that come from the backup `origin`.
        notes: what else is to be known.
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
        """Each partition that any source goes on with elsewhere, or has now and not then, sorted."""
        old, new = _by_partition(self.old), _by_partition(self.new)
        keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return [Step(*key, old.get(key), new.get(key)) for key in keys]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.writes or self.deletes or self.restores)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "action": self.action,
            "checkpoint": self.where,
            "next_batch": {"old": self.old and self.old.batch, "new": self.new and self.new.batch},
            "steps": [
                {"source": s.source, **s.topic_partition._asdict(), "old": s.old, "new": s.new} for s in self.steps
            ],
            "writes": sorted(self.writes),
            "deletes": sorted(self.deletes),
            "restores": sorted(self.restores),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"{self.action}: {self.where}"]
        lines += [f"next: {_told(self.old)} -> {_told(self.new)}"]
        lines += [f"source {s.source} {s.topic_partition}: {_at(s.old)} -> {_at(s.new)}" for s in self.steps]
        files = (("write", self.writes), ("delete", self.deletes), ("restore", self.restores))
        lines += [f"{verb} {_short(sorted(names))}" for verb, names in files if names]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def make_edit(
    checkpoint: Checkpoint,
    action: str,
    writes: Mapping[str, bytes],
    deletes: Iterable[str] = (),
    *,
    restores: Iterable[str] = (),
    origin: str = "",
    notes: Iterable[str] = (),
) -> Edit:
    """Return the change, with what Spark makes of the checkpoint before and after it.

    Raises:
        NotAllowed: an earlier change was cut off, and this does not take it back.
    """
    if checkpoint.barrier and not origin:
        raise NotAllowed(f"{checkpoint.where}: a change was not finished. Undo it first")
    deletes = tuple(deletes)
    after = checkpoint.changed(writes, deletes)
    changes = {name: content for name, content in writes.items() if checkpoint.logs.get(name) != content}
    return Edit(
        action,
        checkpoint.where,
        checkpoint.fingerprint,
        after.fingerprint,
        _next(checkpoint),
        _next(after),
        changes,
        deletes,
        tuple(restores),
        origin,
        tuple(notes),
    )


def _next(checkpoint: Checkpoint) -> Next | None:
    try:
        return checkpoint.next()
    except CorruptStore:
        return None


def _by_partition(found: Next | None) -> dict[tuple[str, TopicPartition], int]:
    sources = {} if found is None else found.starts
    return {
        (name, tp): at for name, text in sources.items() for tp, at in kafka_offsets(text, f"source {name}").items()
    }


def _told(found: Next | None) -> str:
    return "unknown" if found is None else f"batch {found.batch} ({found.kind})"


def _at(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _short(names: Sequence[str]) -> str:
    shown = 8
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
