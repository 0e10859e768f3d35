"""What a batch was planned on is asked for once more before its commit: the same topics, in the same cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.engines import attempt
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.failures import Course
from offsetkeeper.engines.settings import Pace
from offsetkeeper.errors import RangeGone

TP = TopicPartition("t", 0)
BATCH = Batch("g", "token", 1, (OffsetRange(*TP, 0, 5),))


def check(
    monkeypatch: pytest.MonkeyPatch,
    now: Mapping[TopicPartition, TopicDescription],
    batch: Batch = BATCH,
    course: Course | None = None,
) -> Course:
    """Check the topics of the batch, which are these now; return how far the run is with it."""
    course = Course() if course is None else course
    monkeypatch.setattr(attempt, "described", lambda *_: now)
    stored = {TP: Position(0, "topic", "cluster")}
    delivery = SimpleNamespace(
        ledger=SimpleNamespace(snapshot=SimpleNamespace(positions=stored)),
        asked=SimpleNamespace(pace=Pace(retry_timeout_s=0), reader=None),
        streams=False,
        _cluster=None,
        _reads=lambda _: False,
    )
    Delivery._check_topics(cast("Delivery", delivery), batch, course)
    return course


def topic(topic_id: str | None, cluster_id: str | None) -> TopicDescription:
    """Return the topic with these ids."""
    return TopicDescription("t", topic_id, (0,), 1, 1, cluster_id)


@pytest.mark.parametrize("here", [topic("topic", "cluster"), topic(None, None), topic("topic", None)])
def test_the_same_topic_is_checked_once(monkeypatch: pytest.MonkeyPatch, here: TopicDescription) -> None:
    assert check(monkeypatch, {TP: here}).checked


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({}, "topic t was deleted or created again"),
        ({TP: topic("other", "cluster")}, "topic t was deleted or created again"),
        ({TP: topic("topic", "elsewhere")}, "lead to the Kafka cluster elsewhere now, and led to cluster"),
        ({TP: topic("another", "a cluster")}, "lead to the Kafka cluster a cluster now"),
    ],
)
def test_a_topic_that_is_gone_or_another_or_elsewhere_ends_the_batch(
    monkeypatch: pytest.MonkeyPatch, now: Mapping[TopicPartition, TopicDescription], why: str
) -> None:
    with pytest.raises(RangeGone, match=why):
        check(monkeypatch, now)


def test_what_was_checked_or_has_no_record_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: dict[TopicPartition, TopicDescription] = {}
    assert check(monkeypatch, gone, course=Course(checked=True)).checked
    assert not check(monkeypatch, gone, batch=replace(BATCH, ranges=())).checked
