"""What others see of a query: its offsets in Kafka's group, kept alive, and what Spark tells of its batches."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from engines.lab import LIMIT_S
from offsetkeeper import Position, TopicPartition
from offsetkeeper.engines.progress import QueryProgress
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.consumers import Consumers, Publisher
from offsetkeeper.testing.server import wait_until
from structured.lab import StructuredLab
from structured.test_structured_state import DAY_MS, FOR_EVER, produce, windows

NewTopic = Callable[..., str]
ALWAYS = {"processingTime": "50 milliseconds"}


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let offsets be put into the group again after a tenth of a second."""
    monkeypatch.setattr("offsetkeeper.kafka.consumers.KEEP_S", 0.1)


def published(lab: StructuredLab, group: str) -> dict[int, int]:
    """Return the offsets in Kafka's group, by partition; the group is named after its topic."""
    topic = group.removeprefix("group-")
    return {tp[1]: offset for tp, offset in lab.kafka.group_offsets(group, [(topic, 0), (topic, 1)]).items()}


def forget(lab: StructuredLab, group: str) -> None:
    """Delete the group, as Kafka does in time where it has no members."""
    admin = lab.kafka.admin()
    admin.delete_consumer_groups([group])[group].result(LIMIT_S)


@pytest.mark.usefixtures("_quick")
def test_offsets_that_kafka_has_forgotten_come_back_while_no_batch_comes(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic(2)
    group = f"group-{name}"
    lab.produce_all(name, [(0, "a"), (1, "b"), (1, "c")])
    how: dict[str, Any] = {"group": group, "publish": True, "trigger": ALWAYS}
    with lab.start(name, **how) as query:
        wait_until(lambda: published(lab, group) == {0: 1, 1: 2}, "the offsets were there", LIMIT_S)
        forget(lab, group)
        wait_until(lambda: published(lab, group) == {0: 1, 1: 2}, "they had come back", LIMIT_S)
        assert query.exception() is None
    forget(lab, group)
    with lab.start(name, **how):  # nothing is there to read
        wait_until(lambda: published(lab, group) == {0: 1, 1: 2}, "they were there after a start", LIMIT_S)


@pytest.mark.usefixtures("_quick")
def test_a_query_that_has_lost_its_group_or_ended_puts_nothing_there(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    group = f"group-{name}"
    lab.produce(name, "a")
    query = lab.start(name, group=group, publish=True, trigger=ALWAYS)
    wait_until(lambda: published(lab, group) == {0: 1}, "the offset was there", LIMIT_S)
    with lab.ledger(group=group) as ledger:
        tp = TopicPartition(name, 0)
        ledger.rewind({tp: ledger.snapshot.positions[tp]._replace(offset=0)}, "test", force=True)
    with KafkaCluster(lab.kafka.bootstrap) as cluster:
        publisher = Publisher(cluster, group)
        assert publisher.publish(lambda: {tp: Position(1)})
        assert published(lab, group) == {0: 1}
        each_batch = query._stream.write
        assert each_batch._publisher is not None
        assert each_batch._stored() == {}
        query.stop()
        assert not each_batch._publisher.publish(lambda: {tp: Position(0)})
        assert published(lab, group) == {0: 1}


@pytest.mark.usefixtures("_quick")
def test_kafka_may_refuse_for_a_while(
    lab: StructuredLab, topic: NewTopic, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    group = f"group-{name}"
    lab.produce(name, "a")
    commit = Consumers.commit
    refused = 0

    def refuse_first(*arguments: Any, **more: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused < 4:
            raise RuntimeError("not yet")
        return commit(*arguments, **more)

    monkeypatch.setattr(Consumers, "commit", refuse_first)
    with caplog.at_level(logging.WARNING, "offsetkeeper"), lab.start(name, group=group, publish=True, trigger=ALWAYS):
        wait_until(lambda: published(lab, group) == {0: 1}, "the offset was there", LIMIT_S)
    assert caplog.text.count("could not be committed to Kafka's group: not yet") == 3


def test_each_batch_is_told_to_who_watches(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic(1, FOR_EVER)
    produce(lab, name, [1, 200, 201, 6])  # when 6 comes, its minute is over
    told: list[QueryProgress] = []

    def note(progress: QueryProgress) -> None:
        told.append(progress)
        if len(told) == 1:
            raise RuntimeError("the watcher is ill")

    query = lab.start(name, lambda frame, _: frame.count(), query=windows, max_records=1, on_progress=note)
    query.awaitTermination(LIMIT_S)
    assert [each.batch_id for each in told] == list(range(len(told)))
    assert [each.records for each in told if each.records] == [1, 1, 1, 1]
    assert {each.query_id for each in told} == {query.id}
    assert (told[0].state_rows, sum(each.late for each in told)) == (1, 1)
    assert told[0].seconds >= told[0].steps["addBatch"] > 0
    assert told[0].processed > 0 < told[0].state_bytes
    assert datetime.fromisoformat(told[-1].watermark or "").timestamp() * 1000 == DAY_MS + 141_000
    assert json.loads(told[0].json)["batchId"] == 0


def test_only_the_query_itself_is_told_of(lab: StructuredLab, topic: NewTopic) -> None:
    one, other = topic(), topic()
    lab.produce(one, "a")
    lab.produce(other, "b", "c")
    told: list[int] = []
    with lab.start(other, trigger=ALWAYS, group="other", checkpoint=f"{lab.checkpoint}-other") as running:
        wait_until(lambda: running.lastProgress is not None, "the other query had a batch", LIMIT_S)

        def meanwhile(*_: object) -> None:
            before = running.lastProgress.batchId
            lab.produce(other, "d")
            wait_until(lambda: running.lastProgress.batchId > before, "the other query had another", LIMIT_S)

        query = lab.start(one, meanwhile, on_progress=lambda progress: told.append(progress.batch_id))
        query.awaitTermination(LIMIT_S)
        assert told == [progress.batchId for progress in query.recentProgress]
    assert len(lab.spark._jsparkSession.streams().listListeners()) == 0
