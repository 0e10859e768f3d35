"""The ledger against a checkpoint that was deleted, is older, newer or another query's: no record is lost or twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from engines.databases import do
from engines.lab import LIMIT_S
from offsetkeeper import OnMismatch, Policies, TopicPartition
from offsetkeeper.errors import CheckpointMismatch, OffsetkeeperError, StartRefused
from structured.lab import StructuredLab, fail, started

NewTopic = Callable[..., str]
compared = pytest.mark.parametrize(
    "either", [pytest.param("packed", marks=pytest.mark.soak), "connector"], indirect=True
)
"""For tests of what is compared before the query starts, whoever reads."""


def test_a_deleted_checkpoint_starts_again_from_the_ledger(either: StructuredLab, topic: NewTopic) -> None:
    name = topic(2)
    either.produce_all(name, [(0, "a"), (1, "b")])
    either.follow(name)
    either.produce_all(name, [(0, "c"), (1, "d")])
    either.delete_checkpoint()
    assert sorted(either.follow(name)) == ["c", "d"]
    either.delete_checkpoint()
    assert either.follow(name) == []


def test_a_batch_begun_under_a_checkpoint_that_is_gone_is_finished_with_its_ranges_and_its_id(
    either: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    either.produce(name, "a", "b")
    with pytest.raises(RuntimeError, match="the output is away"):
        either.follow(name, fail, attempts=1)
    begun = either.snapshot().pending
    assert begun is not None
    either.delete_checkpoint()
    either.produce(name, "c")
    assert either.follow(name) == ["a", "b", "c"]
    assert (either.batches[0], either.batches[0].retry) == (begun, True)


@compared
def test_an_older_copy_of_the_checkpoint_is_followed_without_output_until_it_is_where_the_ledger_stands(
    either: StructuredLab, topic: NewTopic
) -> None:
    name = topic(2)
    either.produce_all(name, [(0, "a"), (1, "b")])
    either.follow(name)
    copy = either.copy_checkpoint("older")
    for value in ("c", "d"):
        either.produce(name, value)
        assert either.follow(name) == [value]
    either.restore_checkpoint(copy)
    assert either.follow(name) == []
    either.restore_checkpoint(copy)
    either.produce_all(name, [(0, "e"), (1, "f")])
    assert sorted(either.follow(name)) == ["e", "f"]  # of a batch with c and d in it
    assert [batch.ranges[0].start for batch in either.batches[-1:]] == [3]
    assert either.offsets() == {0: 4, 1: 2}


def test_rows_done_before_are_taken_out_of_a_batch_of_many_partitions(either: StructuredLab, topic: NewTopic) -> None:
    """Of partition n, n records were done before; the batch has five of each."""
    name = topic(6)
    either.follow(name)
    either.produce_all(name, [(p, f"{p}.{n}") for p in range(6) for n in range(5)])
    with either.ledger() as ledger:
        stored = {tp: at._replace(offset=tp.partition) for tp, at in ledger.snapshot.positions.items()}
        ledger.rewind(stored, "as if a direct run had read them")
    assert sorted(either.follow(name)) == [f"{p}.{n}" for p in range(6) for n in range(p, 5)]
    assert len(either.batches) == 1


@compared
def test_a_checkpoint_that_is_ahead_stops_and_shows_both_sides(either: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    either.produce(name, "a", "b", "c")
    either.follow(name)
    tp = TopicPartition(name, 0)
    with either.ledger() as ledger:
        ledger.rewind({tp: ledger.snapshot.positions[tp]._replace(offset=1)}, "as an older backup of the store")
    either.produce(name, "d")
    shown = rf"(?s){name} 0: the checkpoint is at 3, the ledger is at 1: a hole.*new checkpoint.*hole='follow'"
    for _ in range(2):
        with pytest.raises(CheckpointMismatch, match=shown):
            either.follow(name)
    assert (either.offsets(), either.snapshot().owner, either.values) == ({0: 1}, None, ["a", "b", "c"])
    either.delete_checkpoint()
    assert either.follow(name) == ["b", "c", "d"]


@pytest.mark.parametrize("query", [None, lambda records: records.dropDuplicates(["value"])], ids=["plain", "state"])
def test_a_reset_is_not_ignored_by_a_query_on_its_old_checkpoint(
    either: StructuredLab, topic: NewTopic, query: Any
) -> None:
    """There is nothing new in Kafka, so no batch would ever run and tell."""
    name = topic()
    either.produce(name, "a", "b")
    tp = TopicPartition(name, 0)
    assert either.follow(name, query=query) == ["a", "b"]
    with either.ledger() as ledger:
        ledger.rewind({tp: ledger.snapshot.positions[tp]._replace(offset=0)}, "read again")
    before = either.snapshot()
    shown = rf"(?s){name} 0: the checkpoint is at 2, the ledger is at 0: a hole.*new checkpoint"
    with pytest.raises(CheckpointMismatch, match=shown):
        either.follow(name, query=query)
    assert either.snapshot() == before, "nobody was fenced"
    either.delete_checkpoint()
    how = {"offsets": {tp: 0}} if query else {}
    assert either.follow(name, query=query, **how) == ["a", "b"]


def test_a_reset_forwards_is_not_ignored_by_a_query_with_state(packed: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    packed.produce(name, "a")
    packed.follow(name, query=lambda records: records.dropDuplicates(["value"]))
    packed.produce(name, "b", "c")
    with packed.ledger() as ledger:
        tp = TopicPartition(name, 0)
        ledger.rewind({tp: ledger.snapshot.positions[tp]._replace(offset=2)}, "skip one")
    with pytest.raises(CheckpointMismatch, match=r"the checkpoint is at 1, the ledger is at 2: ahead of it"):
        packed.follow(name, query=lambda records: records.dropDuplicates(["value"]))
    assert packed.values == ["a"]


def test_a_ledger_may_follow_a_checkpoint_that_is_ahead(
    lab: StructuredLab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")
    lab.follow(name)
    tp = TopicPartition(name, 0)
    with lab.ledger() as ledger:
        ledger.rewind({tp: ledger.snapshot.positions[tp]._replace(offset=1)}, "test")
    lab.produce(name, "d")
    with caplog.at_level(logging.WARNING, "offsetkeeper"):
        assert lab.follow(name, on_mismatch=OnMismatch(hole="follow")) == ["d"]
    sides = f"{name} 0: the checkpoint has 3 to 4, the ledger is at 1: a hole"
    assert f"is ahead of the ledger; the ledger follows it: {sides}" in caplog.text
    assert lab.offsets() == {0: 4}


@compared
def test_a_checkpoint_of_a_ledger_that_was_deleted_stops_too(either: StructuredLab, topic: NewTopic) -> None:
    """Where the ledger begins anew, and the checkpoint goes on."""
    name = topic()
    either.produce(name, "a")
    either.follow(name)
    either.produce(name, "b")
    either.store = either.store.replace("offsets.db", "new.db")
    with pytest.raises(CheckpointMismatch, match="the ledger is at 0: a hole"):
        either.follow(name)


@pytest.mark.parametrize("planned", [False, True], ids=["done", "planned"])
def test_a_group_without_positions_skips_no_record_that_its_checkpoint_has_not_read(
    packed: StructuredLab, topic: NewTopic, *, planned: bool
) -> None:
    """The group has another name, or another store, and begins at the end of Kafka: the checkpoint is behind that."""
    name, other = topic(2), {"group": "other", "start": "latest"}
    packed.produce_all(name, [(0, "a"), (1, "b")])
    packed.follow(name)
    packed.produce(name, "c")
    if planned:
        with pytest.raises(RuntimeError, match="the output is away"):
            packed.follow(name, fail, attempts=1)
    packed.produce_all(name, [(0, "d"), (1, "e")])
    sides = [f"{name} {p}: the checkpoint goes on at 1, start=latest begins at {end}" for p, end in ((0, 3), (1, 2))]
    shown = rf"(?s){sides[0]}.*{sides[1]}.*never be processed.*offsetkeeper checkpoint export.*offsets="
    with pytest.raises(CheckpointMismatch, match=shown):
        packed.follow(name, **other)
    with packed.ledger(group="other") as ledger:
        assert ledger.snapshot.version == 0, "nothing was written"
    offsets = {TopicPartition(name, p): 1 for p in range(2)}
    assert sorted(packed.follow(name, **other, offsets=offsets)) == ["c", "d", "e"]
    packed.produce(name, "f")
    assert packed.follow(name, **other) == ["f"]
    assert sorted(packed.values) == ["a", "b", "c", "d", "e", "f"]


def test_a_partition_that_the_checkpoint_has_not_found_yet_is_read_from_its_beginning(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """As Spark reads it, whatever `start` says: the topic is not new."""
    name = topic()
    lab.produce(name, "a")
    lab.follow(name)
    lab.grow(name, 2)
    lab.produce(name, "b", partition=1)
    with pytest.raises(CheckpointMismatch, match=f"{name} 1: the checkpoint goes on at 0, start=latest begins at 1"):
        lab.follow(name, group="other", start="latest")
    offsets = {TopicPartition(name, 0): 1, TopicPartition(name, 1): 0}
    assert lab.follow(name, group="other", start="latest", offsets=offsets) == ["b"]


def test_a_group_without_positions_begins_at_the_end_if_its_checkpoint_is_there_or_new(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.follow(name)
    assert lab.follow(name, group="other", start="latest") == []
    lab.delete_checkpoint()
    assert lab.follow(name, group="third", start="latest") == []
    lab.produce(name, "b")
    assert lab.follow(name, group="third", start="latest") == ["b"]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_position_that_another_program_deleted_is_no_first_run(
    either: StructuredLab, topic: NewTopic, *, deleted: bool
) -> None:
    name = topic(2)
    either.produce_all(name, [(0, "a"), (1, "b")])
    either.follow(name)
    do(either.store, "delete from kafka_offsets where kafka_offsets.partition = 1")
    either.produce(name, "c", partition=1)
    if deleted:
        either.delete_checkpoint()
    with pytest.raises(StartRefused, match=f"{name} 1: position missing"):
        either.follow(name)
    assert sorted(either.values) == ["a", "b"]


def test_a_checkpoint_of_another_query_is_refused(packed: StructuredLab, topic: NewTopic) -> None:
    one, two = topic(), topic()
    packed.produce(one, "a")
    packed.produce(two, "b")
    packed.follow(one)
    with pytest.raises(CheckpointMismatch, match=r"of another query.*its own checkpoint"):
        packed.follow(two)
    assert packed.values == ["a"]
    packed.delete_checkpoint()
    assert packed.follow(two) == ["b"]


@compared
def test_a_topic_added_to_the_pipeline_is_read_under_the_old_checkpoint(either: StructuredLab, topic: NewTopic) -> None:
    one, two = topic(), topic()
    either.produce(one, "a")
    either.produce(two, "b")
    either.follow(one)
    assert either.follow([one, two]) == ["b"]
    either.produce(one, "c")
    assert either.follow([one, two]) == ["c"]


def test_a_checkpoint_that_a_change_of_the_query_made_unusable_is_deleted(
    packed: StructuredLab, topic: NewTopic
) -> None:
    """Spark itself refuses another number of sources; a query of one's own counts batches, which the first did not."""
    name = topic()
    packed.produce(name, "a")
    packed.follow(name)
    how: dict[str, Any] = {"checkpoint": str(packed.checkpoint), "on_mismatch": OnMismatch(hole="follow")}
    with started(lambda: packed.pipeline(name).stream(packed.spark, packed.keep, **how)) as stream:
        other = packed.spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
        both = stream.records.selectExpr("cast(value as string) as value").unionByName(other)
        query = both.writeStream.foreachBatch(stream.write).option("checkpointLocation", stream.checkpoint).start()
        with pytest.raises(Exception, match=r"number of sources|sources in the checkpoint"):
            query.awaitTermination(LIMIT_S)
    packed.delete_checkpoint()
    packed.produce(name, "b")
    assert packed.follow(name) == ["b"]


def test_records_that_retention_took_stop_the_query_and_the_policy_lets_the_next_one_go_on(
    packed: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    packed.produce(name, "a", "b", "c", "d")
    packed.follow(name, max_records=1, offsets=None)
    packed.produce(name, "e", "f", "g")
    packed.delete_records(name, 6)
    with pytest.raises(StartRefused):
        packed.follow(name)
    policies = Policies(below_beginning="beginning")
    assert packed.follow(name, policies=policies) == ["g"]


@pytest.mark.usefixtures("briefly_doubted")
def test_a_recreated_topic_stops_the_query_and_a_new_checkpoint_goes_on(packed: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    packed.produce(name, "a", "b")
    packed.follow(name)
    packed.recreate(name)
    packed.produce(name, "c")
    with pytest.raises(StartRefused):
        packed.follow(name)
    policies = Policies(recreated="beginning")
    with pytest.raises(CheckpointMismatch, match=r"is at 2, the ledger is at 0: a hole.*\n.*new checkpoint"):
        packed.follow(name, policies=policies)
    with pytest.raises(OffsetkeeperError, match="delete the checkpoint"):
        packed.follow(name, policies=policies, on_mismatch=OnMismatch(hole="follow"))
    packed.delete_checkpoint()
    assert packed.follow(name, policies=policies) == ["c"]
