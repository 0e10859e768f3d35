r"""The files of a checkpoint: text in, values out. Pure.

    metadata          {"id":"<uuid>"}
    offsets/N         v1\n<metadata>\n<source 0>\n<source 1>…         "-" for a source without an offset
                      v2\n<metadata>\n<name>:<source>\n…               the name is the source's, or its number
    commits/N         v1\n{"nextBatchWatermarkMs":0}                   v2, v3: more keys
    sources/<name>/0  \0v1\n<source>                                   of Kafka's source only: where it began

A source of Kafka, and the packed one, writes its offset as `{"topic":{"0":23}}`: the next offset of each partition.

Sources: OffsetSeqLog.scala, CommitLog.scala and KafkaSourceInitialOffsetWriter.scala of Apache Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offsetkeeper.errors import CorruptCheckpoint
from offsetkeeper.model import MAX_OFFSET, TopicPartition

Offsets = Mapping[TopicPartition, int]
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """One file of `offsets/`: where the batch ends in each source.

    Attributes:
        version: of the format, 1 or 2.
        metadata: watermark, time and settings, as Spark wrote them.
        sources: the offset of each source by its name, in the order of the file; None where it has none.
    """

    version: int
    metadata: Mapping[str, Any]
    sources: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class CommitLog:
    """One file of `commits/`.

    Attributes:
        version: of the format.
        content: what the batch left behind, as Spark wrote it.
    """

    version: int
    content: Mapping[str, Any]


def parse_offset_log(text: str, where: str) -> OffsetLog:
    """Return what a file of `offsets/` says; `where` names it in messages.

    Raises:
        CorruptCheckpoint: it is not such a file.
    """
    version, lines = _versioned(text, where, newest=2)
    if not lines:
        raise _corrupt(where, "it ends after its first line")
    metadata = _object(lines[0], where) if lines[0] else {}  # the continuous trigger writes none
    sources: dict[str, str | None] = {}
    for number, line in enumerate(lines[1:]):
        name, separator, offset = (str(number), ":", line) if version == 1 else line.partition(":")
        if not separator or not name or name in sources:
            raise _corrupt(where, f"{line[:40]!r} is no line `source:offset` of its own")
        sources[name] = None if offset == _NOTHING else offset
    return OffsetLog(version, metadata, sources)


def parse_commit_log(text: str, where: str) -> CommitLog:
    """Return what a file of `commits/` says; `where` names it in messages.

    Raises:
        CorruptCheckpoint: it is not such a file.
    """
    version, lines = _versioned(text, where, newest=3)
    return CommitLog(version, _object("\n".join(lines), where))


def parse_metadata(text: str, where: str) -> str:
    """Return the query's id.

    Raises:
        CorruptCheckpoint: it is not such a file.
    """
    found = _object(text, where).get("id")
    if not isinstance(found, str) or not found:
        raise _corrupt(where, "it has no id")
    return found


def parse_initial_offsets(text: str, where: str) -> Offsets:
    """Return where Kafka's source began.

    Raises:
        CorruptCheckpoint: it is not such a file.
    """
    if not text.startswith("\0"):
        raise _corrupt(where, "it does not begin with a zero byte")
    _, lines = _versioned(text[1:], where, newest=1)
    offsets = parse_offsets("\n".join(lines))
    if offsets is None:
        raise _corrupt(where, "it holds no offsets of partitions")
    return offsets


def parse_offsets(text: str) -> Offsets | None:
    """Return the offsets of a source that writes them as Kafka's does, or None where `text` is something else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        return None
    flat = [(topic, number, offset) for topic, each in found.items() for number, offset in each.items()]
    if not all(number.isdecimal() and _is_offset(offset) for _, number, offset in flat):
        return None
    return {TopicPartition(topic, int(number)): offset for topic, number, offset in flat}


def offsets_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets as a source writes them, always in the same order: Spark compares the texts."""
    found: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return found


def initial_offsets_text(offsets: Offsets) -> str:
    """Return what Kafka's source reads as where it began: the opposite of `parse_initial_offsets`."""
    return f"\0v1\n{json.dumps(offsets_json(offsets), separators=(',', ':'))}"


def _versioned(text: str, where: str, newest: int) -> tuple[int, list[str]]:
    first, *lines = text.removesuffix("\n").split("\n")
    if not first.startswith("v") or not first[1:].isdecimal() or not 1 <= int(first[1:]) <= newest:
        raise _corrupt(where, f"its first line is {first[:40]!r}, and v1 to v{newest} are known")
    return int(first[1:]), lines


def _object(text: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _corrupt(where, f"{text[:40]!r} is no JSON") from error
    if not isinstance(found, dict):
        raise _corrupt(where, f"{text[:40]!r} is no JSON object")
    return found


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_OFFSET


def _corrupt(where: str, why: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{where} is not what Spark writes there: {why}. It was left as it is; delete the checkpoint to go on from the "
        "ledger, or put the file back"
    )
