"""The nodes of a group in ZooKeeper: their paths, their content, and their size in a request."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from offsetkeeper.core.codec import REMEDY, load_position
from offsetkeeper.core.offsets import Position, TopicPartition, check_partition
from offsetkeeper.core.outside import load_stored, reason, unpack
from offsetkeeper.errors import CorruptStore, SettingsError
from offsetkeeper.stores.group_names import Names

Rows = Mapping[str, bytes]  # data by path
_PLAIN = 8_192  # bytes; longer data is compressed
_OPERATION = 80  # bytes of one operation in a multi without its path and data, but with the ACL of the node
# What is not allowed in a path of ZooKeeper.
NAMES = Names(
    re.compile(r"[\x00-\x1f\x7f-\x9f]|^\.\.?\Z"),
    quoted=re.compile("[/\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"),
)
_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_OFFSET = re.compile(rb"\s*(\d{1,19})\s*")


class Paths(NamedTuple):
    """The paths of a group's nodes.

    Attributes:
        offsets: parent of the topics, as old consumers use it.
        ledger: the document.
        history: parent of the entries.
        unpublished: offsets that did not fit beside the ledger.
    """

    offsets: str
    ledger: str
    history: str
    unpublished: str

    def row(self, tp: TopicPartition) -> str:
        """Return the path of one partition's offset."""
        return f"{self.offsets}/{tp.topic}/{tp.partition}"


def paths_of(root: str, group: str) -> Paths:
    """Return the paths of a group below `root`."""
    folder = f"{root}/consumers/{NAMES.name_of(group)}"
    own = f"{folder}/offsetkeeper"
    return Paths(f"{folder}/offsets", f"{own}/ledger", f"{own}/history", f"{own}/unpublished")


def group_at(name: str) -> str:
    """Return the group whose nodes are below a node with this name."""
    return NAMES.group_of(name)


def load_row(path: str, data: bytes | None, where: str) -> tuple[TopicPartition, Position]:
    """Return the position that another program has stored in a node.

    Raises:
        CorruptStore: the node's name is not a partition, or its data is not an offset.
    """
    *_, topic, name = path.split("/")
    try:
        tp = check_partition(TopicPartition(topic, int(name) if _NUMBER.fullmatch(name) else -1))
    except SettingsError as error:
        raise CorruptStore(f"{where} is not a partition: {error}. {REMEDY}") from error
    offset = _OFFSET.fullmatch(data or b"")
    return tp, load_position(int(offset[1]) if offset else data, None, where)


def dump_rows(paths: Paths, rows: Rows) -> bytes:
    """Return offsets as the data of the node `unpublished`."""
    names = {path.removeprefix(f"{paths.offsets}/"): data.decode() for path, data in rows.items()}
    return packed(json.dumps(names, separators=(",", ":")))


def load_rows(paths: Paths, data: bytes, where: str) -> Rows:
    """Return the offsets that `dump_rows` wrote.

    Raises:
        CorruptStore: the data is damaged.
    """
    try:
        names = load_stored(unpacked(data) or "{}")
        return {f"{paths.offsets}/{name}": str(int(offset)).encode() for name, offset in names.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptStore(f"{where} is damaged: {reason(error)}. {REMEDY}") from None


def packed(text: str) -> bytes:
    """Return a text as a node's data; long texts are compressed."""
    data = text.encode()
    return data if len(data) < _PLAIN else zlib.compress(data, 1)


def unpacked(data: bytes | None) -> bytes:
    """Return the text in a node's data; a node may have none."""
    data = data or b""
    try:
        return unpack(data) if data[:1] == b"x" else data
    except (zlib.error, ValueError):
        return data  # damaged or far too large data: the caller reports it


def size_of(rows: Rows) -> int:
    """Return the most bytes that a multi needs to write the rows."""
    return sum(len(path.encode()) + len(data) + _OPERATION for path, data in rows.items())


def chunks(rows: Rows, limit: int) -> Iterator[Rows]:
    """Return the rows in parts of at most `limit` bytes."""
    chunk: dict[str, bytes] = {}
    left = limit
    for path, data in rows.items():
        left -= (size := size_of({path: data}))
        if left < 0 and chunk:
            yield chunk
            chunk, left = {}, limit - size
        chunk[path] = data
    yield chunk
