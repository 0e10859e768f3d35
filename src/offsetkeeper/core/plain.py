"""Turns records into plain values for JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from offsetkeeper.core.offsets import TopicPartition


def plain(record: Any, *computed: str, without: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass or named tuple by name; a partition becomes `topic` and `partition`.

    Args:
        record: the record; all its other values must be valid in JSON.
        computed: names of properties to add.
        without: name of a field to leave out.
    """
    names = getattr(record, "_fields", None) or [each.name for each in fields(record)]
    found: dict[str, Any] = {}
    for name in (*names, *computed):
        value = getattr(record, name)
        found |= value._asdict() if isinstance(value, TopicPartition) else {name: value}
    found.pop(without, None)
    return found
