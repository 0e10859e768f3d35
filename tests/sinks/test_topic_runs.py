"""Runs from Kafka to Kafka, with the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from engines.lab import LIMIT_S, Lab
from engines.lost_shuffle import lose_shuffled
from engines.marked import Died
from offsetkeeper import Progress, TopicPartition
from offsetkeeper.core import environment
from offsetkeeper.errors import ComputedAgain, GuaranteeRefused, MarkBehind, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.adopt import apply_adoption, plan_adoption
from offsetkeeper.operate.reset import apply_reset, plan_reset
from offsetkeeper.sinks import Topic
from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import lander, values

NewTopic = Callable[..., str]
GROUP = "offsetkeeper.group/"


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Lab:
    """A lab with its store in a SQLite file."""
    return Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db")


def copy(frame: DataFrame, _: Any) -> DataFrame:
    """Return what goes out."""
    return frame.selectExpr("key", "value")


def fail(frame: DataFrame, _: Any) -> DataFrame:
    """Return rows that fail when they are made, by when the batch was begun."""
    return frame.selectExpr("cast(raise_error('no such order') as string) as value")


def run(lab: Lab, source: str, target: str, process: Any = copy, **settings: Any) -> None:
    """Run until all is done, exactly once."""
    sink = Topic(lab.kafka.bootstrap, target)
    lab.pipeline(source, **settings).run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")


def forget(lab: Lab) -> None:
    """Do what the broker does a week after the last batch."""
    admin = lab.kafka.admin()  # kept until it has answered
    admin.delete_consumer_groups([GROUP])[GROUP].result(LIMIT_S)


def remake(lab: Lab, name: str, partitions: int = 1) -> None:
    """Delete a topic and make it again."""
    admin = lab.kafka.admin()
    admin.delete_topics([name])[name].result(LIMIT_S)
    lab.kafka.create_topic(name, partitions)


def test_a_mark_that_expired_while_nothing_was_pending_is_written_anew(lab: Lab, topic: NewTopic) -> None:
    source, target = topic(2), topic()
    lab.produce(source, "a", "b")
    run(lab, source, target, max_records=1)
    forget(lab)
    run(lab, source, target)
    lab.produce(source, "c")
    run(lab, source, target)
    assert values(lab.kafka.bootstrap, target) == ["a", "b", "c"]
    assert lab.kafka.group_offsets(GROUP, [(target, 0)]) == {(target, 0): 3}


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_target_that_was_made_again_is_refused_though_its_mark_outlives_it(
    lab: Lab, topic: NewTopic, partitions: int
) -> None:
    """Else its rows are missing, and nobody is told."""
    source, target = topic(2), topic()
    lab.produce(source, "a", "b")
    run(lab, source, target, max_records=1)
    remake(lab, target, partitions)
    lab.produce(source, "c")
    with pytest.raises(MarkBehind, match=f"topic {target} was deleted and created again"):
        run(lab, source, target)
    assert values(lab.kafka.bootstrap, target) == []


def test_a_target_that_is_made_again_in_the_middle_of_a_run_gets_no_further_batch(lab: Lab, topic: NewTopic) -> None:
    source, target = topic(), topic()
    lab.produce(source, "a", "b", "c")

    def after(progress: Progress) -> None:
        if progress.batch.sequence == 2:
            remake(lab, target)

    sink = Topic(lab.kafka.bootstrap, target)
    pipeline = lab.pipeline(source, max_records=1)
    with pytest.raises(MarkBehind, match=f"topic {target} was deleted and created again"):
        pipeline.run(lab.spark, copy, sink=sink, guarantee="exactly_once", until="caught_up", on_batch=after)
    assert values(lab.kafka.bootstrap, target) == []


def test_a_mark_that_expired_with_a_batch_pending_is_refused(lab: Lab, topic: NewTopic) -> None:
    """Nobody knows then whether the batch is there."""
    source, target = topic(), topic()
    lab.produce(source, "a")
    run(lab, source, target)
    lab.produce(source, "b")
    with pytest.raises(Exception, match="no such order"):
        run(lab, source, target, fail, attempts=1)
    forget(lab)
    with pytest.raises(MarkBehind, match="its mark was deleted"):
        run(lab, source, target)
    assert values(lab.kafka.bootstrap, target) == ["a"]


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, *, lands: bool) -> Iterator[None]:
    """In the block a run dies when its batch has landed, or right before."""

    def dies(sink: Topic, *given: Any) -> None:
        if lands:
            landed(sink, *given)
        raise Died

    landed = Topic._land
    with monkeypatch.context() as patched:
        patched.setattr(Topic, "_land", dies)
        yield


@pytest.mark.parametrize("is_there", [True, False])
def test_a_first_batch_whose_mark_expired_is_refused_until_an_operator_says_whether_it_is_there(
    lab: Lab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """By the way that the error names. A start soon after finishes the batch: then nothing has expired."""
    source, target = topic(), topic()
    lab.produce(source, "a")

    with dying(monkeypatch, lands=True), pytest.raises(Died):
        run(lab, source, target)
    forget(lab)
    now_ms = environment.now_ms
    monkeypatch.setattr(environment, "now_ms", lambda: now_ms() + 8 * 86_400_000)
    with pytest.raises(MarkBehind, match="the batch was begun 8 d ago, and the output keeps a mark for 7 d") as told:
        run(lab, source, target)
    assert f"--from-file FILE, with the lines {source},0,1" in str(told.value)
    assert values(lab.kafka.bootstrap, target) == ["a"]
    with lab.ledger() as ledger:
        if is_there:
            with KafkaCluster(lab.kafka.bootstrap) as cluster:
                behind = {TopicPartition(source, 0): 1}
                apply_reset(ledger, cluster, plan_reset(ledger.snapshot, ledger.store.address, cluster, behind), "")
        apply_adoption(ledger, plan_adoption(ledger.snapshot, "", 0), "")
    lab.produce(source, "b")
    run(lab, source, target)
    assert values(lab.kafka.bootstrap, target) == ["a", "b"] if is_there else ["a", "a", "b"]


@pytest.mark.parametrize("lands", [True, False])
def test_a_first_batch_is_not_finished_where_its_mark_would_not_be(
    lab: Lab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, *, lands: bool
) -> None:
    """With another prefix nothing shows whether it has landed; with the one of then it is there once."""
    source, target = topic(), topic()
    lab.produce(source, "a")

    with dying(monkeypatch, lands=lands), pytest.raises(Died):
        run(lab, source, target)
    moved = Topic(lab.kafka.bootstrap, target, prefix="team")
    words: dict[str, Any] = {"guarantee": "exactly_once", "until": "caught_up"}
    with pytest.raises(MarkBehind, match=r"begun with other settings of the output .*start with those"):
        lab.pipeline(source).run(lab.spark, copy, sink=moved, **words)
    assert values(lab.kafka.bootstrap, target) == ["a"] * lands
    run(lab, source, target)
    assert values(lab.kafka.bootstrap, target) == ["a"]
    lab.produce(source, "b")
    lab.pipeline(source).run(lab.spark, copy, sink=moved, **words)
    assert values(lab.kafka.bootstrap, target) == ["a", "b"]


def test_a_batch_that_failed_while_it_landed_lands_with_the_next_run(lab: Lab, topic: NewTopic) -> None:
    source, target = topic(), topic()
    lab.produce(source, "a")
    with pytest.raises(Exception, match="no such order"):
        run(lab, source, target, fail, attempts=1)
    run(lab, source, target)
    assert values(lab.kafka.bootstrap, target) == ["a"]


def test_what_spark_computes_again_while_a_topic_is_written_is_told_and_stays(
    lab: Lab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """The task that writes the rows ends the transaction too, so that is known too late."""
    target, frame = topic(), lab.spark.createDataFrame([("tea",), ("milk",)], "value string")
    checks: list[Callable[[], None]] = [again, lambda: None]

    def check() -> None:
        checks.pop()()

    Once(lander(Topic(lab.kafka.bootstrap, target)), "").write(frame, batch_of(1), check=check)
    assert values(lab.kafka.bootstrap, target) == ["milk", "tea"]
    [told] = caplog.messages
    assert "stage 2 has attempt 1. If the function gives other rows for the same records" in told
    assert told.endswith("frame.localCheckpoint()")


def again() -> None:
    """Say that Spark has computed a stage again."""
    raise ComputedAgain("stage 2 has attempt 1")


def test_what_spark_computes_again_for_the_function_is_noticed_before_a_topic_is_written(
    lab: Lab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as for a frame that the function keeps by `localCheckpoint`."""
    source, target = topic(2), topic()
    lab.produce(source, "a", "b")
    retries: list[bool] = []

    def kept(frame: DataFrame, batch: Any) -> DataFrame:
        rows = frame.select("value").repartition(2, "value")
        if not retries:
            lose_shuffled(rows)
        retries.append(batch.retry)
        return rows.localCheckpoint()

    run(lab, source, target, kept, attempts=1)
    assert retries == [False, True]
    assert values(lab.kafka.bootstrap, target) == ["a", "b"]
    assert [text for text in caplog.messages if "is staged anew (1 of 10)" in text]


def test_exactly_once_into_a_topic_with_unclean_elections_is_refused_unless_it_is_meant(
    lab: Lab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that such an election takes are noticed by nobody."""
    source, target = topic(), topic(1, {"unclean.leader.election.enable": "true"})
    lab.produce(source, "a")
    with pytest.raises(GuaranteeRefused, match=rf"topic {target} has unclean\.leader\.election\.enable=true"):
        run(lab, source, target)
    assert (values(lab.kafka.bootstrap, target), lab.events()) == ([], [])
    meant = Topic(lab.kafka.bootstrap, target, unclean_elections=True)
    for sink, guarantee in ((meant, "exactly_once"), (Topic(lab.kafka.bootstrap, target), "at_least_once")):
        caplog.clear()
        lab.pipeline(source).run(lab.spark, copy, sink=sink, guarantee=guarantee, until="caught_up")
        assert "no mark shows it: set it to false" in caplog.text
    assert values(lab.kafka.bootstrap, target) == ["a"]
    with pytest.raises(SettingsError, match="unclean_elections=1: use True or False"):
        Topic(lab.kafka.bootstrap, target, unclean_elections=1)  # type: ignore[arg-type]  # on purpose
