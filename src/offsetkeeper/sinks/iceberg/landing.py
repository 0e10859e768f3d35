"""An Iceberg table as an output that keeps a mark.

Each commit requires the snapshot that was seen, so only the first of several succeeds. After a conflict the mark is
read again. If others have changed the table but not the mark, the same files are committed after their snapshot.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from offsetkeeper import errors
from offsetkeeper.core import environment, urls
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.executors import our_error
from offsetkeeper.core.mark import OutputMark, above, lowered
from offsetkeeper.core.model import Landed
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.spark_session import collected, map_in_arrow
from offsetkeeper.errors import MarkMoved, OffsetkeeperError, OutcomeUnknown, Refused, SinkError, SinkMismatch
from offsetkeeper.sinks import held, limits, synced
from offsetkeeper.sinks.iceberg import bounds, task
from offsetkeeper.sinks.iceberg.catalog import RELEASE, of_files, open_catalog, settings_of, telling, why
from offsetkeeper.sinks.iceberg.columns import columns_of, demands, limits_of, partition_sources
from offsetkeeper.sinks.iceberg.commit import Commit, SnapshotId
from offsetkeeper.sinks.iceberg.history import has_batch, has_earlier, line
from offsetkeeper.sinks.iceberg.upsert import Anew, without_keys
from offsetkeeper.sinks.lake import LakeColumn, StagedFile, check_seen, misfit, shaped
from offsetkeeper.sinks.sink import MarkKey, Seen, another_kind
from offsetkeeper.sinks.table import Target, match_columns, ordered, same_key

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_TRIES = 20  # others may change the table between a read and a commit
_LONGEST_S = 1.0
_SHIPPED = (errors, environment, urls, limits, synced, bounds, task)


class Shape(NamedTuple):
    """The identity, schema and partitions of a table: if all are the same, the table was not altered."""

    table: str
    schema: int
    spec: int

    @classmethod
    def of(cls, table: Table) -> Shape:
        """Return the shape of a table."""
        about = table.metadata
        return cls(str(about.table_uuid), about.current_schema_id, about.default_spec_id)


class Staged(NamedTuple):
    """Rows that are in files but not in the table yet, for a table of that shape, and the offsets that they are of."""

    shape: Shape
    files: list[DataFile]
    offsets: str


@dataclass(frozen=True)
class IcebergTarget:
    """See `Lander`.

    Attributes:
        catalog: name of the catalog.
        properties: its properties for pyiceberg.
        target: the target, whose table is the name with its namespace.
        durable: the table's metadata that is on the disk, as this run knows.
    """

    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    target: Target
    durable: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The table, for messages."""
        return f"Iceberg table {self.target.table} of catalog {self.catalog!r}"

    @cached_property
    def _opened(self) -> Catalog:
        return open_catalog(self.catalog, self.properties)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return settings_of(self.catalog, self.properties)

    def check(self) -> None:
        """See `IcebergTable.prepare`."""
        self._writable()

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """See `Lander`."""
        table = self._writable()
        columns = columns_of(table.schema())
        match_columns(frame.schema.fields, columns, self.target, misfit)
        self._check_whole(frame.columns, columns)
        sources = partition_sources(table.metadata)
        chosen = [each for each in columns if each.name in {*frame.columns, *sources}]
        rows = shaped(frame, chosen, sources, self.target)
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        bare = table.metadata.model_copy(
            update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}, "current_snapshot_id": None}
        )
        plan = task.FilePlan(
            bare.model_dump_json(),
            pa.schema([schema.field(each.name) for each in chosen]),
            tuple(limits_of(each, self.target.key) for each in chosen),
            str(same_key(self.target, in_order=ordered(frame.schema.fields, self.target))),
        )
        place = task.Place(self.name, table.location(), of_files(table.io.properties), RELEASE)
        try:
            done = collected(map_in_arrow(rows, ship(task.write_files, (place, plan), _SHIPPED), task.RESULT))
        except Exception as error:
            ours = our_error(error)
            if ours is None:
                raise
            raise ours from error
        files: list[DataFile] = [pickle.loads(file) for file, _ in done]  # noqa: S301 - of our tasks
        for file, (_, host) in zip(files, done, strict=True):
            paths = task.local([file.file_path])
            check_seen(self.name, (StagedFile(path, file.file_size_in_bytes, host) for path in paths))
        return Staged(Shape.of(table), files, batch.lines())

    def seen(self, key: MarkKey) -> Seen:
        """See `Lander`. The handle is the table, as it was loaded."""
        table = self._load()
        text = table.metadata.properties.get(key.path)
        mark = None if text is None else OutputMark.parse(text)
        if mark is not None:  # the run that landed it may have died, or failed, before it was on the disk
            self._settle(table.metadata_location, SinkError)
        return Seen(mark, table, str(SnapshotId.current(table)), key)

    def lost(self, landed: Landed, seen: Seen) -> str:
        """See `Lander`. A rollback keeps the mark of the rows that it drops: properties are of no snapshot."""
        reason = lowered(landed, seen.mark)
        if not reason and landed.target and seen.target != landed.target:
            reason = _rolled_back(landed, seen.handle)
        return reason or (_taken_back(landed, seen) if above(landed, seen.mark) else "")

    def land(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: Staged | None) -> str:
        """See `Lander`. Returns the identity of the snapshot with the rows."""
        for number in range(_TRIES):
            if staged is not None and Shape.of(seen.handle) != staged.shape:
                raise SinkError(f"{self.name} was altered or made again while rows were staged; nothing was written")
            anew = Anew([], [])
            with telling(self.name, self._settings, "{}; nothing was written".format):
                if staged is not None and staged.files and self.target.mode == "upsert":
                    anew = without_keys(seen.handle, staged.files, self.target.key)
                files = [*(staged.files if staged else []), *anew.new]
                about = held.told(key, mark, staged and staged.offsets)
                commit = Commit(seen.handle, files, anew.old, {key.path: str(mark)}, about)
            try:
                metadata = commit.send()
            except Exception as error:  # noqa: BLE001 - whatever the error is, the table shows the outcome
                again = self._after(error, commit, key, seen, mark)
                if again is None:
                    return str(commit.adds)
                anew.discard(seen.handle)
                seen = again
                environment.wait(environment.chance() * min(0.01 * 2**number, _LONGEST_S))
            else:
                self._settle(metadata, OutcomeUnknown)
                return str(commit.adds)
        raise SinkError(f"{self.name}: other writers keep changing the table; nothing was written")

    def _after(self, error: Exception, commit: Commit, key: MarkKey, seen: Seen, mark: OutputMark) -> Seen | None:
        """Return the state for another try after a failed commit; None if the commit is done after all."""
        told, conflict = f"{self.name}: {why(error, self._settings)}", _is_conflict(error)
        try:
            now = self.seen(key)
        except (SinkError, Refused) as lost:
            raise OutcomeUnknown(f"{told}; the read after it failed too: {lost}") from None
        if now.mark == mark and now.handle.snapshot_by_id(commit.adds.snapshot) is not None:
            log.warning("batch %s has landed, but then an error came: %s", mark.sequence, told)
            return None
        if now.mark != seen.mark:
            raise MarkMoved(f"{self.name}: the mark of {key.group!r} is '{now.mark}' now; nothing was written")
        if not conflict:
            raise OutcomeUnknown(told) from None
        if not _has_changed(seen.handle, now.handle):
            raise OutcomeUnknown(
                f"{told}; but the catalog shows the table as it was before: it, or a proxy, may have sent the commit "
                "twice, and may answer from a cache; the files of the commit are kept"
            ) from None
        commit.discard()
        before = SnapshotId.current(seen.handle)
        if before.snapshot and not _holds(now.handle, before):
            raise SinkError(f"{self.name} was rolled back while rows were landing; nothing was written")
        return now

    def _settle(self, metadata: str, failed: type[OffsetkeeperError]) -> None:
        """Wait until metadata of the table is on the disk: pyiceberg does not."""
        if metadata in self.durable:
            return
        try:
            synced.sync(task.local([metadata]))
        except FileNotFoundError:
            log.debug("%s: %s is older than others that were kept", self.name, metadata)
        except OSError as error:
            raise failed(f"{self.name}: {metadata} exists, but may not be durable: {error}") from error
        self.durable.clear()
        self.durable.add(metadata)

    def _check_whole(self, names: Sequence[str], columns: Sequence[LakeColumn]) -> None:
        """Check that an upsert has all columns: it replaces rows as a whole."""
        missing = [each.name for each in columns if each.name not in names]
        if missing and self.target.mode == "upsert":
            raise SinkMismatch(
                f"{self.name}: an upsert replaces whole rows, but the frame lacks {', '.join(missing)}: add them; "
                "nothing was written"
            )

    def _writable(self) -> Table:
        table = self._load()
        found = [*demands(table.metadata, self.target.key)]
        if found:
            raise Refused(f"{self.name} cannot be written: {'; '.join(found)}")
        return table

    def _load(self) -> Table:
        with telling(self.name, self._settings), closing(self._opened):  # no connection stays open between batches
            return self._opened.load_table(self.target.table)


def _is_conflict(error: Exception) -> bool:
    """Whether others were first: on the main branch, or on another one, which takes the snapshot's number."""
    return isinstance(error, CommitFailedException) or "older than last sequence number" in str(error)


def _has_changed(before: Table, now: Table) -> bool:
    """Whether a table is newer than it was, so that another commit was first. A cache may show an older one."""
    old, new = before.metadata, now.metadata
    return (
        new.table_uuid != old.table_uuid
        or now.last_sequence_number > before.last_sequence_number
        or before.metadata_location in {each.metadata_file for each in new.metadata_log}
    )


def _rolled_back(landed: Landed, table: Table) -> str:
    """Return why a table lacks the snapshot that the ledger knows; empty if it does not."""
    known = SnapshotId.parse(landed.target)
    if known is None:
        return another_kind(landed)
    now = SnapshotId.current(table)
    if known.table != now.table:
        return f"it was dropped and made again: the rows are in table {known.table}, and {now.table} is there"
    if not known.snapshot or _holds(table, known):
        return ""
    return (
        f"the table was rolled back: snapshot {known.snapshot}, which has the batch, is not in the history of its "
        f"current snapshot {now.snapshot}, but the mark is kept"
    )


def _taken_back(landed: Landed, seen: Seen) -> str:
    """Return why a table lacks the batch of its mark: no snapshot of its history since an earlier batch has it."""
    assert seen.key is not None  # noqa: S101 - it is of this module
    assert seen.mark is not None  # noqa: S101 - as above
    table, now = seen.handle, SnapshotId.current(seen.handle)
    mine = [each for each in table.snapshots() if has_batch(each, seen.key, seen.mark)]
    there = [_holds(table, SnapshotId(now.table, each.snapshot_id, each.sequence_number or 0)) for each in mine]
    if not mine:  # it has expired, maybe after a rollback
        known = SnapshotId.parse(landed.target) if landed.sequence else None  # the first batch may be older than that
        older = (
            each.snapshot_id == (known and known.snapshot) or has_earlier(each, seen.key, seen.mark)
            for each in line(table)
        )
        there = [not any(older)]
    if any(there):
        return ""
    return (
        f"the table was rolled back: its current snapshot {now.snapshot} does not come from the one with batch "
        f"{seen.mark.sequence}, but the mark is kept"
    )


def _holds(table: Table, known: SnapshotId) -> bool:
    """Whether the current snapshot comes from this one; also if that is unknown, as the ones between have expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != known.snapshot:
        if (snapshot.sequence_number or 0) <= known.sequence:
            return False
        before = snapshot.parent_snapshot_id
        if before is None:  # a root: the table was replaced, or pyiceberg has expired what was before it
            return table.snapshot_by_id(known.snapshot) is None
        if table.snapshot_by_id(before) is None:
            return True
        snapshot = table.snapshot_by_id(before)
    return snapshot is not None
