"""Partitions and topics that come, go and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Policies, TopicPartition
from offsetkeeper.errors import RangeGone, StartRefused, UnknownTopic
from offsetkeeper.operate.audit import audit
from offsetkeeper.readers import PackedReader

NewTopic = Callable[..., str]
pytestmark = pytest.mark.usefixtures("briefly_doubted")
BEGINNING = Policies(below_beginning="beginning", beyond_end="beginning", recreated="beginning")
END = Policies(below_beginning="end", beyond_end="end", recreated="end")


def test_partitions_added_while_stopped_are_read_from_their_beginning(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.read(name, start="latest")
    lab.grow(name, 2)
    lab.produce(name, "b", partition=1)
    lab.produce(name, "c")
    assert lab.read(name, start="latest") == ["c", "b"]


def test_records_that_kafka_deleted_of_an_added_partition_are_warned_of(
    lab: Lab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """They are lost, and no position was ever stored that a policy could judge."""
    name = topic()
    lab.produce(name, "a")
    lab.read(name)
    lab.grow(name, 2)
    lab.produce(name, "b", "c", partition=1)
    lab.delete_records(name, 1, partition=1)
    caplog.set_level("WARNING", "offsetkeeper")
    assert lab.read(name) == ["c"]
    assert f"{name} 1: new" in caplog.text
    assert "1 lost" in caplog.text


def test_partitions_added_while_running_are_read_from_their_beginning(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    with Running(lab.pipeline(name), lab.spark, lab.keep) as run:
        run.next_batch()
        lab.grow(name, 2)
        lab.produce(name, "b", partition=1)
        assert run.next_batch().lines() == f"{name} 1 0 1"
    assert lab.values == ["a", "b"]


def test_two_topics_are_read_in_one_batch(lab: Lab, topic: NewTopic) -> None:
    names = sorted([topic(), topic(2)])
    for name in names:
        lab.produce(name, name)
    assert lab.read(*names) == names
    assert lab.batches[0].lines() == f"{names[0]} 0 0 1\n{names[1]} 0 0 1"


def test_a_thousand_partitions_are_read_and_gone_on_from(lab: Lab, topic: NewTopic) -> None:
    name = topic(1000)
    lab.produce_all(name, [(partition, f"a{partition}") for partition in (0, 499, 999)])
    assert lab.read(name) == ["a0", "a499", "a999"]
    lab.produce_all(name, [(partition, f"b{partition}") for partition in range(1000)])
    assert len(lab.read(name)) == 1000
    assert lab.offsets() == {p: 1 + (p in {0, 499, 999}) for p in range(1000)}


def test_a_topic_that_does_not_exist_is_told_before_anything_is_changed(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    with pytest.raises(UnknownTopic, match=r"no such topic .*: no-such-topic"):
        lab.read(name, "no-such-topic")
    assert lab.events() == []


def test_one_of_two_topics_gone_is_said_and_its_offsets_are_kept_while_the_other_is_read(
    lab: Lab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    kept, gone = topic(), topic()
    lab.produce(kept, "a")
    lab.produce(gone, "b")
    lab.read(kept, gone)
    lab.kafka.delete_topic(gone)
    lab.produce(kept, "c")
    caplog.set_level("WARNING", "offsetkeeper")
    assert lab.read(kept, gone) == ["c"]
    assert f"{gone} 0: removed, stored 1" in caplog.text
    assert lab.snapshot().positions[TopicPartition(gone, 0)].offset == 1


def test_one_of_two_topics_gone_stops_the_start_where_the_policy_says_so(lab: Lab, topic: NewTopic) -> None:
    kept, gone = topic(), topic()
    lab.read(kept, gone)
    lab.kafka.delete_topic(gone)
    before = lab.snapshot()
    with pytest.raises(StartRefused, match=f"{gone} 0: removed"):
        lab.read(kept, gone, policies=Policies(removed="stop"))
    assert lab.snapshot() == before


def test_one_of_two_topics_gone_while_running_is_said_and_the_other_is_read(lab: Lab, topic: NewTopic) -> None:
    kept, gone = topic(), topic()
    lab.produce(gone, "a")
    with Running(lab.pipeline(kept, gone), lab.spark, lab.keep) as run:
        run.next_batch()
        lab.kafka.delete_topic(gone)
        lab.produce(kept, "b")
        run.next_batch()
    assert lab.values == ["a", "b"]


def test_the_only_topic_gone_while_running_ends_the_run(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    with Running(lab.pipeline(name), lab.spark, lab.keep) as run:
        run.next_batch()
        lab.kafka.delete_topic(name)
        with pytest.raises(UnknownTopic, match=name):
            run.end()
    assert lab.snapshot().owner is None


@pytest.mark.parametrize("new", [["x"], ["x", "y", "z"]], ids=["a smaller end", "a larger end"])
def test_a_topic_made_again_while_stopped_is_known_by_its_id_whatever_its_end(
    lab: Lab, topic: NewTopic, new: list[str]
) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    lab.read(name)
    lab.recreate(name)
    lab.produce(name, *new)
    before = lab.snapshot()
    with pytest.raises(StartRefused, match=f"{name} 0: recreated, stored 2"):
        lab.read(name)
    assert lab.snapshot() == before
    assert lab.read(name, policies=BEGINNING) == new
    lab.produce(name, "later")
    assert lab.read(name) == ["later"]
    assert audit(lab.history(), lab.snapshot()) == []


def test_a_topic_made_again_may_be_gone_on_with_at_its_end(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    lab.read(name)
    lab.recreate(name)
    lab.produce(name, "x")
    assert lab.read(name, policies=END) == []
    lab.produce(name, "y")
    assert lab.read(name) == ["y"]
    [skipped] = audit(lab.history(), lab.snapshot())
    assert (skipped.kind, skipped.start, skipped.end, skipped.explained) == ("gap", 0, 1, True)


def test_a_topic_made_again_while_running_ends_the_run(lab: Lab, topic: NewTopic) -> None:
    """A poll that comes just then may have the id of the old topic and the end of the new one."""
    name, other = topic(), topic()
    lab.produce(name, "a")
    with Running(lab.pipeline(name, other), lab.spark, lab.keep) as run:
        run.next_batch()
        lab.recreate(name)
        with pytest.raises(StartRefused, match=f"{name} 0: (recreated|beyond the end)"):
            run.end()
    assert lab.values == ["a"]


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_a_topic_made_again_while_a_batch_of_it_is_read_is_not_committed(
    lab: Lab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """Its records would be those of the new topic, at offsets of the old one."""
    name = topic()
    lab.produce(name, "a")
    lab.read(name)
    lab.produce(name, "b")
    read = PackedReader.read

    def recreate_and_read(*arguments: Any) -> DataFrame:
        monkeypatch.setattr(PackedReader, "read", read)
        lab.recreate(name)
        lab.produce(name, "x", "y")
        return read(*arguments)

    monkeypatch.setattr(PackedReader, "read", recreate_and_read)
    error = StartRefused if guarantee == "at_least_once" else RangeGone
    with pytest.raises(error, match=r"recreated|created again"):
        lab.pipeline(name).run(lab.spark, lab.keep, guarantee=guarantee, until="caught_up")
    assert lab.values == ["a"]
    assert lab.offsets() == {0: 1}
    assert lab.snapshot().positions[TopicPartition(name, 0)].offset == 1


def test_a_position_within_an_open_transaction_waits_for_its_end(lab: Lab, topic: NewTopic) -> None:
    """A run that read uncommitted records got there; one that reads committed ones neither stops nor goes back."""
    name = topic()
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "transactional.id": name})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(name, "open", partition=0)
    assert producer.flush(LIMIT_S) == 0
    assert lab.read(name, isolation="read_uncommitted") == ["open"]
    assert lab.read(name) == []
    producer.commit_transaction(LIMIT_S)
    lab.produce(name, "later")
    assert lab.read(name) == ["later"]


def test_partitions_that_come_back_to_a_topic_made_again_with_fewer_are_read_from_their_beginning(
    lab: Lab, topic: NewTopic
) -> None:
    """Not by the policy for the topic before: their records were never read."""
    name = topic(3)
    lab.produce_all(name, [(number, "old") for number in range(3)])
    lab.read(name)
    lab.recreate(name)
    assert lab.read(name, policies=END) == []
    lab.produce(name, "a")
    lab.grow(name, 3)
    lab.produce_all(name, [(1, "b"), (2, "c"), (2, "d")])
    assert sorted(lab.read(name, policies=END)) == ["a", "b", "c", "d"]


def test_a_topic_made_again_with_fewer_partitions_keeps_the_offsets_of_the_ones_gone(lab: Lab, topic: NewTopic) -> None:
    name = topic(2)
    lab.produce(name, "a", partition=1)
    lab.read(name)
    lab.recreate(name, 1)
    lab.produce(name, "x")
    assert lab.read(name, policies=BEGINNING) == ["x"]
    assert lab.offsets() == {0: 1, 1: 1}


def test_a_topic_made_again_with_more_partitions_is_read_from_all_beginnings(lab: Lab, topic: NewTopic) -> None:
    name = topic(1)
    lab.produce(name, "a")
    lab.read(name)
    lab.recreate(name, 2)
    lab.produce(name, "x")
    lab.produce(name, "y", partition=1)
    assert lab.read(name, policies=BEGINNING) == ["x", "y"]


def test_records_taken_by_retention_are_counted_and_stop_the_start(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.read(name)
    lab.produce(name, "b", "c", "d")
    lab.delete_records(name, before=3)
    before = lab.snapshot()
    with pytest.raises(StartRefused, match=r"below the beginning, stored 1, Kafka holds 3\.\.4, .* 2 lost"):
        lab.read(name)
    assert lab.snapshot() == before


@pytest.mark.parametrize(("policies", "read"), [(BEGINNING, ["d"]), (END, [])], ids=["beginning", "end"])
def test_records_taken_by_retention_are_passed_over_as_the_policy_says(
    lab: Lab, topic: NewTopic, policies: Policies, read: list[str]
) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.read(name)
    lab.produce(name, "b", "c", "d")
    lab.delete_records(name, before=3)
    assert lab.read(name, policies=policies) == read
    lab.produce(name, "e")
    assert lab.read(name) == ["e"]


def test_records_taken_by_retention_while_a_batch_is_read_stop_the_run_at_its_next_try(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")

    def deleted_before_it_is_read(frame: object, batch: object) -> None:
        lab.delete_records(name, before=2)
        lab.keep(frame, batch)  # type: ignore[arg-type]  # a frame and a batch

    with pytest.raises(StartRefused, match=r"below the beginning, stored 0, .* 2 lost"):
        lab.pipeline(name).run(lab.spark, deleted_before_it_is_read, until="caught_up")
    assert lab.values == []


def test_records_taken_by_retention_while_a_batch_is_read_are_passed_over_where_the_policy_says_so(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")

    def deleted_before_it_is_read(frame: object, batch: object) -> None:
        lab.delete_records(name, before=2)
        lab.keep(frame, batch)  # type: ignore[arg-type]  # a frame and a batch

    lab.pipeline(name, policies=BEGINNING).run(lab.spark, deleted_before_it_is_read, until="caught_up")
    assert lab.values == ["c"]
    assert lab.events()[-6:] == ["begin", "abandon", "place", "begin", "commit", "release"]
    [abandoned] = [entry for entry in lab.history() if entry.event == "abandon"]
    assert f"'{name} 0 0 3' cannot be read: Kafka holds 2 to 3" in abandoned.reason


@pytest.mark.parametrize(("policies", "read"), [(BEGINNING, ["a", "b"]), (END, [])], ids=["beginning", "end"])
def test_an_offset_beyond_the_end_stops_the_start_unless_the_policy_says_where_to_go(
    lab: Lab, topic: NewTopic, policies: Policies, read: list[str]
) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    lab.read(name)
    with lab.ledger() as ledger:
        position = ledger.snapshot.positions[TopicPartition(name, 0)]
        ledger.rewind({TopicPartition(name, 0): position._replace(offset=7)}, "a test")
    with pytest.raises(StartRefused, match=r"beyond the end, stored 7, Kafka holds 0\.\.2"):
        lab.read(name)
    assert lab.offsets() == {0: 7}
    assert lab.read(name, policies=policies) == read
