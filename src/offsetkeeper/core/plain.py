"""Records as plain values, which JSON takes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from offsetkeeper.core.model import TopicPartition


def plain(record: Any, *computed: str, without: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass or named tuple by their names; a partition becomes `topic` and `partition`.

    Args:
        record: whose other values JSON takes as they are.
        computed: names of properties that go with them.
        without: name of a field that does not.
    """
    names = getattr(record, "_fields", None) or [each.name for each in fields(record)]
    found: dict[str, Any] = {}
    for name in (*names, *computed):
        value = getattr(record, name)
        found |= value._asdict() if isinstance(value, TopicPartition) else {name: value}
    found.pop(without, None)
    return found
