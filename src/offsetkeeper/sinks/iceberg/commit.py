"""One commit to an Iceberg table: a snapshot with the files of a batch, and the mark as a property of the table.

pyiceberg's own transaction is not used. If others have changed the table, it lands the rows again on the newest
snapshot, without a look at the mark: a stale driver would double a batch. Here a commit says what it requires, and is
for the snapshot that was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.properties import property_as_bool

from offsetkeeper.sinks.iceberg.task import local
from offsetkeeper.sinks.synced import sync


class SnapshotId(NamedTuple):
    """Identity of a snapshot, as the ledger keeps it.

    Attributes:
        table: UUID of the table, which it gets when it is made.
        snapshot: id of the snapshot; 0 if the table has none.
        sequence: its sequence number, which rises with each snapshot of the table.
    """

    table: str
    snapshot: int
    sequence: int

    @classmethod
    def current(cls, table: Table) -> SnapshotId:
        """Return that of the current snapshot."""
        snapshot = table.current_snapshot()
        identity = str(table.metadata.table_uuid)
        return (
            cls(identity, 0, 0)
            if snapshot is None
            else cls(identity, snapshot.snapshot_id, snapshot.sequence_number or 0)
        )

    @classmethod
    def parse(cls, text: str) -> SnapshotId | None:
        """Return it from its text; None if that is the identity of something else."""
        table, *numbers = text.split(" ")
        if [each.isdecimal() for each in numbers] != [True, True]:
            return None
        return cls(table, *map(int, numbers))

    def __str__(self) -> str:
        return f"{self.table} {self.snapshot} {self.sequence}"


class Commit:
    """A commit whose manifests are written, and which is not sent yet.

    Attributes:
        adds: the snapshot that it adds.
    """

    def __init__(
        self,
        table: Table,
        files: Sequence[DataFile],
        replaced: Sequence[DataFile],
        properties: Mapping[str, str],
        summary: Mapping[str, str],
    ) -> None:
        """Write the manifests.

        Args:
            table: the table, as it was loaded.
            files: the files that it adds.
            replaced: the files that it takes out.
            properties: properties of the table to set, such as the mark.
            summary: what the snapshot tells.
        """
        update = table.transaction().update_snapshot(snapshot_properties=dict(summary))
        merges = property_as_bool(
            table.metadata.properties,
            TableProperties.MANIFEST_MERGE_ENABLED,
            TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT,
        )
        self._table = table
        self._producer: Any
        if replaced:
            self._producer = update.overwrite()
        else:
            self._producer = update.merge_append() if merges and files else update.fast_append()
        for file in files:
            self._producer.append_data_file(file)
        for file in replaced:
            self._producer.delete_data_file(file)
        updates, required = self._producer._commit()  # noqa: SLF001 - the public one tries again by itself
        metadata = table.metadata
        self._required: tuple[TableRequirement, ...] = (
            *required,
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )
        self._updates: tuple[TableUpdate, ...] = (*updates, SetPropertiesUpdate(updates=dict(properties)))
        [added] = [each.snapshot for each in updates if isinstance(each, AddSnapshotUpdate)]
        self.adds = SnapshotId(str(metadata.table_uuid), added.snapshot_id, added.sequence_number or 0)
        sync(local([*self._producer._written_manifests, *self._producer._written_manifest_lists]))  # noqa: SLF001 - as above

    def send(self) -> str:
        """Send it; return the location of the table's new metadata.

        Raises:
            CommitFailedException: the table has changed since it was loaded; nothing was written.
        """
        with closing(self._table.catalog) as catalog:
            done = catalog.commit_table(self._table, self._required, self._updates)
        self._table.catalog._delete_old_metadata(self._table.io, self._table.metadata, done.metadata)  # noqa: SLF001 - as above
        return done.metadata_location

    def discard(self) -> None:
        """Delete its manifests: it has failed, and is not sent again."""
        self._producer._clean_all_uncommitted()  # noqa: SLF001 - as above
