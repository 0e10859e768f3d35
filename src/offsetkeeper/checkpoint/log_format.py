"""The text formats of the files in a streaming query's checkpoint. No I/O.

    metadata           {"id":"<query id>"}
    offsets/<batch>    v1, a line of metadata, and a line for each source: where the batch ends, or "-" for nowhere yet.
                       v2: the same, with "<source id>:" before each source's line.
    commits/<batch>    v1 to v3, and a line of metadata: the batch is done.
    sources/<id>/0     v1 after a NUL, and Kafka's offsets where the first batch begins.

A batch is written to offsets before it runs, and to commits after it. Files whose names are not numbers do not count.
The source: OffsetSeqLog, CommitLog and KafkaSourceInitialOffsetWriter of Spark 4.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offsetkeeper.core.offsets import TopicPartition, by_topic, check_offset, check_partition
from offsetkeeper.core.outside import load_json, reason
from offsetkeeper.errors import CorruptStore

Offsets = Mapping[TopicPartition, int]
NOTHING = "-"
STARTS = "offsetkeeper.starts"
"""A setting of ours in `conf` of the first batch: where it begins. The packed source does not store it."""
NEWEST_OFFSETS, NEWEST_COMMIT, NEWEST_INITIAL = 2, 3, 1  # the newest known versions of the formats
_MAX_BATCH = 2**63 - 1  # a Long in Spark, which ignores other names
MOST_LINES = 100_000
"""Lines of a log: one for each source of the query."""
_LONGEST = 40  # digits, with leading zeros; Python refuses thousands
BARRIER = "offsetkeeper\n"  # first line of the file that a running change writes into `offsets`


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """One file of `offsets`.

    Attributes:
        version: version of the format, 1 or 2.
        metadata: watermark, time and settings of the batch; empty if a continuous query wrote it.
        sources: end of the batch by source id ("0", "1", … unless sources have names), as JSON in the source's own
            form; None if the source had nothing yet.
    """

    version: int
    metadata: Mapping[str, Any]
    sources: Mapping[str, str | None]


class TooManyLines(ValueError):
    """A text has so many short lines that they would take gigabytes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it has more than {most:,} lines")


def batch_numbers(names: Iterable[str]) -> set[int]:
    """Return the numbers of the batches among the names of files in `offsets` or `commits`, as Java reads numbers.

    So `002`, `+2` and digits of other scripts are numbers too; Spark then looks for the file `2` and fails.
    """
    digits = (name for name in names if name.removeprefix("+").isdecimal() and len(name) <= _LONGEST)
    return {number for number in map(int, digits) if number <= _MAX_BATCH}


def kafka_offsets(text: str | None, where: str) -> Offsets:
    """Return offsets in the form of Kafka's source; empty for a source of another kind, or without a text.

    Raises:
        CorruptStore: the text has Kafka's form, but invalid values.
    """
    found = None if text is None else json_value(text, where)
    if not isinstance(found, dict) or not all(isinstance(parts, dict) for parts in found.values()):
        return {}
    flat = [(topic, number, offset) for topic, parts in found.items() for number, offset in parts.items()]
    if not all(number.isascii() and number.isdigit() for _, number, _ in flat):
        return {}
    try:
        return {check_partition(TopicPartition(topic, int(n))): check_offset(offset) for topic, n, offset in flat}
    except ValueError:  # also for a number of thousands of digits
        raise corrupt(where, "it holds what is not an offset or not a partition") from None


def offsets_by_source(sources: Mapping[str, str | None]) -> dict[tuple[str, TopicPartition], int]:
    """Return the offset of each Kafka partition in each source, by the source's id.

    Raises:
        CorruptStore: see `kafka_offsets`.
    """
    return {
        (name, tp): at for name, text in sources.items() for tp, at in kafka_offsets(text, f"source {name}").items()
    }


def is_file_source(text: str | None) -> bool:
    """Whether an offset is from a file source: it is the number of the newest list."""
    found = load_json(text or "null")
    return isinstance(found, dict) and found.keys() == {"logOffset"}


def file_list(text: str | None) -> int | None:
    """Return the number of a file source's newest list; None for other sources or an invalid number."""
    number = load_json(text or "null")["logOffset"] if is_file_source(text) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def lowest_offsets(sources: Mapping[str, str | None], where: Callable[[str], str]) -> dict[TopicPartition, int]:
    """Return the offset of each Kafka partition; if several sources read it, the lowest.

    Args:
        sources: the text of each source, by its id.
        where: returns the place of a source, for messages.

    Raises:
        CorruptStore: see `kafka_offsets`.
    """
    lowest: dict[TopicPartition, int] = {}
    for name, text in sources.items():
        for tp, offset in kafka_offsets(text, where(name)).items():
            lowest[tp] = min(offset, lowest.get(tp, offset))
    return lowest


def dump_offset_log(log: OffsetLog) -> bytes:
    """Return a file of `offsets`; version 1 has no source ids, only their order."""
    ends = {name: NOTHING if end is None else end for name, end in log.sources.items()}
    lines = ends.values() if log.version == 1 else (f"{name}:{end}" for name, end in ends.items())
    return "\n".join([f"v{log.version}", _compact(log.metadata), *lines]).encode()


def dump_commit(watermark_ms: int) -> bytes:
    """Return a file of `commits` for a query without state."""
    return f"v1\n{_compact({'nextBatchWatermarkMs': watermark_ms})}".encode()


def dump_initial_offsets(offsets: Offsets) -> bytes:
    """Return a file `sources/<id>/0`."""
    return f"\0v1\n{dump_offsets(offsets)}".encode()


def dump_metadata(query_id: str) -> bytes:
    """Return the file `metadata`."""
    return _compact({"id": query_id}).encode()


def dump_offsets(offsets: Offsets) -> str:
    """Return offsets in the form that Kafka's source writes and its option `startingOffsets` takes."""
    return _compact(by_topic(offsets))


def move_offsets(text: str, targets: Offsets) -> str:
    """Return a source's JSON with other offsets for some partitions; order and spacing stay: Spark compares text."""
    topics = json.loads(text)
    for tp, offset in sorted(targets.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(topics) if '": ' in text else _compact(topics)


def format_version(content: bytes) -> int | None:
    """Return the format version at the start of a file, or None if there is none."""
    found = re.match(rb"v([0-9]{1,9})\s*(?:\r|\n|$)", content)
    return None if found is None else int(found[1])


def lines_of(text: str, most: int = MOST_LINES) -> list[str]:
    """Return the lines of a text as Spark reads them: each ends with a line feed, a carriage return, or both.

    Raises:
        TooManyLines: there are more than `most`: each would take fifty bytes of memory or more.
    """
    if len(text) > most and text.count("\n") + text.count("\r") > 2 * most:
        raise TooManyLines(most)
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def json_value(text: str, where: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        CorruptStore: the text is damaged or not JSON.
    """
    try:
        return load_json(text)
    except (ValueError, RecursionError) as error:
        raise corrupt(where, f"it is damaged: {reason(error)}") from None


def corrupt(where: str, why: str) -> CorruptStore:
    """Return the error for a file with a wrong text, of which it shows nothing."""
    return CorruptStore(f"{where} is not what Spark writes there: {why}. Nothing was changed: correct or delete it")


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
