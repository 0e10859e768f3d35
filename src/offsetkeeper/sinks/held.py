"""Which batches an output holds, as the output's own metadata tells it to everyone. Pure.

An Iceberg table has it in the summary of a snapshot, a Delta table in the information on a commit, a folder of `Files`
in the file `_offsetkeeper` of each batch, a topic beside the mark of its last batch:

    offsetkeeper.group    the consumer group
    offsetkeeper.batch    the id of the batch: group/token/sequence
    offsetkeeper.output   the name of the output; missing if it is the only one
    offsetkeeper.offsets  a line "topic partition start end" for each range
    offsetkeeper.dropped  "true" instead, if the batch can never land
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from offsetkeeper.core.batch import batch_id
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.offsets import OffsetRange, check_offset, check_partition
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks.sink import MarkKey

_GROUP, _BATCH, _OUTPUT = "offsetkeeper.group", "offsetkeeper.batch", "offsetkeeper.output"
_ID = re.compile(r".+/[^/]*/[0-9]{1,19}", re.DOTALL)
_OFFSETS, _DROPPED = "offsetkeeper.offsets", "offsetkeeper.dropped"


class HeldBatch(NamedTuple):
    """A batch that an output holds.

    Attributes:
        place: where it is in the output, such as "version 7".
        group: the consumer group.
        output: name of the output; empty if it is the only one of its program.
        batch: the id of the batch: group/token/sequence.
        ranges: the offsets of its records; None if the output does not tell them, as an older release wrote the batch,
            or as they are too many for a topic.
        dropped: whether the batch was dropped, so that the output has none of it.
    """

    place: str
    group: str
    output: str
    batch: str
    ranges: tuple[OffsetRange, ...] | None
    dropped: bool = False

    @classmethod
    def of(cls, place: str, told: Mapping[str, Any]) -> Self | None:
        """Return the batch that metadata tells of; None if they are of another program, or are no such metadata."""
        batch, dropped = told.get(_BATCH), told.get(_DROPPED) == "true"
        if not isinstance(batch, str) or not isinstance(told.get(_GROUP), str) or not _ID.fullmatch(batch):
            return None
        ranges = () if dropped else parse_ranges(told.get(_OFFSETS))
        return cls(place, told[_GROUP], str(told.get(_OUTPUT, "")), batch, ranges, dropped)

    @classmethod
    def untold(cls, place: str, key: MarkKey, mark: OutputMark) -> Self:
        """Return the batch of a mark that tells no offsets."""
        batch = batch_id(key.group, mark.token, mark.sequence)
        return cls(place, *key, batch, () if mark.void else None, mark.void)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; `ranges` are lists of topic, partition, start and end, or null."""
        return self._asdict() | {"ranges": None if self.ranges is None else [[*each] for each in self.ranges]}


class Held(NamedTuple):
    """What an output holds.

    Attributes:
        batches: the oldest first.
        lacks: why older batches may be missing here; empty if there are none.
        changed: what others have done to rows of these batches; empty if nothing.
    """

    batches: tuple[HeldBatch, ...]
    lacks: str = ""
    changed: str = ""

    @property
    def whole(self) -> bool:
        """Whether the batches are all that the output ever had, each with its offsets."""
        return not self.lacks and all(each.ranges is not None for each in self.batches)


def told(key: MarkKey, mark: OutputMark, offsets: str | None) -> dict[str, str]:
    """Return what an output tells of a batch.

    Args:
        key: group and output.
        mark: the batch's mark.
        offsets: the lines of its ranges; None if the batch is dropped.
    """
    about = {_GROUP: key.group, _BATCH: batch_id(key.group, mark.token, mark.sequence)}
    if key.output:
        about[_OUTPUT] = key.output
    return about | ({_DROPPED: "true"} if offsets is None else {_OFFSETS: offsets})


def as_text(about: Mapping[str, str], longest: int) -> str:
    """Return what an output tells of a batch as JSON of at most so many characters.

    Without the offsets if they are too long; empty if the rest is too long as well.
    """
    texts = (json.dumps(about), json.dumps({name: value for name, value in about.items() if name != _OFFSETS}))
    return next((text for text in texts if len(text) <= longest), "")


def tells(about: Mapping[str, Any], key: MarkKey, mark: OutputMark) -> bool:
    """Return whether metadata tell of the batch of a mark; of a void mark, that it was dropped."""
    batch = HeldBatch.of("", about)
    if batch is None:
        return False
    mine = (batch_id(key.group, mark.token, mark.sequence), key.output, mark.void)
    return (batch.batch, batch.output, batch.dropped) == mine


def parse_ranges(lines: object) -> tuple[OffsetRange, ...] | None:
    """Return the ranges of such lines; None if they are not there, or another program has changed them."""
    if not isinstance(lines, str):
        return None
    try:
        return tuple(_ranges(lines.splitlines()))
    except (ValueError, SettingsError):
        return None


def _ranges(lines: Iterable[str]) -> Iterable[OffsetRange]:
    for line in lines:
        topic, *numbers = line.split(" ")
        partition, start, end = map(int, numbers)
        found = OffsetRange(topic, partition, check_offset(start), check_offset(end))
        check_partition(found.topic_partition)
        yield found
