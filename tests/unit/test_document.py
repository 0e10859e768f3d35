"""A ledger as one document: back as it was, and what is none is told as such."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from offsetkeeper.core.ledger_document import dump_document, load_document
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import CorruptStore
from offsetkeeper.testing import strategies


@settings(max_examples=40)  # of up to four changes; each store that keeps documents is given more
@given(strategies.histories())
def test_a_ledger_comes_back_as_it_was(history: list[Change]) -> None:
    for change in history:
        text = dump_document(change.after, entry={"event": "x"})
        assert load_document(text, change.after.group, "here") == change.after
        assert json.loads(text)["entry"] == {"event": "x"}


def test_its_offsets_are_in_the_form_of_spark() -> None:
    positions = {TopicPartition("b", 0): Position(7), TopicPartition("a", 10): Position(5, "id")}
    document = json.loads(dump_document(Snapshot("g", positions=positions)))
    assert document["offsets"] == {"a": {"10": 5}, "b": {"0": 7}}
    assert document["topic_ids"] == {"a": {"id": [10]}}


def test_offsets_of_another_program_are_a_group_without_a_ledger() -> None:
    found = load_document('{"offsets": {"a": {"0": 5}}}', "g", "here")
    assert found == Snapshot("g", positions={TopicPartition("a", 0): Position(5)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        b"\xff",
        '{"offsets": []}',
        '{"offsets": {"a": {"0": -1}}}',
        '{"offsets": {"a": {"0": "5"}}}',
        '{"offsets": {"a": {"x": 5}}}',
        '{"offsets": {"a": {"-1": 5}}}',
        '{"offsets": {"a": {"2147483648": 5}}}',
        '{"offsets": {"a": {"0": 5, "00": 6}}}',
        '{"offsets": {"no topic": {"0": 5}}}',
        '{"offsets": {"a": {"0": 5}}, "topic_ids": {"a": 1}}',
        '{"offsets": {}, "version": 3}',
        '{"offsets": {}, "format": 1}',
        '{"offsets": {}, "version": 3, "format": 99}',
    ],
)
def test_what_is_no_ledger_is_told_with_its_place(text: str | bytes) -> None:
    with pytest.raises(CorruptStore, match="here"):
        load_document(text, "g", "here")
