"""Problems in the files that the next start reads, although each file by itself is valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from offsetkeeper.checkpoint.contents import Checkpoint
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_format import OffsetLog, file_list, kafka_offsets
from offsetkeeper.checkpoint.problems import ANEW, BACKUP, SAME_NUMBER, Problem, error_of, way_back
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import CorruptStore

_MADE_AGAIN = "If the topic was created again, no action is needed"


def problems_at_start(found: Checkpoint, files: Files) -> Iterator[Problem]:
    """Yield the places where batches contradict each other or are missing."""
    if not found.offsets:
        yield from _nothing_planned(found, files)
        return
    yield from _lost(found)
    yield from _backwards(found)
    yield from _went_back(found)
    yield from _sources(found)


def _nothing_planned(found: Checkpoint, files: Files) -> Iterator[Problem]:
    both = f"{BACKUP}: offsets and commits"
    if found.state:
        yield Problem("state", "it exists, but no batch does: the query fails", f"{both}. Else begin a new checkpoint")
    elif "metadata" in found.logs and "offsets" not in files.names(""):
        what = "a query was started here, but the folder is gone: Spark starts again, where its sources began"
        yield Problem("offsets", what, f"{both}. Else {ANEW}")
    elif "metadata" in found.logs:
        what = "a query was started here, but no batch is planned: Spark starts where its sources start"
        yield Problem("offsets", what, f"If batches have run, do not start it. {both}", harmless=True)


def _lost(found: Checkpoint) -> Iterator[Problem]:
    """Yield partitions that a source knew and no longer knows: Spark starts them again."""
    last = found.offsets[-1]
    read = {last} if last in found.commits else {last - 1, last}
    known: dict[str, dict[TopicPartition, int]] = {}
    if found.offsets[0] == 0 and not error_of(found.initial):
        known = {source: dict.fromkeys(kafka_offsets(text, ""), -1) for source, text in found.initial().items()}
    for batch, log in _readable(found).items():
        for source, text in log.sources.items():
            there, before = kafka_offsets(text, ""), known.setdefault(source, {})
            if batch in read and (lost := sorted(before.keys() - there.keys())):
                since = max(before[tp] for tp in lost)
                topic = "If the topic was deleted, or the query no longer reads it, no action is needed"
                remedy = f"{BACKUP}: offsets/{batch}{way_back(found, since)}. {topic}"
                yield Problem(f"offsets/{batch}", _told(source, lost, since), remedy)
            before |= dict.fromkeys(there, batch)


def _told(source: str, lost: list[TopicPartition], since: int) -> str:
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    knew = f"batch {since} had" if since >= 0 else "the query began with"
    return f"source {source} has no offset of {lost[0]}{more}, which {knew}: Spark reads from the beginning, or fails"


def _backwards(found: Checkpoint) -> Iterator[Problem]:
    """Yield the partitions in which the next batch ends before it starts."""
    following = found.next()
    if following.ends and (back := _before(following.ends, following.starts)):
        what = f"batch {following.batch} ends before it starts in {back}: Spark fails, or skips the partition"
        move = "" if found.stateful else ", or move the query"
        yield Problem(f"offsets/{following.batch}", what, f"Delete it and its .crc{move}. {SAME_NUMBER}")


def _went_back(found: Checkpoint) -> Iterator[Problem]:
    """Yield the places where the newest batch is done but ends before the batch before it: a wrong or old file.

    A move does this on purpose: it keeps the time of the batch before it, and Spark never does.
    """
    last = found.offsets[-1]
    if last not in found.commits or last - 1 not in found.offsets:
        return
    log, before = found.offset_log(last), found.offset_log(last - 1)
    if planned_at(log) == planned_at(before):
        return
    if back := _before(log.sources, before.sources):
        what = f"it ends before batch {last - 1} does in {back}: Spark reads again from there, or fails"
        move = "" if found.stateful else f", or move the query --to-batch {last - 1}"
        yield Problem(f"offsets/{last}", what, f"{BACKUP}{move}. {_MADE_AGAIN}")


def planned_at(log: OffsetLog) -> object:
    """Return the time that Spark has stored for a batch."""
    return log.metadata.get("batchTimestampMs")


def _before(ends: Mapping[str, str | None], starts: Mapping[str, str | None]) -> str:
    """Return the partition in which a source ends before it starts, or an empty text."""
    for source, text in ends.items():
        at, lists = kafka_offsets(starts.get(source), ""), (file_list(starts.get(source)), file_list(text))
        for tp, end in sorted(kafka_offsets(text, "").items()):
            if end < at.get(tp, 0):
                return str(tp)
        if lists[0] is not None and lists[1] is not None and lists[1] < lists[0]:
            return f"source {source}, which reads files"
    return ""


def _sources(found: Checkpoint) -> Iterator[Problem]:
    """Yield batches with other sources than the newest batch: Spark starts no query with another number of sources."""
    last = found.offsets[-1]
    logs = _readable(found)
    count = len(logs[last].sources)
    others = [batch for batch, log in logs.items() if len(log.sources) != count]
    what = f"it has {count} sources"
    if others and others[-1] == last - 1:
        what = f"{what}, the one before {len(logs[last - 1].sources)}"
        yield Problem(f"offsets/{last}", what, f"{BACKUP}{way_back(found, last - 1)}")
    elif others:
        what = f"{what}, but batch {others[-1]} has {len(logs[others[-1]].sources)}: one of them is of another query"
        yield Problem(f"offsets/{last}", what, f"If the query has not changed: {BACKUP.lower()}", harmless=True)
    elif begun := [each for each in _begun(found) if each.isdecimal() and count <= int(each)]:
        what = f"{what}, and sources/{begun[0]} is of one more"
        yield Problem(f"offsets/{last}", what, f"If the query has not changed: {BACKUP.lower()}", harmless=True)


def _begun(found: Checkpoint) -> list[str]:
    """Return the sources that have stored their start, if sources have numbers and not names."""
    named = not all(name.isdecimal() for name in found.offset_log(found.offsets[-1]).sources)
    return [] if named or error_of(found.initial) else sorted(found.initial())


def _readable(found: Checkpoint) -> dict[int, OffsetLog]:
    logs = {}
    for batch in found.offsets:
        try:
            logs[batch] = found.offset_log(batch)
        except CorruptStore:  # an old file, harmless
            continue
    return logs
