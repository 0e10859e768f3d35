"""What is wrong with a checkpoint, all of it at once, each with its remedy."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from offsetkeeper.checkpoint.contents import Checkpoint, read_checkpoint
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_format import kafka_offsets
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import CorruptStore

_HEAD = struct.Struct(">4sI")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or worth knowing.

    Attributes:
        file: where, relative to the checkpoint.
        what: what is wrong there, and what comes of it.
        remedy: what to do.
        harmless: whether Spark starts from the checkpoint as it should nevertheless.
    """

    file: str
    what: str
    remedy: str
    harmless: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return plain(self)

    def __str__(self) -> str:
        return f"{'note' if self.harmless else 'wrong'} {self.file}: {self.what}. {self.remedy}"


def verify(files: Files) -> list[Problem]:
    """Return what is wrong, in the order in which to mend it.

    Raises:
        SettingsError: there is no checkpoint, or it may not be read.
        StoreUnavailable: it could not be read.
    """
    found = read_checkpoint(files)
    if found.barrier:
        what = "a change was cut off; Spark refuses to start a query from here"
        return [Problem(found.barrier, what, "Undo the change")]
    findings = [*_identity(found), *_torn(found), *_order(found)]
    findings += [*_checksums(found, files), *_left(found)]
    if not any(not each.harmless for each in findings):
        findings += [*_under_way(found), *_state(found)]
    return findings


def _identity(found: Checkpoint) -> Iterator[Problem]:
    if "metadata" not in found.logs and (found.offsets or found.commits):
        remedy = 'Write {"id":"<uuid>"} into it: the query\'s old id where an output goes by it, else a new one'
        yield Problem("metadata", "it is missing: Spark refuses to start, or takes a new query id", remedy)
    elif "metadata" in found.logs and (error := _error(found.query_id)):
        yield Problem("metadata", error, 'Write {"id":"<uuid>"} into it, and delete .metadata.crc')


def _torn(found: Checkpoint) -> Iterator[Problem]:
    last = max(found.offsets, default=-1)
    for batch in found.offsets:
        if error := _error(lambda batch=batch: _offsets(found, batch)):  # type: ignore[misc]
            yield Problem(f"offsets/{batch}", error, _torn_remedy(found, batch, last))
        elif not found.offset_log(batch).metadata and batch >= last - 1:
            what = "its line of metadata is empty, as continuous queries leave it: a micro-batch query fails on it"
            yield Problem(f"offsets/{batch}", what, "Complete the checkpoint, if the query is no continuous one")
    for batch in found.commits:
        if error := _error(lambda batch=batch: found.commit(batch)):  # type: ignore[misc]
            remedy = "Delete it and its .crc; the batch runs again" if batch == last else "Delete it and its .crc"
            yield Problem(f"commits/{batch}", error, remedy)
    if error := _error(found.initial):
        yield Problem("sources", error, "It counts until batch 0 is done: seed it anew, or delete it with its .crc")


def _torn_remedy(found: Checkpoint, batch: int, last: int) -> str:
    if batch < last - 1:
        return "Spark does not read it any more: delete it and its .crc"
    if batch == last and batch not in found.commits:
        return "Delete it and its .crc: the batch is planned anew, maybe with other ranges"
    return "Truncate to a batch before it, or seed a new checkpoint from a store that knows the offsets"


def _order(found: Checkpoint) -> Iterator[Problem]:
    offsets, commits = found.offsets, found.commits
    last = offsets[-1] if offsets else -1
    for batch in (each for each in commits if each > last):
        what = "no offsets are there"
        if offsets:
            what = (
                f"it is newer than all offsets: batch {last} runs again at every start, {batch} fails when it is done"
            )
        yield Problem(f"commits/{batch}", what, "Put the offsets back, or delete it and its .crc")
    if last > 0 and last - 1 not in offsets:
        remedy = "Only a query with asynchronous progress tracking starts from here"
        if last in commits:
            remedy = f"Copy offsets/{last} to it: it is read, and of no consequence. {remedy} without"
        yield Problem(f"offsets/{last - 1}", "it is missing: Spark needs it to start", remedy)
    committed = max((each for each in commits if each <= last), default=-1)
    if skipped := [each for each in offsets if committed < each < last]:
        what = f"batch {skipped[0]} was never committed, and only batch {last} runs again: its output may be missing"
        remedy = f"Compare the output, and move the query to where batch {skipped[0]} starts"
        yield Problem(f"commits/{skipped[0]}", what, remedy)
    gaps = [one + 1 for one, other in pairwise(each for each in offsets if each != last) if other > one + 1]
    if gaps:
        what = "it is missing; Spark does not read it any more"
        yield Problem(f"offsets/{gaps[0]}", what, "Nothing is to be done", harmless=True)


def _checksums(found: Checkpoint, files: Files) -> Iterator[Problem]:
    for name in sorted(each for each in found.hidden if each.endswith(".crc")):
        folder, _, base = name.rpartition("/")
        of = f"{folder}/{base[1:-4]}" if folder else base[1:-4]
        if not (base[1:-4].isdigit() or of == "metadata"):
            continue
        content, checksum = found.logs.get(of) or files.read(of), files.read(name)
        if content is None:
            what = f"its file is gone: when Spark writes {of} again, the query fails after the batch has run"
            yield Problem(name, what, "Delete it")
        elif checksum is not None and not _fits(content, checksum):
            what = f"it does not fit {of}, which was edited or is damaged; Spark does not look, other readers fail"
            yield Problem(name, what, f"Compare {of} with a backup; if it is right, delete the checksum")


def _fits(content: bytes, checksum: bytes) -> bool:
    """Whether a checksum is that of a file's content: in Hadoop's form, a CRC-32 of every 512 bytes or so."""
    if len(checksum) < _HEAD.size:
        return False
    magic, size = _HEAD.unpack_from(checksum)
    if magic != b"crc\0" or not size:
        return False
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return checksum[_HEAD.size :] == b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)


def _left(found: Checkpoint) -> Iterator[Problem]:
    for name in sorted(each for each in found.hidden if each.endswith(".tmp")):
        yield Problem(name, "a write was cut off and has left it", "Delete it while no query runs", harmless=True)


def _under_way(found: Checkpoint) -> Iterator[Problem]:
    following = found.next()
    for source, text in (following.ends or {}).items():
        starts = kafka_offsets(following.starts.get(source), "")
        back = [tp for tp, end in kafka_offsets(text, "").items() if end < starts.get(tp, 0)]
        if back:
            what = f"batch {following.batch} ends before it starts in {back[0]}: Spark fails, or skips the partition"
            yield Problem(f"offsets/{following.batch}", what, "Delete it and its .crc, or move the query")
    if len(found.offsets) > 1:
        counts = [len(found.offset_log(batch).sources) for batch in found.offsets[-2:]]
        if counts[0] != counts[1]:
            what = f"it has {counts[1]} sources, the one before {counts[0]}"
            yield Problem(f"offsets/{found.offsets[-1]}", what, "Truncate to the batches of one query")


def _state(found: Checkpoint) -> Iterator[Problem]:
    if not found.stateful:
        return
    version = found.next().batch
    stores = found.state_stores()
    numbers: dict[tuple[int, str], set[int]] = {}
    for store in stores:
        numbers.setdefault((store.operator, store.name), set()).add(store.partition)
        if not store.has(version):
            what = f"the state before batch {version} is not there: the query fails"
            yield Problem(str(store), what, "Truncate to a batch whose state is there, or seed a new checkpoint")
    for (operator, name), there in sorted(numbers.items()):
        for missing in sorted(set(range(max(there))) - there):
            what = "the state of the partition is missing: the query fails"
            yield Problem(
                f"state/{operator}/{missing}/{name}".rstrip("/"), what, "Bring it back, or seed a new checkpoint"
            )


def _offsets(found: Checkpoint, batch: int) -> None:
    for source, text in found.offset_log(batch).sources.items():
        kafka_offsets(text, found.at(f"offsets/{batch}, source {source}"))


def _error(read: Callable[[], object]) -> str:
    try:
        read()
    except CorruptStore as error:
        return str(error).partition(". Nothing was changed")[0]
    return ""
