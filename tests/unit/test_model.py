"""The nouns: what they print, how they sort, and which names and numbers they allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offsetkeeper.core.batch import Batch, Kind, QueryBatch, check_query
from offsetkeeper.core.model import Snapshot, check_group
from offsetkeeper.core.offsets import (
    NO_POSITIONS,
    OffsetRange,
    TopicPartition,
    check_offset,
    check_partition,
    check_topic,
)
from offsetkeeper.errors import SettingsError


def test_a_range_prints_as_topic_partition_start_end() -> None:
    assert str(OffsetRange("orders", 3, 10, 25)) == "orders 3 10 25"


def test_a_range_knows_its_partition_and_size() -> None:
    r = OffsetRange("orders", 3, 10, 25)
    assert r.topic_partition == TopicPartition("orders", 3)
    assert r.size == 15


def test_partitions_sort_by_number_not_by_text() -> None:
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]) == [
        TopicPartition("a", 9),
        TopicPartition("a", 10),
        TopicPartition("b", 0),
    ]


def test_a_batch_prints_one_line_for_each_range() -> None:
    batch = Batch("g", "token", 7, (OffsetRange("orders", 0, 1, 5), OffsetRange("orders", 1, 0, 2)))
    assert batch.lines() == "orders 0 1 5\norders 1 0 2"
    assert batch.size == 6


def test_a_batch_is_named_by_group_token_and_sequence_and_a_retry_is_the_same_batch() -> None:
    first, again = (Batch("g", "token", 7, (), retry=retry) for retry in (False, True))
    assert first.id == again.id == "g/token/7"
    assert first == again


def test_what_everything_holds_on_to_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Snapshot("g").version = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        NO_POSITIONS[TopicPartition("t", 0)] = None  # type: ignore[index]


@pytest.mark.parametrize("name", ["a", "orders.v2", "_-.", "...", "x" * 249])
def test_names_kafka_allows_are_topics(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a\n", "ä", "x" * 250, None, 7, b"a"])
def test_names_kafka_refuses_are_no_topics(name: Any) -> None:
    with pytest.raises(SettingsError, match="is not a topic name"):
        check_topic(name)


@pytest.mark.parametrize(
    "name",
    [
        "g",
        "orders nightly",
        "Bestellungen-für-Köln",
        "a.b",
        "...",
        "{x}*?",
        "x" * 249,
        ".",
        "..",
        "team/orders:v2",
        "a\nb",
        "a\x85b",
        "a\u2028b",
        "a\u200bb",
        " a",
        "a ",
        " ",
        "-x",
        "\ufffe",
    ],
)
def test_names_that_kafka_takes_are_groups(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("a\x00", id="nul"),
        pytest.param("a\ud800", id="half a character, which UTF-8 cannot hold"),
        pytest.param("x" * 250, id="too long"),
        pytest.param("\u00e4" * 125, id="too long in bytes, as files count"),
        pytest.param(None, id="nothing"),
        pytest.param(7, id="number"),
        pytest.param(b"g", id="bytes"),
    ],
)
def test_names_that_kafka_or_a_store_cannot_hold_are_no_groups(name: Any) -> None:
    with pytest.raises(SettingsError, match="is not a group name"):
        check_group(name)


@pytest.mark.parametrize("offset", [0, 1, 2**63 - 1])
def test_kafkas_offsets_are_offsets(offset: int) -> None:
    assert check_offset(offset) == offset


@pytest.mark.parametrize("offset", [-1, 2**63, 1.0, "1", None, True, b"1", float("nan")])
def test_anything_else_is_no_offset(offset: Any) -> None:
    with pytest.raises(SettingsError, match="is not an offset"):
        check_offset(offset)


@pytest.mark.parametrize("partition", [0, 2**31 - 1])
def test_kafkas_partitions_are_partitions(partition: int) -> None:
    assert check_partition(TopicPartition("t", partition)) == TopicPartition("t", partition)


@pytest.mark.parametrize("partition", [-1, 2**31, 1.0, "1", None, True])
def test_anything_else_is_no_partition(partition: Any) -> None:
    with pytest.raises(SettingsError, match="is not a partition of t"):
        check_partition(TopicPartition("t", partition))


def test_the_id_of_a_query_is_a_uuid_and_is_kept_in_one_form() -> None:
    query = "0b1e2f3a-0000-4000-8000-000000000001"
    assert check_query(query.upper()) == query
    with pytest.raises(SettingsError, match="such an id is a UUID"):
        check_query("feed")


def test_a_batch_knows_its_kind() -> None:
    batch = Batch("g", "token", 1, (OffsetRange("t", 0, 1, 2),))
    assert batch.kind is Kind.RECORDS
    assert replace(batch, lands_in=("dead_letters",)).kind is Kind.DEAD_LETTERS
    assert replace(batch, written=("dead_letters",)).kind is Kind.DEAD_LETTERS
    assert replace(batch, query=QueryBatch("0b1e2f3a-0000-4000-8000-000000000001", 0)).kind is Kind.QUERY
