"""Offsets that a program gives at each start of a query, and a first mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offsetkeeper import Policies, TopicPartition
from offsetkeeper.errors import SettingsError, StartRefused
from structured.lab import StructuredLab


def test_a_supervisor_that_repeats_a_query_repeats_no_record(lab: StructuredLab, topic: Callable[..., str]) -> None:
    """A new checkpoint is a new word: results are built again from there."""
    name = topic()
    lab.produce(name, "a", "b")
    given = {TopicPartition(name, 0): 0}
    lab.follow(name, offsets=given)
    lab.produce(name, "c")
    with pytest.raises(StartRefused, match=f"{name} 0: given again"):
        lab.follow(name, offsets=given)
    assert lab.follow(name) == ["c"]
    assert lab.values == ["a", "b", "c"]
    lab.delete_checkpoint()
    assert lab.follow(name, offsets=given) == ["a", "b", "c"]


def test_a_query_without_a_first_run_is_refused_where_its_store_is_empty(
    packed: StructuredLab, topic: Callable[..., str]
) -> None:
    name = topic()
    packed.produce(name, "a")
    with pytest.raises(StartRefused, match=f"(?s){name} 0: first run.*first_run=stop"):
        packed.follow(name, policies=Policies(first_run="stop"))
    assert packed.follow(name) == ["a"]


def test_a_frame_that_nobody_writes_fails_the_query_before_its_offsets_are_committed(
    packed: StructuredLab, topic: Callable[..., str]
) -> None:
    name = topic()
    packed.produce(name, "a")
    with pytest.raises(SettingsError, match="nothing writes it"):
        packed.follow(name, lambda frame, _: frame.selectExpr("value"))
    assert "commit" not in packed.events()
    assert packed.follow(name) == ["a"]
