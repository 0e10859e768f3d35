"""What is wrong with the logs of a checkpoint: `metadata`, `offsets`, `commits`, and where the sources began."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise

from offsetkeeper.checkpoint.contents import Checkpoint
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_format import (
    NEWEST_COMMIT,
    NEWEST_OFFSETS,
    batch_numbers,
    format_version,
    kafka_offsets,
    lines_of,
)
from offsetkeeper.checkpoint.problems import BACKUP, UNKNOWN_FORMAT, Problem, error_of
from offsetkeeper.core.model import TopicPartition
from offsetkeeper.errors import CorruptStore

_HEAD = struct.Struct(">4sI")
_METADATA = 'Write {"id":"<uuid>"} into it: the old id of the query if an output uses that, otherwise a new id'


def log_problems(found: Checkpoint, files: Files) -> list[Problem]:
    """Return what is wrong with each file, and with their order."""
    problems = [*_identity(found), *_torn_offsets(found), *_torn_commits(found), *_initial(found)]
    return [*problems, *_unread(found, files), *_order(found), *_checksums(found, files), *_left(found)]


def problems_at_start(found: Checkpoint) -> Iterator[Problem]:
    """Yield what is wrong with what the next start reads, where each file by itself is as it should be."""
    yield from _lost(found)
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


def _identity(found: Checkpoint) -> Iterator[Problem]:
    if "metadata" not in found.logs and (found.offsets or found.commits):
        yield Problem("metadata", "it is missing: Spark refuses to start, or takes a new query id", _METADATA)
    elif "metadata" in found.logs and (error := error_of(found.query_id)):
        yield Problem("metadata", error, f"{_METADATA}, and delete .metadata.crc")


def _torn_offsets(found: Checkpoint) -> Iterator[Problem]:
    last = max(found.offsets, default=-1)
    for batch in found.offsets:
        name = f"offsets/{batch}"
        if error := error_of(lambda batch=batch: _offsets(found, batch)):  # type: ignore[misc]
            if _is_newer(found, name, NEWEST_OFFSETS):
                yield Problem(name, error, UNKNOWN_FORMAT)
            elif batch < last - 1:
                yield _unused(name, error)
            else:
                yield Problem(name, error, _offsets_remedy(found, batch, last))
        elif batch >= last - 1 and not lines_of(found.logs[name].decode())[1].strip():
            what = "its line of metadata is empty, as continuous queries leave it: a micro-batch query fails on it"
            yield Problem(name, what, "If the query is not a continuous one, complete the checkpoint")


def _offsets_remedy(found: Checkpoint, batch: int, last: int) -> str:
    if batch < last and last in found.commits:
        return f"Copy offsets/{last} to it and delete its .crc: Spark reads it, and makes nothing of it"
    if batch < last:
        return f"{BACKUP}: it says where batch {last} starts. Else seed a new checkpoint from a store that knows that"
    if batch not in found.commits:
        return "Delete it and its .crc: the batch is planned anew, maybe with other ranges"
    again = f"truncate to batch {batch - 1}: batch {batch}, which is done, runs again" if batch else ""
    return f"{BACKUP}. Else seed a new checkpoint from a store that knows the offsets{again and ', or '}{again}"


def _torn_commits(found: Checkpoint) -> Iterator[Problem]:
    newest = max(found.commits, default=-1)
    for batch in found.commits:
        name = f"commits/{batch}"
        if not (error := error_of(lambda batch=batch: found.commit(batch))):  # type: ignore[misc]
            continue
        if batch < newest:
            yield _unused(name, error)
        elif _is_newer(found, name, NEWEST_COMMIT):
            yield Problem(name, error, UNKNOWN_FORMAT)
        elif found.state_ids:
            remedy = f"{BACKUP}: it names the state. Else truncate to batch {batch - 1}: batch {batch} runs again"
            yield Problem(name, error, remedy)
        else:
            remedy = "Write v1 and {} into it, in two lines, and delete its .crc: the batch is done"
            yield Problem(name, error, remedy)


def _initial(found: Checkpoint) -> Iterator[Problem]:
    used = not found.offsets or (found.offsets[-1] == 0 and 0 not in found.commits)
    if error := error_of(found.initial):
        remedy = "Seed it anew, or delete it with its .crc: the query begins where startingOffsets says"
        yield Problem("sources", error, remedy) if used else _unused("sources", error)


def _unread(found: Checkpoint, files: Files) -> Iterator[Problem]:
    for folder in ("offsets", "commits"):
        names = {name.removeprefix(f"{folder}/") for name in found.listed if name.startswith(f"{folder}/")}
        unread = {number for number in batch_numbers(names) if f"{folder}/{number}" not in found.logs}
        still = batch_numbers(files.names(folder)) if unread else set()  # a query may have deleted it meanwhile
        for number in sorted(unread & still):
            what = f"no file of that name can be read, and a name there stands for batch {number}: the query fails"
            yield Problem(f"{folder}/{number}", what, "Move what is there out of the folder")


def _order(found: Checkpoint) -> Iterator[Problem]:
    offsets, commits = found.offsets, found.commits
    last = offsets[-1] if offsets else -1
    for batch in (each for each in commits if each > last):
        what, remedy = "no offsets are there", f"{BACKUP}: offsets/{batch}. Else seed a new checkpoint"
        if offsets:
            what = (
                f"it is newer than all offsets: batch {last} runs again at every start, {batch} fails when it is done"
            )
            remedy = f"{remedy}. To delete it and its .crc lets batches {last + 1} to {batch} run again"
        yield Problem(f"commits/{batch}", what, remedy)
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
        yield _unused(f"offsets/{gaps[0]}", "it is missing; Spark does not read it any more")


def _checksums(found: Checkpoint, files: Files) -> Iterator[Problem]:
    for name in (each for each in found.hidden if each.endswith(".crc")):
        folder, _, base = name.rpartition("/")
        of = f"{folder}/{base[1:-4]}" if folder else base[1:-4]
        if not (base[1:-4].removesuffix(".compact").isdigit() or of == "metadata"):
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
    for name in (each for each in found.hidden if each.endswith(".tmp")):
        yield Problem(name, "a write was cut off and has left it", "Delete it while no query runs", harmless=True)


def _lost(found: Checkpoint) -> Iterator[Problem]:
    """Yield what a source knew, and does not know any more: Spark begins there again."""
    if not found.offsets:
        return
    last = found.offsets[-1]
    read = {last} if last in found.commits else {last - 1, last}
    known: dict[str, dict[TopicPartition, int]] = {}
    if found.offsets[0] == 0 and not error_of(found.initial):
        known = {source: dict.fromkeys(kafka_offsets(text, ""), -1) for source, text in found.initial().items()}
    for batch, sources in _readable(found):
        for source, text in sources.items():
            there, before = kafka_offsets(text, ""), known.setdefault(source, {})
            if batch in read and (lost := sorted(before.keys() - there.keys())):
                since = max(before[tp] for tp in lost)
                yield Problem(f"offsets/{batch}", _told(source, lost, since), _lost_remedy(batch, since))
            before |= dict.fromkeys(there, batch)


def _told(source: str, lost: list[TopicPartition], since: int) -> str:
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    knew = f"batch {since} had" if since >= 0 else "the query began with"
    return f"source {source} has no offset of {lost[0]}{more}, which {knew}: Spark reads from the beginning, or fails"


def _lost_remedy(batch: int, since: int) -> str:
    truncate = f", or truncate to batch {since}" if since >= 0 else ""
    topic = "Where the topic was deleted, or the query does not read it any more, nothing is to be done"
    return f"{BACKUP}: offsets/{batch}{truncate}. {topic}"


def _readable(found: Checkpoint) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    for batch in found.offsets:
        try:
            yield batch, found.offset_log(batch).sources
        except CorruptStore:  # an old one, that does no harm
            continue


def _unused(name: str, what: str) -> Problem:
    """Return what is told of a file that Spark does not read any more."""
    return Problem(name, what, "Nothing is to be done", harmless=True)


def _offsets(found: Checkpoint, batch: int) -> None:
    for source, text in found.offset_log(batch).sources.items():
        kafka_offsets(text, found.at(f"offsets/{batch}, source {source}"))


def _is_newer(found: Checkpoint, name: str, newest: int) -> bool:
    return (format_version(found.logs[name]) or 0) > newest
