"""Records of the store in Kafka: the ledger and its history as compressed texts, each with the id of its writer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping

from offsetkeeper.control import dump_entry
from offsetkeeper.document import dump_document, load_document
from offsetkeeper.model import Change, Snapshot


def dump_records(change: Change, name: str, writer: str, history: int) -> Mapping[str, bytes]:
    """Return the records of a change by key, the ledger last.

    Args:
        change: to be written.
        name: of Kafka's group.
        writer: random id of whoever writes, to be found again where an answer was lost.
        history: number of entries kept.
    """
    version = change.after.version
    texts = {
        f"{name}/{version % history}": f"{version} {writer} {dump_entry(change.entry)}",
        name: dump_document(change.after, writer=writer),
    }
    return {key: zlib.compress(text.encode(), 1) for key, text in texts.items()}


def load_ledger(value: bytes, group: str, where: str) -> tuple[Snapshot, str]:
    """Return the ledger, and the id of its writer.

    Raises:
        CorruptStore: it is none.
    """
    text = _unpacked(value)
    return load_document(text, group, where), str(json.loads(text).get("writer"))


def load_entries(values: Iterable[bytes], newest: int) -> Mapping[int, tuple[str, str]]:
    """Return history entries up to version `newest`: by version the id of the writer, and the text."""
    entries = {}
    for value in values:
        version, writer, text = (_unpacked(value).decode("utf-8", "replace") + "  ").split(" ", 2)
        if version.isascii() and version.isdigit() and int(version) <= newest:
            entries[int(version)] = writer, text.rstrip()
    return entries


def _unpacked(value: bytes) -> bytes:
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value  # garbage, and whoever reads it will say so
