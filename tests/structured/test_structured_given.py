"""Offsets that a program gives at each start of a query, and a first mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.test_engine_unwritten import by_name, parse, unsaved
from offsetkeeper import Policies, TopicPartition
from offsetkeeper.errors import SettingsError, StartRefused
from offsetkeeper.sinks import Idempotent
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


@pytest.mark.parametrize("function", [parse, by_name, unsaved])
@pytest.mark.parametrize("sink", [lambda function: function, Idempotent])
def test_a_frame_that_nobody_writes_fails_the_query_before_its_offsets_are_committed(
    lab: StructuredLab, topic: Callable[..., str], function: Any, sink: Callable[[Any], Any]
) -> None:
    name = topic()
    lab.produce(name, "a")
    with pytest.raises(SettingsError, match="nothing writes it"):
        lab.follow(name, sink=sink(function))
    assert "commit" not in lab.events()


def test_a_query_whose_function_forgot_to_write_goes_on_with_one_that_writes(
    packed: StructuredLab, topic: Callable[..., str]
) -> None:
    name = topic()
    packed.produce(name, "a")
    with pytest.raises(SettingsError, match="nothing writes it"):
        packed.follow(name, parse)
    assert "commit" not in packed.events()
    assert packed.follow(name) == ["a"]
