"""Checkpoints as Spark writes them, without Spark."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

from offsetkeeper.checkpoint import LocalFiles
from offsetkeeper.checkpoint.files import Files, Stamp
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import StoreUnavailable

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def put(files: LocalFiles, name: str, text: str) -> None:
    """Write a file with its checksum."""
    path = files.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    content = text.encode()
    parts = [content[at : at + 512] for at in range(0, len(content), 512)]
    sums = b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", 512) + sums)


def offsets(a: int, b: int) -> str:
    """Return a line of Kafka's source."""
    return json.dumps({"orders": {"1": b, "0": a}}, separators=(",", ":"))


def write(path: Path, batches: int = 4, *, stateful: bool = False) -> LocalFiles:
    """Write a checkpoint in which batch n reads [10n, 10n + 10) of two partitions; all are committed."""
    files = LocalFiles(path)
    put(files, "metadata", '{"id":"00000000-0000-0000-0000-000000000001"}')
    put(files, "sources/0/0", f"\0v1\n{offsets(0, 0)}")
    for n in range(batches):
        head = json.dumps({"batchWatermarkMs": 5 * n, "batchTimestampMs": 1000 + n, "conf": {"x": "1"}})
        put(files, f"offsets/{n}", f"v1\n{head}\n{offsets(10 * n + 10, 10 * n + 10)}")
        put(files, f"commits/{n}", f'v1\n{{"nextBatchWatermarkMs":{5 * n + 5}}}')
        for partition in (0, 1) if stateful else ():
            put(files, f"state/0/{partition}/{n + 1}.delta", "x")
    return files


def content(files: Files) -> dict[str, bytes]:
    """Return all files but the checksums, by name."""
    names = [name for name in files.stamps("") if not name.endswith(".crc")]
    return {name: files.read(name) or b"" for name in names}


class Power(StoreUnavailable):
    """The power has failed."""


class Failing:
    """A folder whose nth change fails, before or after its effect."""

    def __init__(self, files: Files, nth: int, *, after: bool) -> None:
        self.address = files.address
        self.fired = False
        self._files = files
        self._left = nth
        self._after = after

    def names(self, folder: str) -> list[str]:
        """See `Files.names`."""
        return self._files.names(folder)

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """See `Files.stamps`."""
        return self._files.stamps(folder)

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        return self._files.read(name)

    def backups(self) -> list[str]:
        """See `Files.backups`."""
        return self._files.backups()

    def backup(self, name: str) -> Files:
        """See `Files.backup`."""
        return self._files.backup(name)

    def write(self, name: str, content: bytes) -> None:
        """See `Files.write`."""
        self._fail(before=True)
        self._files.write(name, content)
        self._fail(before=False)

    def create(self, name: str, content: bytes) -> bool:
        """See `Files.create`."""
        self._fail(before=True)
        created = self._files.create(name, content)
        self._fail(before=False)
        return created

    def delete(self, name: str) -> None:
        """See `Files.delete`."""
        self._fail(before=True)
        self._files.delete(name)
        self._fail(before=False)

    def copy(self, name: str, source: str, target: str) -> None:
        """See `Files.copy`."""
        self._fail(before=True)
        self._files.copy(name, source, target)
        self._fail(before=False)

    def close(self) -> None:
        """See `Files.close`."""
        self._files.close()

    def _fail(self, *, before: bool) -> None:
        if before:
            self._left -= 1
        if self._left == 0 and before != self._after:
            self.fired = True
            raise Power(self.address)
