"""An election makes a replica the leader that lacks records which were read: other records get their offsets."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engines.elections import SETTINGS, elect_follower, lose_follower, make_topics
from engines.lab import LIMIT_S, QUICK, Lab
from offsetkeeper import Batch, Policies, TopicPartition
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.errors import RangeGone, Refused, StartRefused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.audit import Kind, audit
from offsetkeeper.operate.doctor.collect import examine
from offsetkeeper.operate.doctor.rules import diagnose
from offsetkeeper.operate.lag import group_lag
from offsetkeeper.operate.replay import plan_replay, plan_replay_of
from offsetkeeper.operate.replay_records import replay_records
from offsetkeeper.operate.reset import Shift, known_history, plan_reset
from offsetkeeper.sinks import Idempotent
from offsetkeeper.stores import open_store
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.server import wait_until

TOPICS = ("run", "begun", "query")
OLD, LOST, NEW = ([f"{word}{n}" for n in range(count)] for word, count in (("old", 5), ("lost", 4), ("new", 7)))


class Killed(BaseException):
    """Ends a run as a crash does."""


@dataclass
class Cut:
    """What has read all records of a log, and then the log was cut after the old ones.

    Attributes:
        run: a group that committed them.
        begun: a group that began a batch of the lost ones.
        query, rows: a query that goes on, and the rows that it has written.
        lags: remarks on the partition of the first group after the election, before its next run.
        findings: what the doctor finds wrong with the topic of that group then.
        path: of the stores, and of the query's checkpoint.
    """

    run: Lab
    begun: Lab
    query: Any
    rows: list[str]
    lags: list[str]
    findings: list[str]
    path: Path


@pytest.fixture(scope="module")
def servers() -> Iterator[KafkaServers]:
    """Three brokers, of which two have the topics."""
    with KafkaServers(settings=SETTINGS) as servers:
        yield servers


@pytest.fixture(scope="module")
def cut(servers: KafkaServers, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    """Read old records and lost ones; then elect the replica that lacks the lost ones, and produce new ones."""
    path = tmp_path_factory.mktemp("cut")
    run, begun, query = (lab(spark, servers, path, name) for name in TOPICS)
    make_topics(servers, TOPICS)
    for topic in TOPICS:
        run.produce(topic, *OLD)
    assert run.read("run") == OLD
    run_once(begun, begun.keep)
    rows: list[str] = []
    elected = threading.Event()
    with query.pipeline("query").start(spark, kept(rows, elected), checkpoint=f"{path}/checkpoint") as started:
        wait_until(lambda: len(rows) == len(OLD), "the query has read", LIMIT_S)
        lose_follower(servers, TOPICS)
        for topic in TOPICS:
            run.produce(topic, *LOST)
        assert run.read("run") == LOST
        with pytest.raises(Killed):
            run_once(begun, killed)
        wait_until(lambda: len(rows) == len(OLD + LOST), "the query has read", LIMIT_S)
        elect_follower(servers, TOPICS)
        for topic in TOPICS:
            run.produce(topic, *NEW)
        elected.set()
        with closing(KafkaCluster(servers.bootstrap)) as cluster:
            lags = [each.remark for each in group_lag(run.snapshot(), cluster)]
            findings = found_wrong(run, cluster)
        yield Cut(run, begun, started, rows, lags, findings, path)


def found_wrong(lab: Lab, cluster: KafkaCluster) -> list[str]:
    """Return what the doctor says about the topics that keeps runs from reading."""
    with closing(open_store(lab.store)) as store:
        facts = examine(Ledger(store, QUICK["group"]), cluster)
    return [f"{each.where}: {each.what}" for each in diagnose(facts) if each.rule.startswith("topic-")]


def lab(spark: SparkSession, servers: Any, path: Path, name: str) -> Lab:
    """Return a lab on the brokers, with a store of its own."""
    return Lab(spark, servers, f"sqlite:///{path}/{name}.db")


def run_once(lab: Lab, write: Callable[..., None], **settings: Any) -> None:
    """Read exactly once into an output that may be written again."""
    pipeline = lab.pipeline("begun", **settings)
    pipeline.run(lab.spark, sink=Idempotent(write), guarantee="exactly_once", until="caught_up")


def killed(*_: Any) -> None:
    """Die after the batch has begun."""
    raise Killed


def kept(rows: list[str], elected: threading.Event) -> Callable[[Any, Batch], None]:
    """Return a function that keeps values; the batch with the lost ones lasts until the election is over."""

    def keep(frame: Any, _: Batch) -> None:
        rows.extend(sorted(row.value for row in frame.selectExpr("cast(value as string) as value").collect()))
        if LOST[0] in rows:
            assert elected.wait(LIMIT_S)

    return keep


def replayed(cut: Cut) -> dict[str, tuple[list[str], int]]:
    """Return what replays read of the first group, and how much they say is cut: of all, and of its two batches."""
    old, lost = [entry.version for entry in cut.run.history() if entry.event == "commit"][:2]
    with cut.run.ledger() as ledger, closing(KafkaCluster(cut.run.kafka.bootstrap)) as cluster:
        made = {
            "all": plan_replay(ledger, cluster),
            "old": plan_replay_of(ledger, cluster, old),
            "lost": plan_replay_of(ledger, cluster, lost),
        }
        return {
            name: ([row["value"].decode() for row in replay_records(each, cluster)], each.cut)
            for name, each in made.items()
        }


def reset(cut: Cut, to: Any, *, clip: bool = False) -> tuple[int, int, int, int | None]:
    """Return what the preview of a reset of the first group says: where to, read again, skipped, and the cut."""
    with cut.run.ledger() as ledger, closing(KafkaCluster(cut.run.kafka.bootstrap)) as cluster:
        found = ledger.load()
        plan = plan_reset(found, cut.run.store, cluster, to, clip=clip, history=known_history(ledger))
    [step] = plan.steps
    return step.new.offset, step.replayed, step.skipped, step.cut


def test_a_run_stops_before_it_reads_and_goes_on_where_the_logs_part(cut: Cut) -> None:
    """It went on at offset 9, and never read four of the seven new records."""
    found = r"run 0: cut, stored 9, Kafka holds 0\.\.12 and was cut at offset 5 by the election"
    with pytest.raises(StartRefused, match=found):
        cut.run.read("run")
    assert cut.lags == ["leader changed, not checked"]
    [told] = cut.findings
    assert told.startswith("topic run: the log of 1 partitions was cut before the position")
    assert cut.run.values == OLD + LOST
    assert replayed(cut) == {"all": (OLD, 4), "old": (OLD, 0), "lost": ([], 4)}
    assert reset(cut, "latest") == (12, 0, 7, 5)  # it said 3
    assert reset(cut, {TopicPartition("run", 0): 2}) == (2, 3, 0, 5)  # it said 7
    with pytest.raises(Refused, match="offset 8 means another record now: its log was cut at offset 5"):
        reset(cut, Shift(-1))
    assert reset(cut, Shift(-1), clip=True) == (5, 0, 0, 5)
    plan = cut.run.pipeline("run", policies=Policies(cut="beginning")).plan()
    assert (plan.counts()["cut"], plan.counts()["replayed"]) == (1, 5)
    assert cut.run.read("run", policies=Policies(cut="common")) == NEW
    assert cut.run.read("run") == []
    assert replayed(cut) == {"all": (OLD + NEW, 0), "old": (OLD, 0), "lost": ([], 4)}
    findings = audit(cut.run.history(), cut.run.snapshot())
    assert [(each.kind, each.start, each.end) for each in findings] == [(Kind.CUT, 5, 9)]


def test_a_batch_that_was_begun_is_not_finished_with_other_records(cut: Cut) -> None:
    """Its ranges are there, with records that were never in the batch."""
    with pytest.raises(StartRefused, match=re.escape("'begun 0 5 9' cannot be read: its log was cut at offset 5")):
        run_once(cut.begun, cut.begun.keep)
    assert cut.begun.values == OLD
    run_once(cut.begun, cut.begun.keep, policies=Policies(pending="drop", cut="common"))
    assert cut.begun.values == OLD + NEW


def test_a_query_that_runs_ends_before_it_writes_and_its_next_start_goes_on_where_the_logs_part(cut: Cut) -> None:
    """It went on at offset 9, and never wrote four of the seven new records."""
    with pytest.raises(RangeGone, match="its log was cut at offset 5 by the election"):
        cut.query.awaitTermination(LIMIT_S)
    assert sorted(cut.rows) == sorted(OLD + LOST)
    again = lab(cut.run.spark, cut.run.kafka, cut.path, "query").pipeline("query", policies=Policies(cut="common"))
    elected = threading.Event()
    elected.set()
    with again.start(cut.run.spark, kept(cut.rows, elected), checkpoint=f"{cut.path}/checkpoint") as started:
        started.processAllAvailable()
    assert sorted(cut.rows) == sorted(OLD + LOST + NEW)
