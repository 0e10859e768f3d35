"""A whole ledger as one JSON text, for stores that change only one thing atomically: a file, an object, a cell.

    {"offsets": {"orders": {"0": 15}},            as Spark's Kafka source writes offsets
     "topic_ids": {"orders": {"<id>": [0]}},      partitions whose position has an id
     "version": 7, "format": 3, "owner": …}       the control record, see `codec`

Another program may write a document with only `offsets`: this is a group with positions and no ledger yet.
"""

from __future__ import annotations

from typing import Any

from offsetkeeper.core.codec import (
    GARBAGE,
    MOST_PARTITIONS,
    REMEDY,
    control_fields,
    dump,
    empty,
    load_position,
    read_control,
)
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Positions, TopicPartition, by_topic, check_partition
from offsetkeeper.core.outside import load_stored, reason, short_text
from offsetkeeper.errors import CorruptStore


def dump_document(snapshot: Snapshot, **more: Any) -> str:
    """Return the ledger as one line of JSON, with the keys of `more` added; the ledger's own keys win.

    Raises:
        Refused: see `codec.dump`.
    """
    return dump({**more, **document_fields(snapshot)})


def document_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return the ledger as plain values, as `dump_document` writes it.

    Raises:
        Refused: see `codec.control_fields`.
    """
    rows = snapshot.rows
    offsets = by_topic({tp: position.offset for tp, position in rows.items()})
    own = {"version": snapshot.version, "offsets": offsets, "topic_ids": ids_by_topic(rows)}
    return {**own, **control_fields(snapshot)}


def load_document(text: str | bytes, group: str, where: str) -> Snapshot:
    """Return the ledger that `dump_document` wrote, or the positions that another program wrote.

    Args:
        text: the document.
        group: the consumer group.
        where: the place in the store, for messages.

    Raises:
        CorruptStore: the document has neither.
    """
    try:
        raw = load_stored(text)
    except GARBAGE as error:
        raise _no_offsets(where, error) from None
    return read_document(raw, group, where)


def read_document(raw: Any, group: str, where: str) -> Snapshot:
    """Return the ledger from `document_fields`, read back from JSON; see `load_document`."""
    try:
        offsets = raw["offsets"]
        if sum(map(len, offsets.values())) > MOST_PARTITIONS:
            raise ValueError("it has more positions than a group can have partitions")
        ids = ids_by_partition(raw.get("topic_ids", {}))
        pairs = [(topic, _number(key), offset) for topic, of in offsets.items() for key, offset in of.items()]
        positions = {TopicPartition(t, p): load_position(o, ids.get((t, p)), f"{where} {t} {p}") for t, p, o in pairs}
        _check(positions, pairs)
    except GARBAGE as error:
        raise _no_offsets(where, error) from None
    if "format" not in raw and "version" not in raw:
        return empty(group, positions)
    check_written_for(raw, group, where)
    return read_control(raw, group, raw.get("version", -1), positions, where)


def check_written_for(raw: Any, group: str, where: str) -> None:
    """Check that a document is of this group, if it says its group, as files do.

    Raises:
        CorruptStore: it is of another one: a file system takes both names for one, or its files were copied by hand.
    """
    other = raw.get("group", group)
    if other != group:
        raise CorruptStore(
            f"{where} is the ledger of group {short_text(str(other))!r}, and not of {group!r}. If the file system "
            "takes both names for one, give one of the groups another name. If the files were copied by hand, take the "
            "field group out of them"
        )


def _no_offsets(where: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"{where} holds no offsets: {reason(error)}. {REMEDY}")


def ids_by_topic(positions: Positions) -> dict[str, dict[str, list[int]]]:
    """Return the topic ids of positions as `{topic: {id: partitions}}`, sorted by topic and partition."""
    found: dict[str, dict[str, list[int]]] = {}
    for tp, position in sorted(positions.items()):
        if position.topic_id is not None:
            found.setdefault(tp.topic, {}).setdefault(position.topic_id, []).append(tp.partition)
    return found


def ids_by_partition(raw: Any) -> dict[tuple[str, int], str]:
    """Return the output of `ids_by_topic`, by partition; raise one of `codec.GARBAGE` if it is something else."""
    return {(topic, number): id_ for topic, of in raw.items() for id_, parts in of.items() for number in parts}


def _number(key: str) -> int:
    if not key.isascii() or not key.isdigit():
        raise ValueError(f"{key!r} is not a partition number")
    return int(key)


def _check(positions: Positions, pairs: list[tuple[str, int, int]]) -> None:
    for tp in positions:
        check_partition(tp)
    if len(positions) < len(pairs):
        raise ValueError("a partition occurs twice")
