"""Records that Kafka holds and a reader cannot give: the one text of their errors, and the place that it names."""

from __future__ import annotations

import re
from typing import NamedTuple

from offsetkeeper.errors import RecordUnreadable

_TEXT = "{} {}: the record at offset {} "
_PLACE = re.compile(r"^(\S+) (\d+): the record at offset (\d+) ")
_REMEDY = "A run, but no query, sets it aside with Policies(poison='quarantine'); `offsetkeeper replay` shows it"
BAD_TIME = "has the time {} ms since 1970, which Spark's timestamp cannot hold"


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


def unreadable(place: tuple[str, int, int], what: str) -> RecordUnreadable:
    """Return the error for a record.

    Args:
        place: topic, partition and offset.
        what: what the record has that the reader cannot give.
    """
    return RecordUnreadable(f"{_TEXT.format(*place)}{what}. {_REMEDY}")


def place_of(error: BaseException | None) -> Place | None:
    """Return the place that such an error names, also if a task has raised it; None for other errors."""
    match = _PLACE.match(str(error)) if isinstance(error, RecordUnreadable) else None
    return None if match is None else Place(match[1], int(match[2]), int(match[3]))
