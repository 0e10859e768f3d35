"""Reads which batches the snapshots of an Iceberg table tell of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.sinks.held import Held, HeldBatch, tells
from offsetkeeper.sinks.iceberg.catalog import open_catalog, settings_of, telling
from offsetkeeper.sinks.sink import MarkKey

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
    found: list[HeldBatch] = []
    changed: list[str] = []
    oldest, after = 1, 0  # `after`: how many of the changes came after the oldest batch that is told
    for snapshot in line(table):
        oldest = snapshot.sequence_number or 0
        batch = HeldBatch.of(f"snapshot {snapshot.snapshot_id}", _told_by(snapshot))
        if batch is not None:
            found.append(batch)
            after = len(changed)
        elif snapshot.summary is not None and snapshot.summary.operation in _TAKE_ROWS:
            changed.append(f"snapshot {snapshot.snapshot_id} ({snapshot.summary.operation.value})")
    expired = f"its snapshots before number {oldest} have expired, or it was replaced" if oldest > 1 else ""
    return Held(tuple(found[::-1]), expired, ", ".join(changed[:after][::-1]))


def line(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot and those from which it comes, up to one that has expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        before = snapshot.parent_snapshot_id
        snapshot = None if before is None else table.snapshot_by_id(before)


def has_batch(snapshot: Snapshot, key: MarkKey, mark: OutputMark) -> bool:
    """Return whether a snapshot is the one with the batch of a mark; see `held.tells`."""
    return tells(_told_by(snapshot), key, mark)


def has_earlier(snapshot: Snapshot, key: MarkKey, mark: OutputMark) -> bool:
    """Return whether a snapshot is the one with a batch of the same output before that of a mark."""
    batch = HeldBatch.of("", _told_by(snapshot))
    if batch is None or (batch.group, batch.output) != key:
        return False
    sequence = batch.batch.rpartition("/")[2]  # maybe a text of another program
    return sequence.isdecimal() and int(sequence) < mark.sequence


def _told_by(snapshot: Snapshot) -> Mapping[str, Any]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties
