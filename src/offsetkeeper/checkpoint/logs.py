"""Reads the logs of a checkpoint, for the toolkit, the store, and the batches of a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from offsetkeeper.checkpoint.files import Folder
from offsetkeeper.checkpoint.log_format import (
    BARRIER,
    NEWEST_COMMIT,
    NEWEST_INITIAL,
    NEWEST_OFFSETS,
    NOTHING,
    STARTS,
    OffsetLog,
    Offsets,
    TooManyLines,
    batch_numbers,
    corrupt,
    format_version,
    json_value,
    kafka_offsets,
    lines_of,
)
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.outside import reason
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import CheckpointMismatch, CorruptStore, OffsetkeeperError, Refused


class Logs:
    """Reads each file when it is needed. All methods except `offsets` and `commits` raise the error of `missing`.

    Attributes:
        folder: folder of the checkpoint.
        remedy: what to do about a file that cannot be read.
    """

    folder: Folder
    remedy = "`verify` says what to do"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r})"

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return self.folder.address

    @property
    def offsets(self) -> list[int]:
        """The batches in `offsets`, ascending."""
        return sorted(batch_numbers(self.folder.names("offsets")))

    @property
    def commits(self) -> list[int]:
        """The batches in `commits`, ascending."""
        return sorted(batch_numbers(self.folder.names("commits")))

    def query_id(self) -> str:
        """Return the id of the query.

        Raises:
            CorruptStore: the file is damaged or has other content.
        """
        text, where = self._file("metadata")
        found = _object(text, where).get("id")
        if not isinstance(found, str):
            raise corrupt(where, "it has no id")
        return found

    def offset_log(self, batch: int) -> OffsetLog:
        """Return the end of a batch.

        Raises:
            CorruptStore: the file is torn, something else, or of a newer format.
        """
        text, where = self._file(f"offsets/{batch}")
        version, lines = _versioned(text, NEWEST_OFFSETS, where)
        ends = lines[1:]
        if not ends:
            raise corrupt(where, "it ends before the first source")
        metadata = _object(lines[0], where) if lines[0].strip() else {}
        pairs = [(str(number), line) for number, line in enumerate(ends)]
        if version > 1:
            pairs = [(name, line) for name, _, line in (each.partition(":") for each in ends)]
        sources = {name: None if line == NOTHING else line for name, line in pairs}
        for line in sources.values():
            json_value("null" if line is None else line, where)
        if len(sources) < len(pairs):
            raise corrupt(where, "a source is there twice")
        return OffsetLog(version, metadata, sources)

    def commit(self, batch: int) -> Mapping[str, Any]:
        """Return the commit of a batch.

        Raises:
            CorruptStore: the file is torn, something else, or of a newer format.
        """
        text, where = self._file(f"commits/{batch}")
        _, lines = _versioned(text, NEWEST_COMMIT, where, spaced=True)
        found = _object(lines[0], where) if lines and lines[0].strip() else {}  # Spark treats an empty line as {}
        if not isinstance(found.get("nextBatchWatermarkMs"), int | None):
            raise corrupt(where, "its watermark is not a number")
        return found

    def initial(self) -> dict[str, str | None]:
        """Return the start of each Kafka source as JSON, by source; files of other sources are ignored.

        Raises:
            CorruptStore: a file is damaged, has other content, or has a newer format.
        """
        found: dict[str, str | None] = {}
        for source in self.folder.names("sources"):
            name = f"sources/{source}/0"
            content = self.folder.read(name)
            if content is not None and content[:1] in {b"", b"\0"}:
                text = self._text(name, content).removeprefix("\0")
                found[source] = offsets = "\n".join(_versioned(text, NEWEST_INITIAL, self.at(name))[1])
                json_value(offsets, self.at(name))
        return found

    def at(self, name: str) -> str:
        """Return the place of a file, for messages."""
        return f"{self.where}/{name}"

    def missing(self, name: str) -> OffsetkeeperError:
        """Return the error for a missing file that is needed."""
        return CorruptStore(f"{self.at(name)} is missing, but Spark needs it. {self.remedy}")

    def _file(self, name: str) -> tuple[str, str]:
        """Return the text of a file, and its place."""
        content = self.folder.read(name)
        if content is None:
            raise self.missing(name)
        return self._text(name, content), self.at(name)

    def _text(self, name: str, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise CorruptStore(f"{self.at(name)} is not text: {reason(error)}. {self.remedy}") from None


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Start and end of a batch in each partition, the partitions that are new in it, and the watermark it runs with.

    The watermark is in milliseconds since 1970; None without one.
    """

    starts: Offsets
    ends: Offsets
    new: frozenset[TopicPartition]
    watermark_ms: int | None = None


@dataclass
class BatchLog(Logs):
    """The exact ranges of the batches of a running query.

    Before Spark runs batch N, it writes the end of the batch to `offsets/N`; the batch starts at the end in
    `offsets/N-1`.

    Attributes:
        folder: folder of the checkpoint.
        topics: the topics of the pipeline; sources of other topics or of other kinds are ignored.
        began: where the first batch begins if no file has that: a packed source stores no start, and the connector
            none before it runs. Empty in a batch of the connector, which then has stored it.
        packed: whether the source reads a new partition from the next batch on, as the packed source does; Spark's own
            source reads it in the same batch, from its beginning, which must be 0.
    """

    folder: Folder
    topics: Topics
    began: Offsets
    packed: bool
    _last: tuple[int, Offsets] | None = field(default=None, init=False)

    def newest(self) -> tuple[int, bool] | None:
        """Return the number of the newest planned batch, and whether it is done; None if there is no batch."""
        planned = self.offsets
        return (planned[-1], planned[-1] in self.commits) if planned else None

    def batch_offsets(self, batch_id: int) -> BatchOffsets:
        """Return the offsets of a batch, before or after it is processed.

        Raises:
            CorruptStore: a file is not what Spark writes.
            CheckpointMismatch: a file is missing, or the query reads other topics, or two sources read one partition.
        """
        log = self.offset_log(batch_id)
        ends = self._ends_of(batch_id, log)
        if batch_id == 0:
            starts = self._starts(log)
        elif self._last is not None and self._last[0] == batch_id - 1:
            starts = self._last[1]
        else:
            starts = self.ends(batch_id - 1)
        self._last = (batch_id, ends)
        new = ends.keys() - starts.keys()
        starts = {**starts, **{tp: ends[tp] if self.packed else 0 for tp in new}}
        return BatchOffsets(starts, ends, frozenset(new), _watermark(log))

    def connector_began(self) -> bool:
        """Whether Spark's connector began to read the topics here. A Kafka source of the user's own reads others.

        Raises:
            CorruptStore: see `initial`.
        """
        began = [kafka_offsets(text, self.at(f"sources/{source}/0")) for source, text in self.initial().items()]
        return any(not found or any(tp.topic in self.topics for tp in found) for found in began)

    def planned_starts(self) -> Offsets:
        """Return where the first batch begins if it was planned before Spark ran it; else nothing.

        Raises:
            CorruptStore, CheckpointMismatch: see `batch_offsets`.
        """
        return self._planned(self.offset_log(0))

    def _planned(self, first: OffsetLog) -> Offsets:
        conf = first.metadata.get("conf")
        text = conf.get(STARTS) if isinstance(conf, dict) else None
        return kafka_offsets(text, self.at("offsets/0")) if isinstance(text, str) else {}

    def ends(self, batch_id: int) -> Offsets:
        """Return the end of a batch in each partition.

        Raises:
            CorruptStore, CheckpointMismatch: see `batch_offsets`.
        """
        return self._ends_of(batch_id, self.offset_log(batch_id))

    def _ends_of(self, batch_id: int, log: OffsetLog) -> Offsets:
        where = self.at(f"offsets/{batch_id}")
        merged: dict[TopicPartition, int] = {}
        for text in log.sources.values():
            for tp, offset in kafka_offsets(text, where).items():
                if tp.topic in self.topics and merged.setdefault(tp, offset) != offset:
                    raise CheckpointMismatch(
                        f"{where}: two sources of the query read {tp}, one up to {merged[tp]} and one up to {offset}, "
                        f"so the range to commit is not clear. {self._once(batch_id)}"
                    )
        if not merged:
            raise CheckpointMismatch(
                f"{where}: no source of this query reads {self.topics}. The checkpoint is of "
                "another query: give this query its own checkpoint"
            )
        return merged

    def _once(self, batch_id: int) -> str:
        """Return what to do about a batch whose sources end differently; each start finds it again."""
        once = (
            "A record came between the looks of two sources, which may be one frame that is used twice. Use it once, "
            "and make the rows that are needed twice within the query, or in process; that is another query, so start "
            "it with a new checkpoint"
        )
        if self.newest() != (batch_id, False):
            return (
                f"{once}; a query with state also needs offsets= to build new state. Do not take this batch back: it "
                "is done, and its results are in the output. To go on with this one, stop what writes to the topic, "
                "let the program that ran this batch read all, and put its offsets into the store again: then the "
                "sources end at the same offsets"
            )
        if not batch_id:
            return once
        back = f"offsetkeeper checkpoint truncate {quote(self.where)} --batch {batch_id - 1} --query-id keep --execute"
        return (
            f"{once}. If plain Spark began this batch, let its program finish it. Otherwise nothing of it was written; "
            f"to go on with this one, take it back: {back}"
        )

    def missing(self, name: str) -> CheckpointMismatch:
        """See `Logs.missing`."""
        return CheckpointMismatch(
            f"{self.at(name)} is missing, so the range of the batch is unknown. Is this the checkpoint of "
            "the query that runs? Without that file, start with a new checkpoint; a query with state then needs "
            "offsets= to build new state"
        )

    def _starts(self, first: OffsetLog) -> Offsets:
        stored, found = self.initial(), dict[TopicPartition, int]()
        for source, text in stored.items():
            found |= kafka_offsets(text, self.at(f"sources/{source}/0"))
        mine = {tp: offset for tp, offset in (found or self._planned(first)).items() if tp.topic in self.topics}
        if mine or (stored and not self.packed):  # the connector began before a topic was there
            return mine
        if not self.began and not self.packed:
            raise self.missing("sources/0/0")
        return self.began


def _watermark(log: OffsetLog) -> int | None:
    found = log.metadata.get("batchWatermarkMs")
    return found if isinstance(found, int) and found > 0 else None


def no_checkpoint(folder: Folder) -> Refused:
    """Return the error for a folder without the files of a checkpoint.

    A flow of a declarative pipeline has a checkpoint for each full refresh, 0, 1, …; Spark reads the newest.
    """
    names = [name for name in folder.names("") if not name.startswith(".")]
    numbers = batch_numbers(names)
    if not numbers or len(numbers) < len(names):
        return Refused(f"{folder.address} has no checkpoint: give the folder of checkpointLocation")
    return Refused(
        f"{folder.address} has no checkpoint itself, but folders with numbers: give one of them. Of a flow of a "
        f"declarative pipeline Spark reads only the newest: {folder.address.rstrip('/')}/{max(numbers)}"
    )


def _versioned(text: str, newest: int, where: str, *, spaced: bool = False) -> tuple[int, list[str]]:
    """Return the version and the lines after it; `spaced`: spaces may follow the version, as in commits."""
    if text.startswith(BARRIER):
        raise CorruptStore(
            f"{where}: a change of the checkpoint was not finished, so no query starts. "
            "Undo it: offsetkeeper checkpoint undo"
        )
    number = format_version(text.encode()) or 0
    if number > newest:
        raise corrupt(where, f"its format v{number} is newer than v{newest}, upgrade offsetkeeper")
    try:
        first, *lines = lines_of(text)
    except TooManyLines as error:
        raise corrupt(where, str(error)) from None
    if number < 1 or (not spaced and first != first.rstrip()):
        raise corrupt(where, "it does not begin with the version of its format")
    return number, lines


def _object(text: str, where: str) -> dict[str, Any]:
    found = json_value(text, where)
    if not isinstance(found, dict):
        raise corrupt(where, "its metadata has other content")
    return found
