"""A whole ledger as one JSON text, for stores that change one thing at a time: a file, an object, a cell.

    {"offsets": {"orders": {"0": 15}},            as Spark's Kafka source writes offsets
     "topic_ids": {"orders": {"<id>": [0]}},      partitions whose position has an id
     "version": 7, "format": 1, "owner": …}       the control record, see `control`

Another program may write one with nothing but `offsets`: that is a group with positions and no ledger yet.
"""

from __future__ import annotations

import json
from typing import Any

from offsetkeeper.control import REMEDY, dump_control, empty, load_control, load_position
from offsetkeeper.errors import CorruptStore, SettingsError
from offsetkeeper.model import Positions, Snapshot, TopicPartition, check_partition

_GARBAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what reading it can raise


def dump_document(snapshot: Snapshot, **more: Any) -> str:
    """Return the ledger as one line of JSON, with `more` beside it; keys of its own win over those of `more`."""
    offsets: dict[str, dict[str, int]] = {}
    topic_ids: dict[str, dict[str, list[int]]] = {}
    for tp, position in sorted(snapshot.positions.items()):
        offsets.setdefault(tp.topic, {})[str(tp.partition)] = position.offset
        if position.topic_id is not None:
            topic_ids.setdefault(tp.topic, {}).setdefault(position.topic_id, []).append(tp.partition)
    own = {"version": snapshot.version, "offsets": offsets, "topic_ids": topic_ids}
    return json.dumps({**more, **own, **json.loads(dump_control(snapshot))}, separators=(",", ":"))


def load_document(text: str | bytes, group: str, where: str) -> Snapshot:
    """Return the ledger that `dump_document` wrote, or the positions another program did.

    Args:
        text: the document.
        group: the consumer group.
        where: the place in the store, for messages.

    Raises:
        CorruptStore: it is neither.
    """
    try:
        raw = json.loads(text)
        offsets, topic_ids = raw["offsets"], raw.get("topic_ids", {})
        ids = {(topic, number): id_ for topic, of in topic_ids.items() for id_, parts in of.items() for number in parts}
        pairs = [(topic, _number(key), offset) for topic, of in offsets.items() for key, offset in of.items()]
        positions = {TopicPartition(t, p): load_position(o, ids.get((t, p)), f"{where} {t} {p}") for t, p, o in pairs}
        _check(positions, pairs)
    except (*_GARBAGE, SettingsError) as error:
        raise CorruptStore(f"{where} holds no offsets ({error!r:.200}): {text[:200]!r}. {REMEDY}") from error
    if "format" not in raw and "version" not in raw:
        return empty(group, positions)
    return load_control(json.dumps(raw), group, raw.get("version", -1), positions, where)


def _number(key: str) -> int:
    if not key.isascii() or not key.isdigit():
        raise ValueError(f"{key!r} is no number of a partition")
    return int(key)


def _check(positions: Positions, pairs: list[tuple[str, int, int]]) -> None:
    for tp in positions:
        check_partition(tp)
    if len(positions) < len(pairs):
        raise ValueError("a partition is there twice")
