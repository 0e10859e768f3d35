"""The control record and the history entry of a group as JSON: the same text in every store.

The positions are not in it: they are the store's own rows, in the layout people know.

Format 3 (this one) has `landed`, `unsettled` and the pending batch's `lands_in`. Format 2 has `token` in the pending
batch and in history entries. In format 1 a batch was named by its generation, which is read as its token: a batch that
was pending then keeps its identity.
"""

from __future__ import annotations

import json
import re
from typing import Any

from offsetkeeper.core.model import (
    NO_POSITIONS,
    Batch,
    Entry,
    Move,
    OffsetRange,
    Owner,
    Position,
    Positions,
    Snapshot,
    TopicPartition,
    check_offset,
    check_partition,
)
from offsetkeeper.core.outside import load_stored
from offsetkeeper.errors import CorruptStore, SettingsError

FORMAT = 3
_VERSION = re.compile("[0-9]{1,19}")
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, milliseconds since 1970: what is later, no calendar could show."""
GARBAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what reading a record can raise


def dump_control(snapshot: Snapshot) -> str:
    """Return all of `snapshot` but its group, version and positions as one line of JSON."""
    return _dump(control_fields(snapshot))


def control_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return what `dump_control` writes, as plain values."""
    owner, pending, unsettled = snapshot.owner, snapshot.pending, snapshot.unsettled
    return {
        "format": FORMAT,
        "owner": None if owner is None else {"id": owner.id, "epoch": owner.epoch, "name": owner.name},
        "epoch": snapshot.epoch,
        "generation": snapshot.generation,
        "sequence": snapshot.sequence,
        "pending": None if pending is None else _pending(pending),
        "change_id": snapshot.change_id,
        "landed": {**snapshot.landed},
        "unsettled": None if unsettled is None else {**_pending(unsettled), "sequence": unsettled.sequence},
    }


def control_mark(snapshot: Snapshot) -> str:
    """Return text that the control record of this ledger has in it, and that of no other ledger of its version."""
    return f'"change_id":{_dump(snapshot.change_id)}'


def load_control(text: str, group: str, version: int, positions: Positions, where: str) -> Snapshot:
    """Return the snapshot that a control record and the positions beside it make.

    Args:
        text: what `dump_control` wrote.
        group: the consumer group.
        version: of the ledger.
        positions: already checked.
        where: the place in the store, for messages.

    Raises:
        CorruptStore: the text is no control record, or of a newer format.
    """
    try:
        raw = load_stored(_text(text))  # a database may return bytes
    except GARBAGE as error:
        raise _no_control(text, where, error) from error
    snapshot = read_control(raw, group, version, positions, where)
    if control_mark(snapshot) not in text:  # else it could be read, and never changed
        raise CorruptStore(
            f"{where} was edited: write its JSON without spaces, so that {control_mark(snapshot)} is in it"
        )
    return snapshot


def read_control(raw: Any, group: str, version: int, positions: Positions, where: str) -> Snapshot:
    """Return the snapshot that `control_fields`, read back from JSON, and the positions beside them make.

    Raises:
        CorruptStore: they are no control record, or of a newer format.
    """
    try:
        if _natural(raw["format"]) > FORMAT:
            raise CorruptStore(
                f"{where} was written by a newer offsetkeeper (format {raw['format']}): upgrade this one"
            )
        sequence = _natural(raw["sequence"])
        return Snapshot(
            group=group,
            version=_natural(version),
            owner=_load_owner(raw["owner"]),
            epoch=_natural(raw["epoch"]),
            generation=_natural(raw["generation"]),
            sequence=sequence,
            positions=positions,
            pending=_load_pending(raw["pending"], group, sequence),
            change_id=_text(raw["change_id"]),
            landed={_text(name): _natural(number) for name, number in raw.get("landed", {}).items()},
            unsettled=_load_unsettled(raw.get("unsettled"), group),
        )
    except GARBAGE as error:
        raise _no_control(json.dumps(raw), where, error) from error


def dump_entry(entry: Entry) -> str:
    """Return a history entry as one line of JSON."""
    return _dump(entry_fields(entry))


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Return what `dump_entry` writes, as plain values."""
    return {
        "event": entry.event,
        "change_id": entry.change_id,
        "at_ms": entry.at_ms,
        "actor": entry.actor,
        "reason": entry.reason,
        "epoch": entry.epoch,
        "generation": entry.generation,
        "sequence": entry.sequence,
        "token": entry.token,
        "ranges": _ranges(entry.ranges),
        "moves": [[*tp, move.before, move.after] for tp, move in entry.moves.items()],
    }


def load_entry(text: str, version: int, where: str) -> Entry:
    """Return the history entry that `dump_entry` wrote.

    Raises:
        CorruptStore: the text is no history entry.
    """
    try:
        raw = load_stored(_text(text))
    except GARBAGE as error:
        raise _no_entry(text, where, error) from error
    return read_entry(raw, version, where)


def load_numbered_entry(text: str, where: str) -> Entry:
    """Return the history entry of a text that begins with its version and a blank.

    Raises:
        CorruptStore: the text is not a history entry.
    """
    return load_entry(text.partition(" ")[2], version_before(text), where)


def version_before(text: str) -> int:
    """Return the version that a text begins with, before a blank; -1 where it begins with none."""
    number = text.partition(" ")[0]
    return int(number) if _VERSION.fullmatch(number) else -1


def read_entry(raw: Any, version: int, where: str) -> Entry:
    """Return the history entry whose `entry_fields` were read back from JSON.

    Raises:
        CorruptStore: they are no history entry.
    """
    try:
        return Entry(
            version=_natural(version),
            event=_text(raw["event"]),
            change_id=_text(raw["change_id"]),
            at_ms=_moment(raw["at_ms"]),
            actor=_text(raw["actor"]),
            reason=_text(raw["reason"]),
            epoch=_natural(raw["epoch"]),
            generation=_natural(raw["generation"]),
            sequence=_natural(raw["sequence"]),
            token=_load_token(raw) if "token" in raw or raw["ranges"] else "",
            ranges=_load_ranges(raw["ranges"]),
            moves=_load_moves(raw["moves"]),
        )
    except GARBAGE as error:
        raise _no_entry(json.dumps(raw), where, error) from error


def load_position(offset: Any, topic_id: Any, where: str) -> Position:
    """Return a position read from a store.

    Raises:
        CorruptStore: a value is no offset or no topic id; the message names the place.
    """
    try:
        position = Position(check_offset(offset), topic_id)
    except SettingsError as error:
        raise CorruptStore(f"{where} holds {offset!r}, which is no offset. {REMEDY}") from error
    if topic_id is not None and not isinstance(topic_id, str):
        raise CorruptStore(f"{where} holds {topic_id!r}, which is no topic id. {REMEDY}")
    return position


def empty(group: str, positions: Positions = NO_POSITIONS) -> Snapshot:
    """Return the ledger of a group without a control record: new, or positions some other program has stored."""
    return Snapshot(group, positions=positions)


REMEDY = "Nothing was changed: mend or delete that record, then start again"


def _no_control(text: object, where: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"{where} is no control record ({error!r:.200}): {str(text)[:200]!r}. {REMEDY}")


def _no_entry(text: object, where: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"{where} is no history entry ({error!r:.200}): {str(text)[:200]!r}")


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))  # ASCII, whatever the store's character set


def _pending(batch: Batch) -> dict[str, Any]:
    return {
        "token": batch.token,
        "ranges": _ranges(batch.ranges),
        "written": list(batch.written),
        "lands_in": list(batch.lands_in),
    }


def _ranges(ranges: tuple[OffsetRange, ...]) -> dict[str, list[list[int]]]:
    topics: dict[str, list[list[int]]] = {}
    for r in ranges:
        topics.setdefault(r.topic, []).append([r.partition, r.start, r.end])
    return topics


def _load_owner(raw: dict[str, Any] | None) -> Owner | None:
    return None if raw is None else Owner(_text(raw["id"]), _natural(raw["epoch"]), _text(raw["name"]))


def _load_pending(raw: dict[str, Any] | None, group: str, sequence: int) -> Batch | None:
    if raw is None:
        return None
    ranges = _load_ranges(raw["ranges"])
    if not ranges:
        raise ValueError("a pending batch without ranges")
    written, lands_in = _names(raw, "written"), _names(raw, "lands_in")
    return Batch(group, _load_token(raw), sequence, ranges, written=written, lands_in=lands_in)


def _load_unsettled(raw: dict[str, Any] | None, group: str) -> Batch | None:
    return None if raw is None else _load_pending(raw, group, _natural(raw["sequence"]))


def _names(raw: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_text(name) for name in raw.get(key, ()))


def _load_token(raw: dict[str, Any]) -> str:
    """Return the token of a batch; in format 1 that was its generation."""
    return _text(raw["token"]) if "token" in raw else str(_natural(raw["generation"]))


def _load_ranges(raw: dict[str, list[list[int]]]) -> tuple[OffsetRange, ...]:
    return tuple(_load_range(topic, *numbers) for topic, ranges in raw.items() for numbers in ranges)


def _load_range(topic: str, partition: int, start: int, end: int) -> OffsetRange:
    check_partition(TopicPartition(topic, partition))
    if check_offset(start) >= check_offset(end):
        raise ValueError(f"the range {topic} {partition} {start} {end} is empty or runs backwards")
    return OffsetRange(topic, partition, start, end)


def _load_moves(raw: list[Any]) -> dict[TopicPartition, Move]:
    return {
        check_partition(TopicPartition(topic, partition)): Move(
            None if before is None else _load_stored(before), _load_stored(after)
        )
        for topic, partition, before, after in raw
    }


def _load_stored(raw: list[Any]) -> Position:
    offset, topic_id = raw
    return Position(check_offset(offset), None if topic_id is None else _text(topic_id))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _moment(value: Any) -> int:
    """Return a time, brought to where a calendar can show it: a clock may have told anything."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a time")
    return int(min(max(value, 0), LATEST_MS))


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 on")
    return value
