"""Reads which batches the snapshots of an Iceberg table tell of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from pyiceberg.table.snapshots import Operation

from offsetkeeper.sinks.held import Held, HeldBatch
from offsetkeeper.sinks.iceberg.catalog import open_catalog, settings_of, telling

_TAKE_ROWS = (Operation.OVERWRITE, Operation.DELETE)


def held(name: str, catalog: str, properties: Mapping[str, str]) -> Held:
    """Return the batches of the snapshots from which the current one comes.

    A rollback takes snapshots out of this line, and others may expire them.

    Args:
        name: the table with its namespace.
        catalog: name of the catalog.
        properties: its properties for pyiceberg.

    Raises:
        Refused, SinkError: the table could not be opened.
    """
    opened = open_catalog(catalog, properties)
    with telling(f"Iceberg table {name} of catalog {catalog!r}", settings_of(catalog, properties)), closing(opened):
        table = opened.load_table(name)
    found, changed, oldest = [], [], 1
    snapshot = table.current_snapshot()
    while snapshot is not None:
        oldest = snapshot.sequence_number or 0
        about = {} if snapshot.summary is None else snapshot.summary.additional_properties
        batch = HeldBatch.of(f"snapshot {snapshot.snapshot_id}", about)
        if batch is not None:
            found.append(batch)
        elif snapshot.summary is not None and snapshot.summary.operation in _TAKE_ROWS:
            changed.append(f"snapshot {snapshot.snapshot_id} ({snapshot.summary.operation.value})")
        before = snapshot.parent_snapshot_id
        snapshot = None if before is None else table.snapshot_by_id(before)
    expired = f"its snapshots before number {oldest} have expired, or it was replaced" if oldest > 1 else ""
    return Held(tuple(found[::-1]), expired, ", ".join(changed[::-1]) if found else "")
