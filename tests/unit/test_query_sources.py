"""Which source of a query would read the offsets of another one, from Spark's text of them."""

from __future__ import annotations

import pytest

from offsetkeeper.engines.checkpoint_match import sources_changed
from offsetkeeper.engines.query_sources import misplaced

A, B, AB = "KafkaV2[Subscribe[a]]", "KafkaV2[Subscribe[b]]", "KafkaV2[Subscribe[a, b]]"
BOTH = "KafkaV2[SubscribePattern[(?!__)(?i:A|b)]]"
PACKED = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1f"


@pytest.mark.parametrize(
    ("sources", "given"),
    [
        ([A, B], [{"b"}, {"a"}]),
        ([PACKED, A, B], [{"p"}, {"b"}, {"a"}]),
        ([AB, A], [{"a"}, {"a", "b"}]),
        ([A, A], [{"a"}, {"b"}]),
        ([A, B], [{"a"}, {"c"}]),
        ([BOTH, "KafkaV2[Subscribe[c]]"], [{"c"}, {"a", "b"}]),
        (["KafkaV2[Assign[a-0, a-1]]", "KafkaV1[Subscribe[a-0]]"], [{"a-0"}, {"a"}]),
    ],
)
def test_a_source_with_the_offsets_of_another_one_is_found(sources: list[str], given: list[set[str]]) -> None:
    assert " would read " in misplaced(sources, given)


@pytest.mark.parametrize(
    ("sources", "given"),
    [
        ([A, B], [{"a"}, {"b"}]),
        ([A, A, A], [{"a"}, {"a"}, {"a"}]),
        ([AB, A], [{"a", "b"}, {"a"}]),
        ([AB, B], [{"a"}, {"b"}]),  # a topic is new
        ([A, "KafkaV2[Subscribe[c]]"], [{"a", "b"}, {"c"}]),  # a topic is read no more
        ([A, B], [{"a"}, set()]),  # has not begun, or is of another kind
        ([PACKED, B], [{"b"}, {"b"}]),
        ([BOTH, "KafkaV2[SubscribePattern[\\p{Lower}]]"], [{"A", "B"}, {"c"}]),
        (["KafkaV2[SubscribePattern[[a-z&&[^b]]+]]", B], [{"a"}, {"b"}]),
        (["KafkaV2[SubscribePattern[[a-f[x-z]]]]", B], [{"a"}, {"b"}]),
        (["KafkaV2[Assign[a-0, b-c-1]]", "KafkaV2[Assign[b-2]]"], [{"a", "b-c"}, {"b"}]),
        ([], [{"a"}, {"b"}]),  # Spark does not tell
    ],
)
def test_sources_in_their_places_are_none_of_these(sources: list[str], given: list[set[str]]) -> None:
    assert misplaced(sources, given) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "There are [1] sources in the checkpoint offsets and now there are [3] sources requested",
            "this query reads 3",
        ),
        ("Reason: Partitions Set(a-0) have been deleted", "by the partitions a-0"),
        ("Cannot find initial offsets for partitions Set(a-0). They may have been deleted", "by the partitions a-0"),
        ("No usable value for logOffset\nDid not find value which can be converted into long", "another kind"),
        ("Failed to read log file file:/c/sources/0/0. [MALFORMED_LOG_FILE] Log file was malformed", "another kind"),
        ('Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {"logOffset":0}', "another kind"),
    ],
)
def test_what_spark_says_of_other_sources_is_told_in_our_words(text: str, told: str) -> None:
    error = sources_changed(Exception(f"[STREAM_FAILED] Query terminated with exception: {text} SQLSTATE: X"), "/c")
    assert told in str(error)
    assert "Start the query as it was" in str(error)


@pytest.mark.parametrize("text", ["No usable value for total", "Failed to read log file file:/c/commits/4", ""])
def test_other_errors_of_spark_stay_its_own(text: str) -> None:
    assert sources_changed(Exception(text), "/c") is None
