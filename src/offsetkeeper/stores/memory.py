"""The store in the memory of this process: `memory://name`. For tests, examples, and runs without a lasting store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from offsetkeeper.clients.url import read_url
from offsetkeeper.core import codec
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.store import version_conflict
from offsetkeeper.errors import VersionConflict
from offsetkeeper.stores.base import BaseStore


@dataclass
class Memory:
    """The data that all stores with the same name share; see `MemoryStore.memory`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    positions: dict[str, dict[TopicPartition, Position]] = field(default_factory=dict)
    controls: dict[str, tuple[int, str]] = field(default_factory=dict)
    history: dict[str, list[tuple[int, str]]] = field(default_factory=dict)


_memories: dict[str, Memory] = {}


class MemoryStore(BaseStore):
    """Ledgers in memory, shared by all stores with the same name in this process, and lost when it ends.

    Args:
        url: `memory://name`, with `?history=` for the number of entries kept.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read = read_url(url, ("history",))
        super().__init__(read)
        if read.parts.path.strip("/") or read.parts.fragment:
            raise read.error("is not a memory store: write memory://name")
        self.memory = _memories.setdefault(unquote(read.parts.netloc), Memory())

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        with self.memory.lock:
            positions = dict(self.memory.positions.get(group, {}))
            version, text = self.memory.controls.get(group, (0, ""))
        if not text:
            return codec.empty(group, positions)
        return codec.load_control(text, group, version, positions, f"{self.address}, group {group!r},")

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        group, version = change.after.group, change.after.version
        with self.memory.lock:
            positions = self.memory.positions.setdefault(group, {})
            self._check(change, positions)
            self.memory.controls[group] = (version, codec.dump_control(change.after))
            positions.update({tp: move.after for tp, move in change.moves.items()})
            history = self.memory.history.setdefault(group, [])
            history.append((version, codec.dump_entry(change.entry)))
            del history[: -self._settings.history]

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        with self.memory.lock:
            newest = self.memory.history.get(group, [])[::-1][:limit]
        where = f"{self.address}, group {group!r},"
        return [codec.load_entry(text, version, where) for version, text in newest]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        with self.memory.lock:
            return sorted(self.memory.controls.keys() | {g for g, held in self.memory.positions.items() if held})

    def close(self) -> None:
        """Do nothing: the data stays for the next store with this name."""

    def _check(self, change: Change, positions: dict[TopicPartition, Position]) -> None:
        group, expected = change.before.group, change.before.version
        found, text = self.memory.controls.get(group, (0, ""))
        if found != expected or (text and codec.control_mark(change.before) not in text):
            raise version_conflict(self.address, change, found)
        for tp, move in change.moves.items():
            held = positions.get(tp)
            if (held and held.offset) != (move.before and move.before.offset):
                raise VersionConflict(f"{self.address}: group {group!r}, {tp} was changed by another program")
