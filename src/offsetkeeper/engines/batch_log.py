"""The exact ranges of a batch of a streaming query, from what Spark has written into its checkpoint.

Before it runs batch N, Spark writes where the batch ends to `offsets/N`; it starts where `offsets/N-1` ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offsetkeeper.checkpoint.log_format import (
    OffsetLog,
    parse_initial_offsets,
    parse_metadata,
    parse_offset_log,
    parse_offsets,
)
from offsetkeeper.core.model import TopicPartition
from offsetkeeper.engines.folder import Folder
from offsetkeeper.errors import CheckpointMismatch

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Where a batch starts and ends in each partition, and which partitions it is the first to know."""

    starts: Offsets
    ends: Offsets
    new: frozenset[TopicPartition]


@dataclass
class BatchLog:
    """Reads a checkpoint as its query goes on.

    Attributes:
        folder: of the checkpoint.
        topics: that matter; sources of other topics, or of other kinds, are passed over.
        initial: where the query began, for sources that do not write it down.
        packed: whether the source reads a partition it finds new from the next batch on, as the packed one does;
            Spark's own reads it in the same batch, from its beginning, which must be 0.
    """

    folder: Folder
    topics: frozenset[str]
    initial: Offsets
    packed: bool
    _last: tuple[int, Offsets] | None = field(default=None, init=False)

    def query_id(self) -> str:
        """Return the id of the query that the checkpoint belongs to.

        Raises:
            CorruptStore, CheckpointMismatch: it says none.
        """
        return parse_metadata(self._file("metadata"), f"{self.folder}/metadata")

    def newest(self) -> tuple[int, bool] | None:
        """Return the number of the newest batch that was planned, and whether it is done; None without any."""
        planned = [int(name) for name in self.folder.names("offsets") if name.isdecimal()]
        if not planned:
            return None
        return max(planned), str(max(planned)) in self.folder.names("commits")

    def offsets(self, batch_id: int) -> BatchOffsets:
        """Return the offsets of a batch that is about to be processed, or was.

        Raises:
            CorruptStore: a file is not what Spark writes.
            CheckpointMismatch: a file is missing, or the query reads other topics, or one topic at several places.
        """
        ends = self.ends(batch_id)
        if batch_id == 0:
            starts = self._initial()
        elif self._last is not None and self._last[0] == batch_id - 1:
            starts = self._last[1]
        else:
            starts = self.ends(batch_id - 1)
        self._last = (batch_id, ends)
        new = ends.keys() - starts.keys()
        return BatchOffsets({**starts, **{tp: ends[tp] if self.packed else 0 for tp in new}}, ends, frozenset(new))

    def ends(self, batch_id: int) -> Offsets:
        """Return where a batch ends in each partition.

        Raises:
            CorruptStore, CheckpointMismatch: see `bounds`.
        """
        where = f"{self.folder}/offsets/{batch_id}"
        return self._of_topics(parse_offset_log(self._file(f"offsets/{batch_id}"), where), where)

    def _of_topics(self, log: OffsetLog, where: str) -> Offsets:
        merged: dict[TopicPartition, int] = {}
        for text in log.sources.values():
            for tp, offset in (parse_offsets(text or "null", where) or {}).items():
                if tp.topic in self.topics and merged.setdefault(tp, offset) != offset:
                    raise CheckpointMismatch(
                        f"{where}: two sources of the query read {tp}, one up to {merged[tp]} and one up to {offset}, "
                        "so there is no one range to commit. Read a topic once in a query, and use its frame twice"
                    )
        if not merged:
            raise CheckpointMismatch(
                f"{where}: no source of this query reads any of {', '.join(sorted(self.topics))}. The checkpoint is of "
                "another query: give this one a checkpoint of its own"
            )
        return merged

    def _initial(self) -> Offsets:
        found: dict[TopicPartition, int] = {}
        for name in self.folder.names("sources"):
            file = f"sources/{name}/0"
            text = self.folder.read(file)
            if text is not None and text.startswith("\0"):
                where = f"{self.folder}/{file}"
                found |= parse_offsets(parse_initial_offsets(text, where), where) or {}
        ours = {tp: offset for tp, offset in found.items() if tp.topic in self.topics}
        return ours or self.initial

    def _file(self, name: str) -> str:
        text = self.folder.read(name)
        if text is None:
            raise CheckpointMismatch(
                f"{self.folder}/{name} is not there, so the range of the batch is not known. Is this the checkpoint of "
                "the query that runs? Without that file, delete the checkpoint and start from the ledger"
            )
        return text
