"""Queries that use their records more than once, and a checkpoint of another number of sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

from offsetkeeper.errors import CheckpointMismatch
from structured.lab import StructuredLab

NewTopic = Callable[..., str]


def once(records: DataFrame) -> DataFrame:
    return records


def thrice(records: DataFrame) -> DataFrame:
    return records.union(records).union(records)


def test_records_that_a_query_uses_three_times_are_in_the_output_three_times(
    either: StructuredLab, topic: NewTopic
) -> None:
    """And their ranges are committed once: the checkpoint has three sources, which end alike."""
    name = topic()
    for values in ("abcde", "fg"):
        either.produce(name, *values)
        assert Counter(either.follow(name, query=thrice, max_records=3)) == dict.fromkeys(values, 3)
    assert [at.offset for at in either.snapshot().positions.values()] == [7]


def test_another_number_of_sources_than_the_checkpoint_has_is_refused_and_loses_nothing(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    assert lab.follow(name, reader="connector", query=once) == ["a", "b"]
    lab.produce(name, "c")
    with pytest.raises(
        CheckpointMismatch, match=r"read 1 sources, and this query reads 3.*nothing was read or written"
    ):
        lab.follow(name, reader="connector", query=thrice)
    assert lab.follow(name, reader="connector", query=once) == ["c"]
