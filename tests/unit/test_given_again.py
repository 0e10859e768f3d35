"""Offsets that were given to an earlier start: they are set again only if nothing was read since."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from offsetkeeper.core.offsets import Position, TopicPartition, digest_of
from offsetkeeper.engines.loop import Loop

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
GIVEN = {A: 5, B: 7}
DIGESTS = ("older", digest_of(GIVEN))


@pytest.mark.parametrize(
    ("positions", "digests", "expected"),
    [
        ({}, (), ((), GIVEN)),
        ({A: 5, B: 7}, DIGESTS, ((), {})),
        ({A: 9, B: 7}, DIGESTS, (DIGESTS, GIVEN)),
        ({A: 5}, DIGESTS, (DIGESTS, GIVEN)),
    ],
)
def test_a_start_that_died_before_its_first_commit_gives_nothing_again(
    positions: dict[TopicPartition, int], digests: tuple[str, ...], expected: object
) -> None:
    found = SimpleNamespace(given=digests, positions={tp: Position(offset) for tp, offset in positions.items()})
    loop: Any = SimpleNamespace(asked=SimpleNamespace(given=GIVEN), ledger=SimpleNamespace(snapshot=found))
    assert Loop._given(cast("Loop", loop), None) == expected
