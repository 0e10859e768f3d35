"""What the ledger knows of an output that is another one now: of another kind under its name, or replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Landed
from offsetkeeper.sinks.delta.landing import DeltaTarget
from offsetkeeper.sinks.iceberg.commit import SnapshotId
from offsetkeeper.sinks.iceberg.landing import IcebergTarget, _holds
from offsetkeeper.sinks.sink import Seen

MARK = OutputMark(7, "token", "0" * 16)


@pytest.mark.parametrize(
    ("target", "known", "now"),
    [
        (DeltaTarget, "6d2a 12 7", "3"),
        (DeltaTarget, "wPSbYvTsR2uD6ZkVW1ZDdA", "3"),
        (IcebergTarget, "3", "6d2a 12 7"),
        (IcebergTarget, "a b c", "6d2a 12 7"),
    ],
)
def test_its_rows_are_elsewhere_although_the_mark_fits(target: Any, known: str, now: str) -> None:
    """Before, it was a ValueError."""
    why = target.lost(None, Landed(7, known), Seen(MARK, None, now))
    assert why == f"the rows are in an output of another kind, {known}, which had this name"


@pytest.mark.parametrize(("parent", "kept", "holds"), [(None, True, False), (None, False, True), (6, True, True)])
def test_an_iceberg_table_that_was_replaced_has_a_root_beside_what_it_had(
    parent: int | None, *, kept: bool, holds: bool
) -> None:
    """`create or replace` keeps the UUID and the properties of a table. Of what has expired nobody knows."""
    newest = SimpleNamespace(snapshot_id=9, sequence_number=5, parent_snapshot_id=parent)
    table = SimpleNamespace(
        current_snapshot=lambda: newest, snapshot_by_id=lambda number: "kept" if kept and number == 3 else None
    )
    assert _holds(cast("Any", table), SnapshotId("6d2a", 3, 2)) is holds
