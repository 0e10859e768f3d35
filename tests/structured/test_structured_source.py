"""The packed source for `readStream`: which offsets it gives to a batch, and where it can run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.test_engine_processes import bare_python
from offsetkeeper import Position, TopicPartition
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import CheckpointMismatch, RangeGone, UnknownTopic
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import Source, StreamStart
from offsetkeeper.readers.check import check_ranges
from offsetkeeper.readers.consume import read_task
from offsetkeeper.readers.limits import Limits
from offsetkeeper.readers.streaming import StreamPlanner, StreamSource, source_class
from offsetkeeper.testing.clock import no_waiting
from structured.lab import StructuredLab

NewTopic = Callable[..., str]
__all__ = ["bare_python"]
CHILD = """
import importlib.util, json, pickle, sys
assert importlib.util.find_spec("offsetkeeper") is None
source = pickle.load(open(sys.argv[1], "rb"))({})
reader = source.streamReader(None)
start = reader.initialOffset()
reader.prepareForTriggerAvailableNow()
assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
end = reader.latestOffset(start, reader.getDefaultReadLimit())
[partition] = reader.partitions(start, end)
print(json.dumps([start, end, partition.value]))
"""


def stream(lab: StructuredLab, name: str, positions: Mapping[int, int], **how: Any) -> StreamSource:
    """Return a stream of a topic that begins at these offsets."""
    begin = {TopicPartition(name, number): Position(offset) for number, offset in positions.items()}
    source = Source(lab.kafka.bootstrap, {}, "test", "read_committed")
    return StreamSource(source, StreamStart(Topics.of([name]), begin, **how), tasks=1)


def planner(lab: StructuredLab, name: str, positions: Mapping[int, int], **how: Any) -> StreamPlanner:
    """Return a planner whose query goes on from a checkpoint: nobody asks it where to begin."""
    return StreamPlanner(stream(lab, name, positions, **how))


def test_a_limit_is_shared_and_every_partition_has_its_turn(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic(3)
    lab.produce_all(name, [(p, "x") for p in range(3) for _ in range(4)])
    plan, at, sizes = (
        planner(lab, name, dict.fromkeys(range(3), 0), limits=Limits(2)),
        {name: {"0": 0, "1": 0, "2": 0}},
        [],
    )
    while (end := plan.latest(at, 2)) != at:
        sizes.append(sum(end[name].values()) - sum(at[name].values()))
        at = end
        assert max(at[name].values()) - min(at[name].values()) <= 2
    assert sizes == [2] * 6
    assert list(at[name]) == ["0", "1", "2"]


def test_a_query_that_ends_reads_what_one_answer_leaves_out(lab: StructuredLab, topic: NewTopic) -> None:
    """And does not end as if it had read it where it stays away."""
    name = topic(2)
    lab.produce_all(name, [(0, "a"), (1, "b")])
    plan, start = planner(lab, name, {0: 0, 1: 0}), {name: {"0": 0, "1": 0}}
    find, left_out = plan._cluster.find, [True, True]
    plan._cluster.find = lambda *asked: {} if left_out and left_out.pop() else find(*asked)  # type: ignore[method-assign]
    with no_waiting() as clock:
        plan.freeze()
        assert plan.latest(start, None) == {name: {"0": 1, "1": 1}}
        plan._cluster.find = lambda *_: {}  # type: ignore[method-assign]
        with pytest.raises(UnknownTopic, match=f"{name} 0, {name} 1 any more"):
            plan.freeze()
    assert 5 <= clock.seconds < 10


@pytest.mark.parametrize("kind", ["planner", "ranges"])
def test_another_id_of_a_topic_is_believed_when_it_stays(
    lab: StructuredLab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A broker that lags behind has the id of before for a moment: one answer stopped the query."""
    name = topic()
    lab.produce(name, "a")
    with KafkaCluster(lab.kafka.bootstrap) as cluster:
        [known] = cluster.describe([name]).values()
        late, asked = replace(known, topic_id="AAAAAAAAQACAAAAAAAAAAA"), list[object]()
        plan, start = planner(lab, name, {0: 0}), {name: {"0": 0}}
        plan.ids |= {name: str(known.topic_id)}
        plan.cluster_id = known.cluster_id

        def answer(*words: object) -> dict[str, TopicDescription]:
            asked.append(words)
            return {name: answers.pop(0) if len(answers) > 1 else answers[0]}

        monkeypatch.setattr(plan._cluster, "find", answer)
        monkeypatch.setattr(cluster, "describe", answer)

        def act() -> None:
            if kind == "planner":
                assert plan.latest(start, None) == {name: {"0": 1}}
            else:
                check_ranges(cluster, [OffsetRange(name, 0, 0, 1)], {name: str(known.topic_id)}, known.cluster_id)

        answers = [late, late, known]
        with no_waiting():
            act()
        assert len(asked) == 3
        answers = [late]
        with no_waiting() as clock, pytest.raises(RangeGone, match=f"topic {name} was deleted and created again"):
            act()
        assert 5 <= clock.seconds < 10
        answers = [replace(late, cluster_id="elsewhere")]  # no other answer is waited for
        with no_waiting() as clock, pytest.raises(RangeGone, match="the Kafka cluster elsewhere"):
            act()
        assert clock.seconds == 0


def test_a_new_partition_is_written_down_before_it_is_read(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic(2)
    lab.produce_all(name, [(0, "a"), (1, "b"), (1, "c")])
    lab.delete_records(name, 1, partition=1)
    plan, start = planner(lab, name, {0: 0}), {name: {"0": 0}}
    found = plan.latest(start, None)
    assert found == {name: {"0": 1, "1": 1}}
    assert plan.tasks(start, found) == [[(name, 0, 0, 1)]]
    end = plan.latest(found, None)
    assert end == {name: {"0": 1, "1": 2}}
    assert plan.tasks(found, end) == [[(name, 1, 1, 2)]]


def test_what_comes_after_the_target_of_available_now_is_left(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    plan = planner(lab, name, {0: 0})
    plan.freeze()
    lab.produce(name, "b")
    lab.grow(name, 2)
    at = {name: {"0": 0}}
    for _ in range(3):
        at = plan.latest(at, None)
    assert at == {name: {"0": 1}}


def test_a_first_batch_is_empty_and_one_that_is_run_again_does_not_cost_another(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a")
    fresh, again = planner(lab, name, {0: 0}), planner(lab, name, {0: 0})
    start = fresh.initial()
    assert fresh.latest(start, None) == start
    assert fresh.initial() == start  # Spark asks twice
    assert fresh.latest(start, None) != start
    assert again.tasks(again.initial(), start) == []
    assert again.latest(start, None) != start


def test_what_the_group_has_done_is_not_read_again_unless_state_needs_it(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c", "d")
    start, end = {name: {"0": 0}}, {name: {"0": 4}}
    assert planner(lab, name, {0: 3}).tasks(start, end) == [[(name, 0, 3, 4)]]
    assert planner(lab, name, {0: 3}, whole=True).tasks(start, end) == [[(name, 0, 0, 4)]]


def test_offsets_that_are_gone_past_the_end_or_of_another_topic_are_refused(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")
    lab.delete_records(name, 2)
    with pytest.raises(RangeGone, match="offsets 1 up to 3"):
        planner(lab, name, {0: 1}).latest({name: {"0": 1}}, None)
    past = r"stands at 9, but the partition ends at 3.*made again, or its log was cut.*of another one"
    with pytest.raises(CheckpointMismatch, match=f"{past}: delete the checkpoint"):
        planner(lab, name, {0: 2}).latest({name: {"0": 9}}, None)
    with pytest.raises(CheckpointMismatch, match=f"{past}: start again, and the plan decides"):  # its state is there
        planner(lab, name, {0: 2}, whole=True).latest({name: {"0": 9}}, None)
    for other in ({"other": {"0": 1}}, {"offset": 5}, {}):
        with pytest.raises(CheckpointMismatch, match="of another query"):
            planner(lab, name, {0: 2}).latest(other, None)  # type: ignore[arg-type]  # what Spark hands over


def test_a_topic_made_again_while_the_query_runs_stops_it(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    plan = planner(lab, name, {0: 0})
    plan.latest({name: {"0": 0}}, None)
    lab.recreate(name)
    lab.produce(name, "b", "c")
    with pytest.raises(RangeGone, match="deleted and created again"):
        plan.latest({name: {"0": 1}}, None)


def test_a_task_gives_no_record_of_a_topic_made_again_since_the_plan(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    source, start = stream(lab, name, {0: 0}), {name: {"0": 0}}
    plan = planner(lab, name, {0: 0})
    [task] = plan.tasks(start, plan.latest(start, None))
    assert [batch.num_rows for batch in read_task(source.source, (task, *plan.wanted))] == [2]
    lab.recreate(name)
    lab.produce(name, "c", "d")
    with pytest.raises(RangeGone, match=f"topic {name} was deleted and created again"):
        list(read_task(source.source, (task, *plan.wanted)))


def test_it_runs_where_offsetkeeper_is_not_installed(
    lab: StructuredLab, topic: NewTopic, bare_python: Path, tmp_path: Path
) -> None:
    from pyspark import cloudpickle  # noqa: PLC0415 - as Spark pickles it

    name = topic()
    lab.produce(name, "a", "b")
    path = tmp_path / "source"
    path.write_bytes(cloudpickle.dumps(source_class("test", stream(lab, name, {0: 0}))))  # type: ignore[no-untyped-call]
    command = [str(bare_python), "-c", CHILD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    with KafkaCluster(lab.kafka.bootstrap) as cluster:
        about = cluster.describe([name])[name]
    task = [[[name, 0, 0, 2]], {name: about.topic_id}, about.cluster_id]
    assert json.loads(done.stdout) == [{name: {"0": 0}}, {name: {"0": 2}}, task]
