"""A checkpoint as a read-only store: `checkpoint:///absolute/path`, `checkpoint+s3://bucket/prefix`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from offsetkeeper.checkpoint.files import Files, Folder, LocalFiles
from offsetkeeper.checkpoint.folder import open_files
from offsetkeeper.checkpoint.log_format import lowest_offsets
from offsetkeeper.checkpoint.logs import Logs, no_checkpoint
from offsetkeeper.clients.url import read_url
from offsetkeeper.core.batch import check_query
from offsetkeeper.core.model import Change, Entry, Snapshot, check_group
from offsetkeeper.core.offsets import Position
from offsetkeeper.core.store import Ability
from offsetkeeper.errors import CorruptStore, NotAllowed, OffsetkeeperError, Refused, SettingsError, StoreUnavailable


class CheckpointStore:
    """The offsets that a streaming query has read from Kafka, to copy them to a store or to compare them.

    A checkpoint is one group with the name of its folder; but a request for any other group name gets its offsets too.
    They are the end of the newest committed batch, or the start of the first batch if none is committed. If several
    sources read a partition, it is the lowest offset; sources other than Kafka are left out. If the query has state,
    the number of its next batch is there too, so that `Pipeline.start` goes on from the checkpoint.

    Args:
        files: its folder.
    """

    abilities: frozenset[Ability] = frozenset()

    def __init__(self, files: Files) -> None:
        self.address = files.address
        self._files = files
        self._logs = _Logs(files)

    def __repr__(self) -> str:
        return f"CheckpointStore({self.address!r})"

    def load(self, group: str) -> Snapshot:
        """See `Store.load`.

        Raises:
            Refused: the checkpoint does not exist, or may not be read.
            StoreUnavailable: the checkpoint could not be read.
            CorruptStore: one of its files is damaged or has other content.
        """
        lowest = lowest_offsets(self._sources(), lambda name: self._logs.at(f"source {name}"))
        return Snapshot(group, positions={tp: Position(at) for tp, at in lowest.items()}, queries=self._count())

    def apply(self, change: Change) -> None:
        """Refuse the change: only Spark writes its checkpoint.

        Raises:
            NotAllowed: always.
        """
        raise NotAllowed(
            f"{self.address}: group {change.after.group!r} was not changed: a Spark checkpoint is read-only. "
            "Copy its positions to another store, and keep them there"
        )

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:  # noqa: ARG002 - of the protocol
        """Return an empty history: a checkpoint has none."""
        return []

    def groups(self) -> Sequence[str]:
        """Return the name of the checkpoint's folder, or the query's id if the name is not a valid group name."""
        self._check()
        try:
            return [check_group(self.address.rstrip("/").rpartition("/")[2])]
        except SettingsError:
            return [self._logs.query_id()]

    def close(self) -> None:
        """See `Store.close`."""
        self._files.close()

    def _sources(self) -> dict[str, str | None]:
        """Return the offsets of each source that has offsets, as JSON."""
        self._check()
        initial = self._logs.initial()
        done = set(self._logs.commits)
        both = done & set(self._logs.offsets)
        if not done:
            return initial
        if not both:
            raise CorruptStore(f"{self.address}: batch {max(done)} is committed, but its offsets are gone")
        self._logs.commit(max(both))
        ends = self._logs.offset_log(max(both)).sources
        return {name: initial.get(name) if end is None else end for name, end in ends.items()}

    def _count(self) -> dict[str, int]:
        """Return the number of the next batch of a query with state, as a ledger counts it."""
        if "metadata" not in self._files.names("") or not self._files.names("state"):
            return {}  # without its id it cannot be counted: its first start is refused
        done = set(self._logs.commits) & set(self._logs.offsets)
        return {check_query(self._logs.query_id()): max(done, default=-1) + 1}

    def _check(self) -> None:
        if {"metadata", "offsets"}.isdisjoint(self._files.names("")):
            raise no_checkpoint(self._files)


class _Logs(Logs):
    """The logs of a query that may run, and that deletes files that it no longer needs."""

    remedy = "Nothing was changed"

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def at(self, name: str) -> str:
        return f"{self.where}, {name},"

    def missing(self, name: str) -> OffsetkeeperError:
        folder, _, own = name.rpartition("/")
        if own in self.folder.names(folder):
            return Refused(f"{self.at(name)} is not a file: `offsetkeeper checkpoint verify` says what to do")
        return StoreUnavailable(f"{self.at(name)} is gone: the query deleted it meanwhile")


def open_checkpoint(url: str) -> CheckpointStore:
    """Open the store of a URL: `checkpoint:///absolute/path`, or `checkpoint+` and a location for `open_files`.

    Raises:
        SettingsError: the URL is wrong.
        MissingExtra: the client library is not installed.
    """
    if url.startswith("checkpoint+"):
        return CheckpointStore(open_files(url.removeprefix("checkpoint+")))
    read = read_url(url, ())
    parts = read.parts
    if parts.netloc or parts.fragment or not parts.path.startswith("/"):
        raise read.error("has no checkpoint: write checkpoint:///absolute/path")
    return CheckpointStore(LocalFiles(Path(unquote(parts.path))))
