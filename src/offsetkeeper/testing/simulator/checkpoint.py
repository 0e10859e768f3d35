"""The checkpoint of a streaming query as a model: the logs, written once each, and the versions of its state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from offsetkeeper.testing.simulator.outputs import Record
from offsetkeeper.testing.simulator.schedule import GO, Schedule


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
    """

    schedule: Schedule
    query_id: str
    files: dict[str, bytes] = field(default_factory=dict)
    state: dict[int, Counter[Record]] = field(default_factory=lambda: {0: Counter()})
    address: str = "model-checkpoint"

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
        return hash((frozenset(self.files.items()), state))

    def done(self) -> int:
        """Return the number of batches that are done, which is the version of the newest state that counts."""
        return sum(name.startswith("commits/") for name in self.files)

    def looked(self) -> None:
        """Note that the current actor knows now what is in it."""
        self.schedule.saw(self.digest())
