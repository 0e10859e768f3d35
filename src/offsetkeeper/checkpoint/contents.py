"""The content of a checkpoint at one time, and what Spark does with it. Pure, except for the reading.

Spark starts a query from a checkpoint like this (MicroBatchExecution.populateStartOffsets of Spark 4.2). L is the
newest batch in `offsets`, C the newest in `commits`.

    no L     batch 0, from the start of the sources; Kafka's source writes it to `sources/<id>/0`
    C = L    a new batch L+1, from the end of L
    else     batch L again, from the end of L-1 to the end of L, even if C is more than L

In the last two cases it needs L-1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_format import BARRIER, batch_numbers, lines_of, lowest_offsets
from offsetkeeper.checkpoint.logs import Logs, no_checkpoint
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.outside import load_json
from offsetkeeper.errors import CorruptStore, Refused

MOST_LOGS = 100_000
"""Files of `offsets`, `commits` and `sources` of a checkpoint: Spark keeps 100 batches unless told otherwise."""
LARGEST_LOGS = 2**29
"""Bytes of all of them: 100,000 partitions in 100 batches are some 200 MB."""
_AT_ONCE = 8
_MOST_PARTITIONS = 100_000  # of an operator: a larger number means damage
RECORD = "offsetkeeper.json"  # in a backup: the change that it was made for
_STATE = re.compile(  # of Spark's two providers
    r"state/(\d{1,9})/(\d{1,9})/(?:([^/]+)/)?(\d{1,19})(?:_[^/.]+)?\.(delta|snapshot|changelog|zip)"
)
_IDS = re.compile(rb'"stateUniqueIds"\s*:\s*\{\s*"')  # of an operator: a query without state has none, or writes {}
_OPERATOR = re.compile(r"state/(\d{1,9})/_metadata/(?:metadata|v2/\d{1,19})")


@dataclass(frozen=True, slots=True)
class Next:
    """The first batch of a query after a start.

    Attributes:
        batch: number of the batch.
        kind: "first" if no batch was planned yet, "new" after a committed batch, else "again".
        starts: start of the batch by source, as JSON of the source; None or absent for a source that has not begun.
        ends: end of the batch by source, or None if it is not decided yet.
        watermark_ms: watermark of the batch.
    """

    batch: int
    kind: Literal["first", "new", "again"]
    starts: Mapping[str, str | None]
    ends: Mapping[str, str | None] | None
    watermark_ms: int

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The start offset of each Kafka partition."""
        return lowest_offsets(self.starts, "source {}".format)


@dataclass(frozen=True, slots=True)
class StateStore:
    """The state of one operator in one partition, with one name.

    Attributes:
        operator, partition, name: its key; most operators have one store, with an empty name.
        whole: versions with a complete file. Version n is the state before batch n.
        steps: versions with a file of changes to the version before.
    """

    operator: int
    partition: int
    name: str
    whole: frozenset[int]
    steps: frozenset[int]

    def has(self, version: int) -> bool:
        """Whether a version can be loaded."""
        while version > 0 and version not in self.whole:
            if version not in self.steps:
                return False
            version -= 1
        return True

    def loadable(self) -> set[int]:
        """Return the versions above 0 that can be loaded."""
        found = {0}
        for version in sorted(self.whole | self.steps):
            if version in self.whole or version - 1 in found:
                found.add(version)
        return found - {0}

    def __str__(self) -> str:
        return f"state/{self.operator}/{self.partition}" + (f"/{self.name}" if self.name else "")


class Kept(NamedTuple):
    """The content of a folder that was read; see `Folder`."""

    address: str
    logs: Mapping[str, bytes]

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`."""
        found = (name.removeprefix(f"{folder}/") for name in self.logs if name.startswith(f"{folder}/"))
        return sorted({name.partition("/")[0] for name in found})

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        return self.logs.get(name)


@dataclass(frozen=True, repr=False)
class Checkpoint(Logs):
    """All logs of a checkpoint, and the names of its state's files.

    Attributes:
        folder: the files of `metadata`, `offsets`, `commits` and `sources/<id>/0`.
        listed: all names in the folders of the logs, including hidden ones.
        state: names of the state's files.
        empty: state files without content, which Spark cannot load.
        partitions: number of state partitions by operator, if Spark has stored it.
        barrier: the file that a running change has written into `offsets` so that no query starts; "" if there is none.
    """

    folder: Kept
    listed: frozenset[str] = frozenset()
    state: tuple[str, ...] = ()
    empty: frozenset[str] = frozenset()
    partitions: Mapping[int, int] = field(default_factory=dict)
    barrier: str = ""

    @property
    def logs(self) -> Mapping[str, bytes]:
        """The content of the files, by name."""
        return self.folder.logs

    @cached_property
    def offsets(self) -> list[int]:
        """See `Logs.offsets`; it is asked for often, and there may be thousands."""
        return super().offsets

    @cached_property
    def commits(self) -> list[int]:
        """See `Logs.commits`."""
        return super().commits

    @property
    def hidden(self) -> list[str]:
        """The names of checksums and other hidden files among the logs, sorted."""
        return sorted(name for name in self.listed if name.rpartition("/")[2].startswith("."))

    @property
    def stateful(self) -> bool:
        """Whether the query keeps state."""
        return any(name.split("/")[1].isdigit() for name in self.state)

    @property
    def state_ids(self) -> bool:
        """Whether versions of the state have ids that commits refer to; Spark calls this state format 2."""
        return any("_" in name.rpartition("/")[2] for name in self.state if _state_file(name)) or any(
            _IDS.search(self.logs[f"commits/{batch}"]) for batch in self.commits
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all logs, in hexadecimal."""
        digest = hashlib.sha256()
        for name, content in sorted(self.logs.items()):
            digest.update(b"%d %s %d " % (len(name), name.encode(), len(content)) + content)
        return digest.hexdigest()

    def state_stores(self) -> list[StateStore]:
        """Return the stores of the state, sorted, without partitions that the operator does not have."""
        found: dict[tuple[int, int, str], tuple[set[int], set[int]]] = {}
        there = (name for name in self.state if name not in self.empty)
        for operator, partition, store, version, kind in filter(None, map(_state_file, there)):
            whole, steps = found.setdefault((operator, partition, store), (set(), set()))
            (whole if kind in {"snapshot", "zip"} else steps).add(version)
        stores = [StateStore(*key, frozenset(w), frozenset(s)) for key, (w, s) in sorted(found.items())]
        return [each for each in stores if each.partition < self.partitions.get(each.operator, _MOST_PARTITIONS)]

    def state_after(self, version: int) -> list[str]:
        """Return the files of the state, and their checksums, that are newer than a version."""
        files = [(name, _state_file(name.removesuffix(".crc"))) for name in self.state]
        return [name for name, file in files if file is not None and file[3] > version]

    def next(self) -> Next:
        """Return the first batch of a query that starts now.

        Raises:
            CorruptStore: a file that Spark needs is damaged or missing, or a change was not finished.
        """
        if self.barrier:
            raise CorruptStore(f"{self.where}: a change was not finished, so no query starts. Undo it, then try again")
        if not self.offsets:
            return Next(0, "first", self.initial(), None, 0)
        last, committed = self.offsets[-1], max(self.commits, default=None)
        log = self.offset_log(last)
        watermark = integer(log.metadata.get("batchWatermarkMs"))
        if committed != last:
            before = self.offset_log(last - 1).sources if last else self.initial()
            return Next(last, "again", before, log.sources, watermark)
        watermark = max(watermark, integer(self.commit(last).get("nextBatchWatermarkMs")))
        return Next(last + 1, "new", log.sources, None, watermark)

    def changed(self, writes: Mapping[str, bytes], deletes: Iterable[str]) -> Checkpoint:
        """Return the checkpoint with some files written and others deleted."""
        gone = set(deletes)
        logs = {name: content for name, content in {**self.logs, **writes}.items() if name not in gone}
        state = tuple(name for name in self.state if name not in gone)
        return replace(self, folder=Kept(self.where, logs), state=state, barrier="")


def read_checkpoint(files: Files, *, may_be_new: bool = False) -> Checkpoint:
    """Read a checkpoint.

    Args:
        files: its folder.
        may_be_new: whether the folder may be empty or missing.

    Raises:
        Refused: the folder may not be read, has no checkpoint, or has more or larger files than one can have.
        StoreUnavailable: the folder could not be read.
    """
    top = files.names("")
    if {"metadata", "offsets", "commits", "sources", RECORD}.isdisjoint(top) and (top or not may_be_new):
        raise no_checkpoint(files)
    folders = ["offsets", "commits", *(f"sources/{name}" for name in files.names("sources"))]
    there = {folder: files.names(folder) for folder in folders}
    names = ["metadata", *(f"{folder}/0" for folder in folders[2:] if "0" in there[folder])]
    names += [f"{folder}/{number}" for folder in folders[:2] for number in sorted(batch_numbers(there[folder]))]
    logs, barrier = {}, ""
    if len(names) > MOST_LOGS:
        raise Refused(_too_many(files.address, f"has {len(names):,} logs, more than {MOST_LOGS:,}"))
    for name, content in _contents(files, names):
        if content is not None and content.startswith(BARRIER.encode()):
            barrier = name
        elif content is not None:  # otherwise the query has deleted it meanwhile
            logs[name] = content
    listed = {f"{folder}/{name}" for folder in folders for name in there[folder]}
    listed |= {name for name in top if name.startswith(".")}
    stamps = {name: stamp for name, stamp in files.stamps("state").items() if "/." not in name}
    empty = frozenset(name for name, stamp in stamps.items() if not stamp.size)
    kept, state = Kept(files.address, logs), tuple(sorted(stamps))
    return Checkpoint(kept, frozenset(listed), state, empty, _partition_counts(files, state), barrier)


def _contents(files: Files, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    """Yield the content of each file. Some are read at a time, as each read of a server takes time."""
    size = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            for name, content in zip(part, pool.map(files.read, part), strict=True):
                size += len(content or b"")
                if size > LARGEST_LOGS:
                    raise Refused(_too_many(files.address, f"has logs of more than {LARGEST_LOGS:,} bytes together"))
                yield name, content


def _too_many(where: str, what: str) -> str:
    return (
        f"{where} {what}, and offsetkeeper reads no more. Spark keeps 100 of offsets and commits unless "
        "spark.sql.streaming.minBatchesToRetain says more: with a smaller number the query itself deletes the oldest"
    )


def _partition_counts(files: Files, state: Iterable[str]) -> dict[int, int]:
    """Return the number of partitions of each operator, if Spark has stored it (OperatorStateMetadata)."""
    counts: dict[int, int] = {}
    for name in state:
        if match := _OPERATOR.fullmatch(name):
            with suppress(ValueError, RecursionError, IndexError):
                counts[int(match[1])] = _partition_count(load_json(lines_of((files.read(name) or b"").decode())[1]))
    return {operator: count for operator, count in counts.items() if count}


def _partition_count(metadata: Any) -> int:
    stores = metadata.get("stateStoreInfo", []) if isinstance(metadata, dict) else []
    counts = (
        [each.get("numPartitions") for each in stores if isinstance(each, dict)] if isinstance(stores, list) else []
    )
    known = (count for count in counts if isinstance(count, int) and 0 < count < _MOST_PARTITIONS)
    return max(known, default=0)


def _state_file(name: str) -> tuple[int, int, str, int, str] | None:
    match = _STATE.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), match[3] or "", int(match[4]), match[5])


def integer(value: Any) -> int:
    """Return the whole number in a log, or 0 if the value is something else."""
    return value if isinstance(value, int) else 0
