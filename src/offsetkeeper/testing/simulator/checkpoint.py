"""The checkpoint of a streaming query as a model: the logs, written once each, and the versions of its state."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from offsetkeeper.checkpoint.files import Stamp
from offsetkeeper.checkpoint.log_format import BARRIER
from offsetkeeper.errors import StoreUnavailable
from offsetkeeper.testing.simulator.schedule import GO, Schedule
from offsetkeeper.testing.simulator.store import Record

NOT_DONE = "the file system fails"
DONE = "the file system fails after it"


class SparkError(Exception):
    """What Spark raises itself: here, that another query has written the same batch of the checkpoint."""


@dataclass
class ModelCheckpoint:
    """The folder of a query's checkpoint, which outlives the query.

    Attributes:
        schedule: in whose steps files are written.
        query_id: of the query that it belongs to.
        files: by name.
        state: by version, how often each record is in it.
        backups: the folders beside it, which edits make: by name, their files.
        slow: whether each look at it is a step, between which others go on.
    """

    schedule: Schedule
    query_id: str
    files: dict[str, bytes] = field(default_factory=dict)
    state: dict[int, Counter[Record]] = field(default_factory=lambda: {0: Counter()})
    backups: dict[str, dict[str, bytes]] = field(default_factory=dict)
    address: str = "model-checkpoint"
    slow: bool = False

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`."""
        self.looked()
        return sorted(name.rpartition("/")[2] for name in self.files if name.startswith(f"{folder}/"))

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        self.looked()
        return self.files.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file that must not be there yet, as Spark does.

        Raises:
            SparkError: it is there.
        """
        mode = self.schedule.point(f"writes {name}")
        self.schedule.saw((mode, name in self.files))
        if mode != GO or name in self.files:
            raise SparkError(f"{name} was written by another query")
        self.files[name] = content

    def digest(self) -> int:
        """Return a digest of what is in it."""
        state = tuple((version, frozenset(held.items())) for version, held in sorted(self.state.items()))
        kept = frozenset((name, frozenset(files.items())) for name, files in self.backups.items())
        return hash((frozenset(self.files.items()), state, kept))

    @property
    def barred(self) -> bool:
        """Whether an edit was cut off, so that no query starts."""
        return any(content.startswith(BARRIER.encode()) for content in self.files.values())

    def done(self) -> int:
        """Return the number of batches that are done, which is the version of the newest state that counts."""
        return sum(name.startswith("commits/") for name in self.files)

    def looked(self) -> None:
        """Note that the current actor knows now what is in it."""
        if self.slow:
            self.schedule.point("looks at the checkpoint")
        self.schedule.saw(self.digest())


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The folder of a checkpoint as an edit changes it; see `Files`. State of version N is the file `N.delta`."""

    checkpoint: ModelCheckpoint
    folder: str = ""

    @property
    def address(self) -> str:
        """See `Folder.address`."""
        return self.checkpoint.address

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`. It notes what all the folder holds, and no other step lies before the files are read."""
        self.checkpoint.looked()
        start = f"{folder}/" if folder else ""
        found = [name.removeprefix(start) for name in self._files() if name.startswith(start)]
        return sorted({name.partition("/")[0] for name in found})

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        return self._files().get(name)

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """See `Files.stamps`."""
        self.checkpoint.looked()
        return {name: Stamp(0, len(held)) for name, held in self._files().items() if name.startswith(f"{folder}/")}

    def write(self, name: str, content: bytes) -> None:
        """See `Files.write`."""
        self.change(f"writes {name}", name, content)

    def create(self, name: str, content: bytes) -> bool:
        """See `Files.create`."""
        return self.change(f"creates {name}", name, content, over=False)

    def delete(self, name: str) -> None:
        """See `Files.delete`."""
        self.change(f"deletes {name}", name, None)

    def backups(self) -> list[str]:
        """See `Files.backups`."""
        self.checkpoint.looked()
        return sorted(self.checkpoint.backups)

    def backup(self, name: str) -> ModelFiles:
        """See `Files.backup`."""
        return ModelFiles(self.checkpoint, name)

    def copy(self, name: str, source: str, target: str) -> None:
        """See `Files.copy`."""
        held = self.backup(source).read(name)
        if held is not None:
            self.backup(target).change(f"copies {name}", name, held)

    def close(self) -> None:
        """See `Files.close`."""

    def _files(self) -> dict[str, bytes]:
        if self.folder:
            return self.checkpoint.backups.get(self.folder, {})
        state = {_delta(version): pickle.dumps(held) for version, held in self.checkpoint.state.items() if version}
        return {**self.checkpoint.files, **state}

    def change(self, what: str, name: str, content: bytes | None, *, over: bool = True) -> bool:
        """Write or delete a file in a step of its own; return whether its name was free, where that matters."""
        mode = self.checkpoint.schedule.point(f"{what} {self.folder and 'of a backup'}".strip(), (NOT_DONE, DONE))
        free = over or name not in self._files()
        self.checkpoint.schedule.saw((mode, free))
        if mode != NOT_DONE and free:
            self._put(name, content)
        if mode != GO:
            raise StoreUnavailable(mode)
        return free

    def _put(self, name: str, content: bytes | None) -> None:
        checkpoint = self.checkpoint
        files: dict[Any, Any] = checkpoint.backups.setdefault(self.folder, {}) if self.folder else checkpoint.files
        key: str | int = name
        if not self.folder and name.endswith(".delta"):
            files, key = checkpoint.state, int(name.rsplit("/", maxsplit=1)[-1].removesuffix(".delta"))
            content = content and pickle.loads(content)  # noqa: S301 - our own
        files.pop(key, None)
        if content is not None:
            files[key] = content


def _delta(version: int) -> str:
    return f"state/0/0/{version}.delta"
