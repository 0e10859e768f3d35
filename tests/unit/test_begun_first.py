"""When a batch was begun first: its rows may be as old."""

from __future__ import annotations

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.engines.outputs import begun_ms

BATCH = Batch("g", "token", 5, (OffsetRange("t", 0, 0, 9),))


def entry(version: int, event: str, sequence: int, run: str = "token") -> Entry:
    """Return an entry that was made as many milliseconds after 1970 as its version is."""
    return Entry(version, event, f"change {version}", version, "me", sequence=sequence, token=run)


AGAIN, FIRST, OLDER = entry(9, "begin", 5), entry(8, "begin", 5), entry(7, "commit", 4)


@pytest.mark.parametrize(
    ("history", "begun"),
    [
        ([AGAIN, FIRST, OLDER], 8),
        ([AGAIN, FIRST, OLDER, entry(6, "begin", 4)], 8),
        ([AGAIN, entry(8, "begin", 5, "another"), OLDER], 9),
        ([AGAIN, FIRST], None),
        ([FIRST], None),
        ([OLDER], None),
        ([], None),
    ],
)
def test_the_first_begin_counts_if_the_history_goes_back_beyond_it(history: list[Entry], begun: int | None) -> None:
    assert begun_ms(history, BATCH) == begun
