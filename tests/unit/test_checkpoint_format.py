"""The files of a checkpoint, as Spark writes them, and as it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.checkpoint.format import (
    initial_offsets_text,
    offsets_json,
    parse_commit_log,
    parse_initial_offsets,
    parse_metadata,
    parse_offset_log,
    parse_offsets,
)
from offsetkeeper.errors import CorruptCheckpoint
from offsetkeeper.model import MAX_OFFSET, TopicPartition

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795193105882,"conf":{"spark.sql.shuffle.partitions":"2"}}'
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d:e"]), st.integers(0, 2000))
positions = st.dictionaries(partitions, st.integers(0, MAX_OFFSET))


def test_version_1_of_the_offset_log_numbers_its_sources() -> None:
    found = parse_offset_log(f'v1\n{METADATA}\n{{"a":{{"0":23}}}}\n-\n{{"a":{{"0":23}}}}', "offsets/3")
    assert found.version == 1
    assert found.metadata["conf"] == {"spark.sql.shuffle.partitions": "2"}
    assert dict(found.sources) == {"0": '{"a":{"0":23}}', "1": None, "2": '{"a":{"0":23}}'}


def test_version_2_of_the_offset_log_names_its_sources() -> None:
    found = parse_offset_log(f'v2\n{METADATA}\n0:{{"a":{{"0":23}}}}\norders:-\n', "offsets/3")
    assert found.version == 2
    assert dict(found.sources) == {"0": '{"a":{"0":23}}', "orders": None}


def test_the_continuous_trigger_writes_no_metadata() -> None:
    assert dict(parse_offset_log('v1\n\n{"a":{"0":1}}', "offsets/0").metadata) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        "v3\n{}\n-",
        "vx\n{}",
        "{}",
        "v1\nno json\n-",
        "v1\n[]\n-",
        "v2\n{}\nno name",
        "v2\n{}\n0:-\n0:-",
        "v0\n{}",
    ],
)
def test_a_file_that_is_no_offset_log_is_refused_by_name(text: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"offsets/3 is not what Spark writes there.*delete the checkpoint"):
        parse_offset_log(text, "offsets/3")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_all_versions_of_the_commit_log_are_read(version: int) -> None:
    found = parse_commit_log(f'v{version}\n{{"nextBatchWatermarkMs":5,"stateUniqueIds":{{}}}}', "commits/3")
    assert (found.version, found.content["nextBatchWatermarkMs"]) == (version, 5)


@pytest.mark.parametrize("text", ["", "v1", "v4\n{}", "v1\n{", "v1\n3"])
def test_a_file_that_is_no_commit_log_is_refused(text: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_commit_log(text, "commits/3")


def test_the_query_has_an_id() -> None:
    assert parse_metadata('{"id":"11c3-8"}', "metadata") == "11c3-8"
    for text in ("", "{}", '{"id":5}', '{"id":""}'):
        with pytest.raises(CorruptCheckpoint):
            parse_metadata(text, "metadata")


@pytest.mark.parametrize("text", ["v1\n{}", '\0v2\n{"a":{"0":1}}', "\0v1\n", "\0v1\n[]", '\0v1\n{"a":{"0":-1}}'])
def test_a_file_that_is_no_initial_offset_is_refused(text: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_initial_offsets(text, "sources/0/0")


@pytest.mark.parametrize(
    "text", ["5", '"x"', "{", '{"a":5}', '{"a":{"x":5}}', '{"a":{"0":"5"}}', '{"a":{"0":true}}', '{"a":{"0":-2}}']
)
def test_the_offset_of_another_kind_of_source_is_no_offsets(text: str) -> None:
    assert parse_offsets(text) is None


@given(positions)
def test_offsets_are_written_as_they_are_read(found: dict[TopicPartition, int]) -> None:
    assert parse_initial_offsets(initial_offsets_text(found), "sources/0/0") == found


def test_offsets_have_one_order_by_number() -> None:
    found = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    assert str(offsets_json(found)) == "{'a': {'0': 3}, 'b': {'9': 2, '10': 1}}"
