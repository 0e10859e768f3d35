"""An output that changes its kind under its name: the ledger knows the target of the old one."""

from __future__ import annotations

from typing import Any

import pytest

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Landed
from offsetkeeper.sinks.delta.landing import DeltaTarget
from offsetkeeper.sinks.iceberg.landing import IcebergTarget
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
