"""Problems in the logs of a checkpoint: `metadata`, `offsets`, `commits`, and the start of the sources."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise

from offsetkeeper.checkpoint.contents import Checkpoint
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_format import (
    NEWEST_COMMIT,
    NEWEST_OFFSETS,
    batch_numbers,
    corrupt,
    format_version,
    kafka_offsets,
    lines_of,
)
from offsetkeeper.checkpoint.problems import ANEW, BACKUP, SAME_NUMBER, UNKNOWN_FORMAT, Problem, error_of, way_back

_UUID = re.compile("[0-9a-fA-F]{1,12}(-[0-9a-fA-F]{1,12}){4}")
_HEAD = struct.Struct(">4sI")
_METADATA = 'Write {"id":"<uuid>"} into it: the old id of the query if an output uses that, otherwise a new id'


def log_problems(found: Checkpoint, files: Files) -> list[Problem]:
    """Return the problems of each file, and of their order."""
    problems = [*_identity(found), *_torn_offsets(found), *_torn_commits(found), *_initial(found)]
    return [*problems, *_unread(found, files), *_order(found), *_checksums(found, files), *_left(found)]


def _identity(found: Checkpoint) -> Iterator[Problem]:
    if "metadata" not in found.logs and (found.offsets or found.commits):
        yield Problem("metadata", "it is missing: Spark refuses to start, or takes a new query id", _METADATA)
    elif "metadata" in found.logs and (error := error_of(found.query_id)):
        yield Problem("metadata", error, f"{_METADATA}, and delete .metadata.crc")
    elif "metadata" in found.logs and not _UUID.fullmatch(found.query_id()):
        what = "its id is not a UUID: Spark refuses to start"
        yield Problem("metadata", what, f"{_METADATA}, and delete .metadata.crc")


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
            what = "its metadata line is empty, as continuous queries write it: a micro-batch query fails on it"
            yield Problem(name, what, "If the query is no longer continuous, run checkpoint complete")


def _offsets_remedy(found: Checkpoint, batch: int, last: int) -> str:
    if batch < last and last in found.commits:
        return f"Copy offsets/{last} to it and delete its .crc: {_only_read(batch)}"
    if batch < last:
        return f"{BACKUP}: it has the start of batch {last}. Else {ANEW}"
    if batch not in found.commits:
        state = ", and the folder state, which that batch created" if found.state and not batch else ""
        return f"Delete it and its .crc{state}: the batch is planned again, possibly with other ranges. {SAME_NUMBER}"
    return f"{BACKUP}. Else {ANEW}{way_back(found, batch - 1)}"


def _only_read(batch: int) -> str:
    return (
        "Spark reads it, but does not use its content. Where the batch ended is not known then: truncate and move "
        f"refuse batch {batch}"
    )


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
            remedy = f"{BACKUP}: it has the ids of the state{way_back(found, batch - 1)}"
            yield Problem(name, error, remedy)
        else:
            remedy = "Write v1 and {} into it, in two lines, and delete its .crc: the batch is done"
            yield Problem(name, error, remedy)


def _initial(found: Checkpoint) -> Iterator[Problem]:
    used = not found.offsets or (found.offsets[-1] == 0 and 0 not in found.commits)
    if error := error_of(found.initial):
        remedy = (
            "Seed it again. Or delete it with its .crc: the query then starts at startingOffsets. If they are latest, "
            "the default, it skips the records that have come since its first start"
        )
        yield Problem("sources", error, remedy) if used else _unused("sources", error)


def _unread(found: Checkpoint, files: Files) -> Iterator[Problem]:
    for folder in ("offsets", "commits"):
        names = {name.removeprefix(f"{folder}/") for name in found.listed if name.startswith(f"{folder}/")}
        unread = {number for number in batch_numbers(names) if f"{folder}/{number}" not in found.logs}
        still = batch_numbers(files.names(folder)) if unread else set()  # a query may have deleted it
        for number in sorted(unread & still):
            what = f"the file cannot be read, but a name in the folder means batch {number}: the query fails"
            yield Problem(f"{folder}/{number}", what, "Move it out of the folder")


def _order(found: Checkpoint) -> Iterator[Problem]:
    offsets, commits = found.offsets, found.commits
    last = offsets[-1] if offsets else -1
    for batch in (each for each in commits if each > last):
        what, remedy = "no offsets are there", f"{BACKUP}: offsets/{batch}. Else {ANEW}"
        if offsets:
            what = f"it is newer than all offsets: batch {last} runs again at every start, and {batch} fails at its end"
            remedy = f"{remedy}. If you delete it and its .crc, batches {last + 1} to {batch} run again. {SAME_NUMBER}"
        yield Problem(f"commits/{batch}", what, remedy)
    if last > 0 and last - 1 not in offsets:
        remedy = f"{BACKUP}{way_back(found, last - 1)}"
        if last in commits:
            remedy = f"Copy offsets/{last} to it: {_only_read(last - 1)}"
        remedy = f"{remedy}. Only a query with asynchronous progress tracking can start without it"
        yield Problem(f"offsets/{last - 1}", "it is missing: Spark needs it to start", remedy)
    committed = max((each for each in commits if each <= last), default=-1)
    if skipped := [each for each in offsets if committed < each < last]:
        what = f"batch {skipped[0]} was never committed, but only batch {last} runs again: its output may be missing"
        way = f"and move the query to the start of batch {skipped[0]}"
        if found.stateful:
            way = f"which a move cannot restore, because the query keeps state{way_back(found, committed)}"
        remedy = f"Compare the output, {way}"
        yield Problem(f"commits/{skipped[0]}", what, remedy)
    gaps = [one + 1 for one, other in pairwise(each for each in offsets if each != last) if other > one + 1]
    if gaps:
        yield _unused(f"offsets/{gaps[0]}", "it is missing; Spark no longer reads it")


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
            what = f"it does not match {of}, which was edited or is damaged; Spark ignores this, other readers fail"
            yield Problem(name, what, f"Compare {of} with a backup; if it is right, delete the checksum")


def _fits(content: bytes, checksum: bytes) -> bool:
    """Whether a checksum matches a file's content: Hadoop's form has a CRC-32 for every 512 bytes or so."""
    if len(checksum) < _HEAD.size:
        return False
    magic, size = _HEAD.unpack_from(checksum)
    if magic != b"crc\0" or not size:
        return False
    starts = range(0, len(content), size)
    if len(checksum) != _HEAD.size + 4 * len(starts):  # before a part for every byte is summed up
        return False
    sums = (each for (each,) in struct.iter_unpack(">I", memoryview(checksum)[_HEAD.size :]))
    return all(each == zlib.crc32(content[at : at + size]) for at, each in zip(starts, sums, strict=True))


def _left(found: Checkpoint) -> Iterator[Problem]:
    for name in (each for each in found.hidden if each.endswith(".tmp")):
        yield Problem(name, "an interrupted write has left it", "Delete it while no query runs", harmless=True)


def _unused(name: str, what: str) -> Problem:
    """Return the harmless note on a file that Spark no longer reads."""
    return Problem(name, what, "No action is needed", harmless=True)


def _offsets(found: Checkpoint, batch: int) -> None:
    log, where = found.offset_log(batch), found.at(f"offsets/{batch}")
    for name in ("batchWatermarkMs", "batchTimestampMs"):
        value = log.metadata.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise corrupt(where, f"{name} is not a number")
    settings = log.metadata.get("conf")
    if not isinstance(settings, dict | None) or any(isinstance(v, list | dict) for v in (settings or {}).values()):
        raise corrupt(where, "its settings are not valid")
    for source, text in log.sources.items():
        kafka_offsets(text, f"{where}, source {source}")


def _is_newer(found: Checkpoint, name: str, newest: int) -> bool:
    return (format_version(found.logs[name]) or 0) > newest
