"""Topics by a pattern and by chosen partitions: what is found while a run goes on, and where it begins."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from engines.lab import Lab, Running
from offsetkeeper import Policies, TopicPartition
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import SettingsError, StartRefused, UnknownTopic
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.forget import apply_forgetting, plan_forgetting
from offsetkeeper.operate.lag import FirstUnread, aged, group_lag, lag_within
from offsetkeeper.operate.reset import apply_reset, plan_reset
from offsetkeeper.operate.scope import Scope

NewTopic = Callable[..., str]


def matching(base: str, **settings: Any) -> dict[str, Any]:
    """Return settings of a pipeline that reads this topic and those whose names go on from it."""
    return {"topics": re.compile(re.escape(base) + "(-.*)?"), **settings}


def test_topics_that_appear_while_a_run_goes_on_are_read_from_their_beginning(lab: Lab, topic: NewTopic) -> None:
    """Though the group begins at the latest: what was written before the pattern found them would be missed."""
    base = topic()
    lab.produce(base, "before the group began")
    pipeline = lab.pipeline(**matching(base, start="latest", exclude=[f"{base}-test"]))
    with Running(pipeline, lab.spark, lab.keep) as run:
        while (base, 0) not in lab.snapshot().positions:
            pipeline._stop.wait(0.05)
        lab.produce(base, "a")
        run.next_batch()
        for name in ("de", "fr", "test"):
            lab.kafka.create_topic(f"{base}-{name}", 2)
            lab.produce_all(f"{base}-{name}", [(0, f"{name} 0"), (1, f"{name} 1")])
        while len(lab.values) < 5:
            run.next_batch()
    assert sorted(lab.values) == ["a", "de 0", "de 1", "fr 0", "fr 1"]


def test_topics_that_appeared_between_two_runs_are_read_from_their_beginning(lab: Lab, topic: NewTopic) -> None:
    base = topic()
    lab.produce(base, "a")
    assert lab.read(**matching(base)) == ["a"]
    lab.kafka.create_topic(f"{base}-new")
    lab.produce(f"{base}-new", "b")
    latest = lab.pipeline(**matching(base, start="latest"))
    row = latest.plan().rows[1]
    assert (str(row.verdict), row.start) == ("new topic", 0)
    assert lab.read(**matching(base, start="latest")) == ["b"]
    for forgotten, starts in (
        (f"{base}-new", [1, 0]),
        (base, [1, 1]),
    ):  # with no topic of the pattern left it is begun anew
        with lab.ledger() as ledger:
            forgetting = plan_forgetting(ledger.snapshot, Scope(topics=[forgotten]))
            assert any("if the group keeps a position of another topic that it finds" in n for n in forgetting.notes)
            apply_forgetting(ledger, forgetting, "begin anew")
        assert [row.start for row in latest.plan().rows] == starts


def test_new_topics_can_begin_at_their_end_or_stop_the_run(lab: Lab, topic: NewTopic) -> None:
    base = topic()
    lab.produce(base, "a")
    assert lab.read(**matching(base)) == ["a"]
    stopping = lab.pipeline(**matching(base, policies=Policies(new_topics="stop")))
    with Running(stopping, lab.spark, lab.keep) as run:
        lab.kafka.create_topic(f"{base}-new")
        lab.produce(f"{base}-new", "b")
        with pytest.raises(StartRefused, match=rf"{base}-new 0: new topic.*new_topics=stop"):
            run.end()
    assert lab.snapshot().owner is None
    assert lab.read(**matching(base, policies=Policies(new_topics="end"))) == []
    lab.produce(f"{base}-new", "c")
    assert lab.read(**matching(base)) == ["c"]


def test_a_pattern_that_finds_nothing_is_an_error_at_the_start(lab: Lab, topic: NewTopic) -> None:
    base = topic()
    for settings in ({"topics": re.compile("no-such-.*")}, matching(base, exclude=re.compile(".*"))):
        with pytest.raises(UnknownTopic, match=r"no such topic at .*: topics that match"):
            lab.pipeline(**settings).plan()
    lab.produce(base, "a")
    assert lab.read(**matching(base)) == ["a"]
    lab.kafka.delete_topic(base)  # one that is deleted later is kept in the store, as one by name is
    lab.kafka.create_topic(f"{base}-other")
    lab.produce(f"{base}-other", "b")
    assert lab.read(**matching(base)) == ["b"]
    assert lab.snapshot().positions[TopicPartition(base, 0)].offset == 1


def test_two_groups_share_a_topic_by_partitions(lab: Lab, topic: NewTopic) -> None:
    name = topic(3)
    lab.produce_all(name, [(p, f"{p}") for p in range(3)])
    assert lab.read(topics={name: [0, 2]}) == ["0", "2"]
    assert lab.read(topics={name: [1]}, group="other") == ["1"]
    assert set(lab.offsets()) == {0, 2}
    assert lab.snapshot().partly == (name,)
    lab.produce_all(name, [(p, f"{p} again") for p in range(3)])
    with KafkaCluster(lab.kafka.bootstrap) as cluster:  # what the other group reads is no lag of this one
        lags = group_lag(lab.snapshot(), cluster)
    assert [(each.topic_partition.partition, each.records) for each in lags] == [(0, 1), (2, 1)]
    assert lab.read(topics={name: [0, 1]}) == [
        "0 again",
        "1",
        "1 again",
    ]  # one that is chosen later, from its beginning
    assert lab.offsets() == {0: 2, 1: 2, 2: 1}


def test_a_partition_that_was_added_has_the_age_of_its_first_record_before_any_run_reads_it(
    lab: Lab, topic: NewTopic
) -> None:
    """Without it, an idle run was told as stalled until its next batch, and nobody what retention was to take there."""
    name = topic()
    lab.produce(name, "a")
    assert lab.read(name) == ["a"]
    with KafkaCluster(lab.kafka.bootstrap) as cluster:
        known: dict[TopicPartition, FirstUnread] = {}
        lab.grow(name, 2)
        lab.produce(name, "b", partition=1)
        bounds = cluster.bounds_of_topics({name})
        _, added = lag_within(lab.snapshot(), cluster, bounds, {name: 600_000}, known)
        [_, later] = aged([_, added], known, round(time.time() * 1000) + 300_000, {name: 600_000}) or []
    assert (added.position, added.records, added.without_commit) == (None, None, 1)
    assert added.seconds is not None
    assert added.seconds < 120
    assert later.seconds == pytest.approx(added.seconds + 300, abs=60)
    assert later.retention_used == pytest.approx((later.seconds or 0) / 600)
    with KafkaCluster(lab.kafka.bootstrap) as cluster:  # of a group of another program, which may leave it out
        foreign = Snapshot("other", positions={TopicPartition(name, 0): Position(1)})
        _, left_out = lag_within(foreign, cluster, bounds, {name: 600_000})
    assert left_out.seconds is None


def test_of_a_topic_that_the_group_knows_a_chosen_partition_is_new_though_the_known_ones_are_not_read(
    lab: Lab, topic: NewTopic
) -> None:
    """Previews of `forget` and `reset` said "from its beginning", and the records up to now were skipped."""
    name, other, fresh = topic(2), topic(2), topic()
    lab.produce_all(name, [(p, f"{p}") for p in (0, 1)])
    lab.produce(other, "not moved", partition=1)
    lab.produce(fresh, "before a first run at the latest")
    assert lab.read(name) == ["0", "1"]
    lab.produce(name, "0 again")
    with lab.ledger() as ledger, KafkaCluster(lab.kafka.bootstrap) as cluster:
        forgetting = plan_forgetting(ledger.snapshot, Scope([TopicPartition(name, 0)]))
        assert forgetting.start(TopicPartition(name, 0)) == "from its beginning"
        apply_forgetting(ledger, forgetting, "begin anew")
        skipping = plan_reset(ledger.load(), ledger.store.address, cluster, "latest", Scope([TopicPartition(other, 0)]))
        assert skipping.left == (TopicPartition(other, 1),)
        apply_reset(ledger, cluster, skipping, "from now on")
    read = lab.read(topics={name: [0], other: [1], fresh: [0]}, start="latest")
    assert sorted(read) == ["0", "0 again", "not moved"]


def test_a_chosen_partition_that_is_not_there_is_an_error(lab: Lab, topic: NewTopic) -> None:
    name = topic(2)
    with pytest.raises(UnknownTopic, match=f"no such partition at .*: {name} 5, {name} 7"):
        lab.pipeline(topics={name: [0, 5, 7]}).plan()
    with pytest.raises(SettingsError, match=f"given for {name} 1, but the pipeline does not read this partition"):
        lab.pipeline(topics={name: [0]}).plan(offsets={TopicPartition(name, 1): 0})
    assert lab.snapshot().version == 0
