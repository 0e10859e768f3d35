"""Which partitions a group reads, and the policy for topics that a pattern finds later."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from offsetkeeper import Policies, Position, TopicPartition
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.plan import FirstOffsets, Plan, Verdict, plan
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import SettingsError, StartRefused
from offsetkeeper.readers import StreamStart
from offsetkeeper.readers.limits import Limits
from offsetkeeper.readers.subscription import query_options

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_topics_by_name_are_read_once_and_whole() -> None:
    topics = Topics.of(["b", "a", "b"])
    assert topics.names == ("b", "a")
    assert "a" in topics
    assert "c" not in topics
    assert topics.covers(A1)
    assert str(topics) == "b, a"


def test_of_chosen_partitions_no_others_are_read() -> None:
    topics = Topics.of({"a": [1, 5], "b": [0]})
    assert [topics.covers(tp) for tp in (A0, A1, B0, TopicPartition("b", 1))] == [False, True, True, False]
    assert topics.partitions_of("a", range(6)) == (1, 5)
    assert str(topics) == "a [1, 5], b [0]"


@pytest.mark.parametrize(
    ("exclude", "found"),
    [
        (None, {"orders-de", "orders-fr", "orders-test"}),
        (["orders-test"], {"orders-de", "orders-fr"}),
        (re.compile(".*-(test|fr)"), {"orders-de"}),
        ([], {"orders-de", "orders-fr", "orders-test"}),
    ],
)
def test_a_pattern_finds_topics_by_their_whole_names(exclude: Any, found: set[str]) -> None:
    topics = Topics.of(re.compile("orders-.*|__.*"), exclude)
    names = {"orders-de", "orders-fr", "orders-test", "old-orders-de", "orders", "__consumer_offsets", "__orders-x"}
    assert {name for name in names if name in topics} == found
    assert pickle.loads(pickle.dumps(topics)) == topics  # noqa: S301 - our own
    assert str(topics).startswith("topics that match 'orders-.*|__.*'")


@pytest.mark.parametrize(
    ("wanted", "exclude", "said"),
    [
        ("orders", None, "give a list of names"),
        (42, None, "give a list of names"),
        ({}, None, "no topics"),
        (re.compile(b"orders"), None, "is for bytes"),
        (re.compile("o"), "orders", "give a list of names, or a pattern"),
        (re.compile("o"), ["no spaces"], "is not a topic name"),
        (["orders"], ["orders"], "needs a pattern"),
        ({"orders": []}, None, "are not partitions of orders"),
        ({"orders": "01"}, None, "are not partitions of orders"),
        ({"orders": 3}, None, "are not partitions of orders"),
        ({"orders": [-1]}, None, "is not a partition of orders"),
        ({"no spaces": [1]}, None, "is not a topic name"),
    ],
)
def test_what_names_no_topics_is_refused(wanted: Any, exclude: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Topics.of(wanted, exclude)


def planned(policies: Policies, *stored: TopicPartition, pattern: bool = True) -> Plan:
    positions = dict.fromkeys(stored, Position(7))
    bounds = {A0: Bounds(5, 9), B0: Bounds(3, 8)}
    return plan("g", positions, bounds, policies, FirstOffsets("latest", {B0: 8, A0: 9}, pattern=pattern))


def test_a_topic_that_a_pattern_finds_later_begins_at_its_beginning() -> None:
    """Its records came after the group had begun: `start="latest"` would skip those that came before it was found."""
    first, later = planned(Policies()), planned(Policies(), A0)
    assert [(row.verdict, row.start) for row in first.rows] == [(Verdict.FIRST_RUN, 9), (Verdict.FIRST_RUN, 8)]
    assert [(row.verdict, row.start) for row in later.rows] == [(Verdict.RESUME, 7), (Verdict.NEW_TOPIC, 3)]
    assert (later.rows[1].lost, later.rows[1].skipped) == (3, 0)
    named = planned(Policies(), A0, pattern=False).rows[1]
    assert (named.verdict, named.start) == (Verdict.FIRST_RUN, 8)


def test_the_policy_decides_about_new_topics() -> None:
    end = planned(Policies(new_topics="end"), A0).rows[1]
    assert (end.start, end.skipped, end.lost) == (8, 5, 3)
    with pytest.raises(StartRefused, match=r"b 0: new topic.*new_topics=stop"):
        planned(Policies(new_topics="stop"), A0).check()


def test_the_connector_is_told_the_same_topics_and_limits() -> None:
    def told(*topics: Any, **more: Any) -> dict[str, str]:
        return query_options(StreamStart(Topics.of(*topics), {}, **more))

    assert told(["a", "b"]) == {"subscribe": "a,b"}
    assert told({"a": [1, 0]}) == {"assign": '{"a": [0, 1]}'}
    assert told(re.compile("a.*")) == {"subscribePattern": "(?!__)(?:a.*)"}
    found = told(re.compile("A.*", re.IGNORECASE), ["a-b.c"])["subscribePattern"]
    assert found == r"(?!__)(?!(?:a\-b\.c)$)(?i:A.*)"
    limits = Limits(max_records=10, min_records=5, max_delay_s=0.5)
    assert told(["a"], limits=limits) == {
        "subscribe": "a",
        "maxOffsetsPerTrigger": "10",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "500ms",
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"limits": Limits(max_bytes=1)}, "cannot keep to max_bytes"),
        ({"limits": Limits(max_records_per_topic={"a": 1})}, "cannot keep to max_records_per_topic"),
        ({"topics": re.compile("(?P<x>a)")}, "no named groups"),
        ({"topics": re.compile("a", re.DOTALL)}, "no flag but"),
        ({"topics": re.compile("a"), "new_topics": "end"}, "cannot begin a new topic at the 'end'"),
    ],
)
def test_what_the_connector_cannot_do_is_refused(more: dict[str, Any], said: str) -> None:
    topics = Topics.of(more.pop("topics", ["a"]))
    with pytest.raises(SettingsError, match=said):
        query_options(StreamStart(topics, {}, **more))
