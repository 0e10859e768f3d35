"""How the suites reach the files of a store of files without the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from offsetkeeper.core.model import TopicPartition

_NEWER_FORMAT = 99


class FilesMedium:
    """The parts of `Medium` and the suites that know the layout; a subclass says how files are read and written."""

    rows_are_positions = False

    def list_files(self, url: str, folder: str = "") -> Collection[str]:
        """Return the paths, in the store, of the files in one folder, by default of all there are."""
        raise NotImplementedError

    def read_file(self, url: str, path: str) -> bytes:
        """Return what a file holds."""
        raise NotImplementedError

    def write_file(self, url: str, path: str, content: bytes) -> None:
        """Write a file, new or over the one there."""
        raise NotImplementedError

    def newest(self, url: str, group: str) -> str:
        """Return the path of the group's newest file; empty where it has none."""
        return max(self.list_files(url, folder_of(group)), default="")

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """See `Medium`."""
        path = self.newest(url, group)
        return _positions(json.loads(self.read_file(url, path))) if path else {}

    def read_version(self, url: str, group: str) -> int:
        """See `ServedMedium`."""
        return int(json.loads(self.read_file(url, self.newest(url, group)))["version"])

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """See `Medium`. Another program has one file, and knows of no others."""
        path = f"{folder_of(group)}/0.json"
        there = path in self.list_files(url, folder_of(group))
        positions: dict[TopicPartition, int | None] = {}
        positions |= _positions(json.loads(self.read_file(url, path))) if there else {}
        positions[tp] = offset
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), number in positions.items():
            if number is not None:
                offsets.setdefault(topic, {})[str(partition)] = number
        self.write_file(url, path, json.dumps({"offsets": offsets}).encode())

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """See `DurableConformance`."""
        changes: dict[str, Callable[[dict[str, Any]], Any]] = {
            "a negative offset": lambda raw: raw | {"offsets": {"a": {"0": -1}}},
            "a negative partition": lambda raw: raw | {"offsets": {"a": {"-1": 0}}},
            "an impossible topic": lambda raw: raw | {"offsets": {"no topic": {"0": 1}}},
            "no offsets": lambda raw: {key: value for key, value in raw.items() if key != "offsets"},
            "no control record": lambda raw: {"offsets": raw["offsets"]},
            "JSON of another kind": lambda _: [],
            "a newer format": lambda raw: raw | {"format": _NEWER_FORMAT},
            "a negative version": lambda raw: raw | {"version": -1},
            "another file's version": lambda raw: raw | {"version": raw["version"] - 1},
        }
        texts: dict[str, Callable[[bytes], bytes]] = {
            name: partial(_changed, change) for name, change in changes.items()
        }
        texts |= {
            "nothing": lambda _: b"",
            "half of it": lambda text: text[: len(text) // 2],
            "no JSON": lambda _: b"garbage",
            "no text": lambda _: b"\xff\xfe\x00",
        }
        return {name: partial(self._spoil, url, group, text) for name, text in texts.items()}

    def dump(self, url: str) -> object:
        """See `DurableConformance`."""
        return {path: self.read_file(url, path) for path in self.list_files(url)}

    def _spoil(self, url: str, group: str, text: Callable[[bytes], bytes]) -> None:
        path = self.newest(url, group)
        self.write_file(url, path, text(self.read_file(url, path)))


def folder_of(group: str) -> str:
    """Return the name of a group's folder."""
    return f"%{ord(group[0]):02X}{group[1:]}" if group[0] in ".%" else group


def _changed(change: Callable[[dict[str, Any]], Any], text: bytes) -> bytes:
    return json.dumps(change(json.loads(text))).encode()


def _positions(raw: dict[str, Any]) -> dict[TopicPartition, int]:
    return {TopicPartition(t, int(number)): at for t, parts in raw["offsets"].items() for number, at in parts.items()}
