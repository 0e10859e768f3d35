"""The moment between a query's look at its checkpoint and its taking of the group: another run may work there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from offsetkeeper import Batch, OffsetRange, Policies, TopicPartition
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.errors import CheckpointMismatch
from offsetkeeper.stores.sqlite import SQLiteStore
from structured.lab import StructuredLab, fail

NewTopic = Callable[..., str]


def distinct(records: DataFrame) -> DataFrame:
    """Keep the first of several records with one value, as a query with state does."""
    return records.dropDuplicates(["value"])


class Interrupted(SQLiteStore):
    """Lets somebody else work right before this run's first acquire.

    Attributes:
        meanwhile: what the other does; once.
    """

    meanwhile: Callable[[], object] | None = None

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            assert change.entry.event == "acquire"
            meanwhile()
        super().apply(change)


class Overtaken(SQLiteStore):
    """Lets somebody else work right after this run's first look at the ledger.

    Attributes:
        meanwhile: what the other does; once.
    """

    meanwhile: Callable[[], object] | None = None

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        found, meanwhile, self.meanwhile = super().load(group), self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


def interrupted(lab: StructuredLab, meanwhile: Callable[[], object]) -> Interrupted:
    """Return the lab's store, interrupted."""
    store = Interrupted(lab.store)
    store.meanwhile = meanwhile
    return store


def test_a_batch_that_another_run_begins_from_the_same_checkpoint_meanwhile_keeps_its_identity(
    packed: StructuredLab, topic: NewTopic
) -> None:
    """The other one has written it, and dies: under another id its rows would be there twice."""
    lab, name = packed, topic()
    lab.produce(name, "a", "b")

    def keep_and_fail(frame: DataFrame, batch: Batch) -> None:
        lab.keep(frame, batch)
        if batch.ranges:
            raise RuntimeError("dead before the commit")

    def other() -> None:
        with pytest.raises(RuntimeError, match="dead"):
            lab.follow(name, keep_and_fail, query=distinct, attempts=1)

    lab.follow(name, query=distinct, store=interrupted(lab, other))
    ranges = {batch.id: batch.ranges for batch in lab.batches if batch.ranges}
    assert list(ranges.values()) == [(OffsetRange(name, 0, 0, 2),)]
    assert lab.values == ["a", "b", "a", "b"], "at least once, under one id"
    assert "abandon" not in lab.events()


def test_a_first_position_that_another_run_has_stored_meanwhile_is_gone_on_from(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """The plan says that this start would begin at the end, after the checkpoint of the other one."""
    name, store = topic(), Overtaken(lab.store)
    lab.produce(name, "before the group began")

    def other() -> None:
        lab.follow(name, start="latest")
        lab.produce(name, "a")

    store.meanwhile = other
    assert lab.follow(name, start="latest", store=store) == ["a"]


def test_a_query_does_not_go_on_with_empty_state_where_another_has_read_meanwhile(
    packed: StructuredLab, topic: NewTopic
) -> None:
    lab, name = packed, topic()
    lab.produce(name, "a")

    def other() -> None:
        lab.follow(name, query=distinct, checkpoint=f"{lab.checkpoint}-other")

    with pytest.raises(CheckpointMismatch, match="would start with empty state"):
        lab.follow(name, query=distinct, store=interrupted(lab, other))
    assert lab.values == ["a"]
    assert lab.snapshot().owner is None


def test_a_pending_batch_of_a_query_with_state_is_left_to_its_own_checkpoint(
    packed: StructuredLab, topic: NewTopic
) -> None:
    """A direct run, a query without state, and one with another checkpoint are refused, and change nothing."""
    lab, name = packed, topic()
    lab.produce(name, "a")
    lab.follow(name, query=distinct)
    lab.produce(name, "b", "c")
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, fail, query=distinct, attempts=1)
    pending = lab.snapshot().pending
    assert pending is not None
    before = lab.snapshot()
    starts: list[Callable[[], object]] = [
        lambda: lab.read(name),
        lambda: lab.follow(name, checkpoint=f"{lab.checkpoint}-plain"),
        lambda: lab.follow(name, query=distinct, checkpoint=f"{lab.checkpoint}-other"),
    ]
    for start in starts:
        with pytest.raises(CheckpointMismatch, match=rf"batch {pending.id} is pending. Only batch \d of query"):
            start()
    assert (lab.snapshot(), lab.values) == (before, ["a"])
    assert sorted(lab.follow(name, query=distinct)) == ["b", "c"]
    assert lab.batches[-1].id == pending.id


def test_a_pending_batch_of_a_run_without_state_stops_a_query_with_state_unless_it_is_dropped(
    packed: StructuredLab, topic: NewTopic
) -> None:
    lab, name = packed, topic()
    lab.produce(name, "a")
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.pipeline(name, attempts=1).run(lab.spark, fail, until="caught_up")
    with pytest.raises(CheckpointMismatch, match="a run without state, which began it"):
        lab.follow(name, query=distinct, offsets={TopicPartition(name, 0): 0})
    how: dict[str, Any] = {"offsets": {TopicPartition(name, 0): 0}, "policies": Policies(pending="drop")}
    assert lab.follow(name, query=distinct, **how) == ["a"]
    assert [entry.reason for entry in lab.history() if entry.event == "abandon"] == [
        "by policy pending='drop'; no output is marked to have it, one that was being written may have it too"
    ]


def test_an_older_copy_of_the_checkpoint_does_not_run_the_pending_batch(packed: StructuredLab, topic: NewTopic) -> None:
    """It would plan the same batch number anew, with other ranges."""
    lab, name = packed, topic()
    lab.produce(name, "a")
    lab.follow(name, query=distinct)
    copy = lab.copy_checkpoint("older")
    lab.produce(name, "b")
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, fail, query=distinct, attempts=1)
    newest = lab.copy_checkpoint("newest")
    lab.produce(name, "c")
    lab.restore_checkpoint(copy)
    before = lab.snapshot()
    with pytest.raises(CheckpointMismatch, match="does not run it again: the checkpoint is an older or a newer copy"):
        lab.follow(name, query=distinct)
    assert lab.snapshot() == before
    lab.restore_checkpoint(newest)
    assert sorted(lab.follow(name, query=distinct)) == ["b", "c"]


def test_a_position_in_the_pending_batch_of_a_query_cannot_be_given_by_hand(
    packed: StructuredLab, topic: NewTopic
) -> None:
    lab, name = packed, topic()
    lab.produce(name, "a")
    lab.follow(name, query=distinct)
    lab.produce(name, "b")
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, fail, query=distinct, attempts=1)
    with pytest.raises(CheckpointMismatch, match="which is in the pending batch"):
        lab.follow(name, query=distinct, offsets={TopicPartition(name, 0): 0})
    assert lab.offsets()[0] == 1
