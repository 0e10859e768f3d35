"""Each rule of the doctor: what it finds, and that it keeps silent where all is well or nothing is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offsetkeeper.cli.limits import Limits
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Entry, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.kafka.replication import KafkaFacts, Refusal, Severity, TopicFacts
from offsetkeeper.operate.doctor.facts import Facts, GroupStanding, Runs, ServerFacts, SparkFacts, StoreFacts
from offsetkeeper.operate.doctor.rules import diagnose, runs_of
from offsetkeeper.operate.lag import Lag, total
from offsetkeeper.operate.status import ALARMING, Status

HOUR, DAY = 3600.0, 86_400.0
NOW = 1_700_000_000_000
GOOD_TOPIC = TopicFacts(
    "orders",
    partitions=8,
    replicas=3,
    in_sync=3,
    settings={
        "retention.ms": "604800000",
        "cleanup.policy": "delete",
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
    },
)
GOOD = Facts(
    StoreFacts(
        "redis://host/0",
        settings={"appendonly": "yes", "appendfsync": "always", "maxmemory": "0", "ttl": "0"},
        ahead_s=0.0,
    ),
    Runs(gap_s=HOUR, silence_s=10.0),
    KafkaFacts(
        "host:9092",
        nodes={"host:9092": "", "host2:9092": ""},
        topics=(GOOD_TOPIC,),
        offsets_retention_s=7 * DAY,
        published=True,
    ),
    SparkFacts("4.2.0", ("4.2.0",)),
)


def store(**changes: Any) -> Facts:
    return replace(GOOD, store=replace(GOOD.store, **changes))


def server(**settings: str) -> Facts:
    return store(
        settings={**GOOD.store.settings, **{name.replace("_", "-"): value for name, value in settings.items()}}
    )


def told(**settings: str) -> Facts:
    return store(settings=settings)


def runs(**changes: Any) -> Facts:
    return replace(GOOD, runs=replace(GOOD.runs, **changes))


def kafka(**changes: Any) -> Facts:
    assert GOOD.kafka
    return replace(GOOD, kafka=replace(GOOD.kafka, **changes))


def topic(gap_s: float = HOUR, settings: dict[str, str] | None = None, **changes: Any) -> Facts:
    about = replace(GOOD_TOPIC, settings={**GOOD_TOPIC.settings, **(settings or {})}, **changes)
    return replace(kafka(topics=(about,)), runs=Runs(gap_s=gap_s))


def spark(reader: Any, settings: dict[str, str] | None = None, **changes: Any) -> Facts:
    found = SparkFacts("4.2.0", ("4.2.0",), {"kafka.fetch.max.wait.ms": "5", **(settings or {})})
    return replace(GOOD, spark=replace(found, **changes), reader=reader)


def test_a_good_set_up_has_no_findings() -> None:
    assert diagnose(GOOD) == []


def test_what_is_not_known_is_not_found_wrong() -> None:
    assert diagnose(Facts(StoreFacts("sqlite://"))) == []
    assert diagnose(Facts(StoreFacts("sqlite://"), kafka=KafkaFacts("h:1", topics=(TopicFacts("t"),)))) == []
    assert diagnose(replace(GOOD, spark=None, reader="connector")) == []


def standing(status: Status, lost: int = 0) -> Facts:
    of = total([Lag(TopicPartition("orders", 0), 0, 0, 100, 100, lost, 9 * HOUR, 0.9)], {})
    return replace(GOOD, standing=GroupStanding("my orders", status, of))


@pytest.mark.parametrize("status", Status)
def test_an_alarming_status_is_an_error_here_too_and_any_other_is_none(status: Status) -> None:
    """`lag` ends with exit code 1 where the doctor does."""
    found = diagnose(standing(status))
    assert [each.severity is Severity.ERROR for each in found] == ([] if status is Status.OK else [status in ALARMING])
    assert (status in Limits.of("", None, "").fail_on) is (status in ALARMING)
    for each in found:
        assert each.where == "group my orders"
        assert each.what.startswith(f"{status}: ")
        assert "`" not in each.what + each.remedy


def test_what_is_lost_and_when_more_is_lost_is_said() -> None:
    [found] = diagnose(standing(Status.LOSING_DATA, lost=7))
    assert "7 are lost; the next one is deleted in 1 h" in found.what
    [found] = diagnose(standing(Status.REWOUND))
    assert found.remedy.startswith("offsetkeeper history 'my orders' says who reset it, and why; offsetkeeper undo ")
    [found] = diagnose(standing(Status.STOPPED))
    assert "offsetkeeper history 'my orders' shows" in found.remedy


def test_a_topic_that_is_gone_is_said_once() -> None:
    gone = replace(standing(Status.TOPIC_GONE), kafka=topic(exists=False).kafka)
    assert [each.rule for each in diagnose(gone)] == ["topic-gone"]


E, W, N = Severity
FOUND = {
    "store away": (store(error="no route"), "store-away", E),
    "store read only": (store(abilities=frozenset()), "store-read-only", N),
    "store without a fence": (store(abilities=frozenset({"commit"})), "store-no-fence", E),
    "no append-only file": (server(appendonly="no"), "redis-not-durable", E),
    "fsync left to the system": (server(appendfsync="no"), "redis-fsync", W),
    "fsync each second": (server(appendfsync="everysec"), "redis-fsync", W),
    **{
        f"{settings}": (told(**settings), rule, severity)
        for settings, rule, severity in (
            ({"fsync": "off"}, "crash-may-lose", E),
            ({"full_page_writes": "off"}, "crash-may-lose", W),
            ({"synchronous_commit": "off"}, "crash-may-lose", W),
            ({"synchronous_standby_names": "", "replicas": "1"}, "failover-may-lose", W),
            (
                {"synchronous_standby_names": "*", "synchronous_commit": "local", "replicas": "1"},
                "failover-may-lose",
                W,
            ),
            ({"innodb_flush_log_at_trx_commit": "0"}, "crash-may-lose", W),
            ({"innodb_flush_log_at_trx_commit": "2"}, "crash-may-lose", W),
            ({"innodb_doublewrite": "OFF"}, "crash-may-lose", W),
            ({"log_bin": "ON", "sync_binlog": "0"}, "crash-may-lose", W),
            ({"slaves_connected": "1", "rpl_semi_sync_master_status": "OFF"}, "failover-may-lose", W),
            (
                {
                    "slaves_connected": "1",
                    "rpl_semi_sync_source_status": "ON",
                    "rpl_semi_sync_source_clients": "0",
                },
                "failover-may-lose",
                W,
            ),
            ({"min-replicas-to-write": "0", "replicas": "1"}, "failover-may-lose", W),
            ({"min-replicas-to-write": "1", "replicas": "1"}, "failover-may-lose", N),
            ({"participants": "1"}, "one-server", N),
            ({"dfs.replication": "1"}, "one-replica", W),
            ({"replication_factor": "1"}, "one-replica", W),
            ({"replication_factor": "3", "commitlog_sync": "periodic"}, "crash-may-lose", N),
        )
    },
    "settings that are hidden": (store(hidden=("fsync",)), "settings-hidden", N),
    "an output away": (replace(GOOD, outputs=(ServerFacts("p", error="no route"),)), "output-away", E),
    "an output that a crash takes rows from": (
        replace(GOOD, outputs=(ServerFacts("p", settings={"fsync": "off"}),)),
        "crash-may-lose",
        E,
    ),
    "topics of outputs away": (replace(GOOD, topics_out=KafkaFacts("h", error="no route")), "output-away", E),
    "a topic of an output gone": (
        replace(GOOD, topics_out=KafkaFacts("h", topics=(TopicFacts("out", exists=False),))),
        "topic-gone",
        E,
    ),
    "a topic of an output that may not be seen": (
        replace(GOOD, topics_out=KafkaFacts("h", refused=(Refusal("see", needed=True),))),
        "not-permitted",
        E,
    ),
    "eviction": (server(maxmemory="1000", maxmemory_policy="allkeys-lru"), "redis-evicts", E),
    "ttl shorter than a gap": (server(ttl="3600"), "ttl-short", E),
    "ttl near a gap": (server(ttl="7199"), "ttl-short", W),
    "store's clock ahead": (store(ahead_s=6.0), "clock-skew", W),
    "store's clock behind": (store(ahead_s=-6.0), "clock-skew", W),
    "records from the future": (topic(ahead_s=6.0), "clock-skew", W),
    "old pending batch": (runs(pending_s=DAY + 1), "pending-old", W),
    "brokers away": (kafka(error="no route"), "brokers-away", E),
    "advertised listener": (kafka(nodes={"inner:9092": "not known"}), "listener-unreachable", E),
    "no permission needed": (kafka(refused=(Refusal("read", needed=True),)), "not-permitted", E),
    "no permission wished": (kafka(refused=(Refusal("look", needed=False),)), "not-permitted", N),
    "topic gone": (topic(exists=False), "topic-gone", E),
    "another cluster": (topic(elsewhere=True), "another-cluster", E),
    "topic recreated": (topic(recreated=True), "topic-recreated", E),
    "position beyond the end": (topic(beyond=2), "position-beyond", E),
    "cut log": (topic(cut=1), "topic-cut", E),
    "retention shorter than a gap": (topic(gap_s=7 * DAY), "retention-short", E),
    "retention near a gap": (topic(gap_s=4 * DAY), "retention-short", W),
    "bytes that reach back less than a gap": (
        topic(span_s=1800.0, settings={"retention.bytes": "1000"}),
        "retention-bytes",
        E,
    ),
    "bytes that reach back little more than a gap": (
        topic(span_s=2 * HOUR - 1, settings={"retention.bytes": "1000", "retention.ms": "-1"}),
        "retention-bytes",
        W,
    ),
    "one replica": (topic(replicas=1, settings={"min.insync.replicas": "1"}, in_sync=1), "one-replica", W),
    "two replicas of three brokers": (
        kafka(nodes=dict.fromkeys("abc", ""), topics=(replace(GOOD_TOPIC, replicas=2, settings={}),)),
        "few-replicas",
        W,
    ),
    "one replica is all that can be asked for": (topic(replicas=1, in_sync=1), "one-replica", W),
    "one replica of the ledgers": (
        store(kafka=KafkaFacts("h", nodes={"a": "", "b": ""}, topics=(TopicFacts("ledgers", replicas=1),))),
        "one-replica",
        W,
    ),
    "min.insync as many as replicas": (topic(settings={"min.insync.replicas": "3"}), "min-insync-high", W),
    "min.insync 1": (topic(settings={"min.insync.replicas": "1"}), "min-insync-low", W),
    "too few in sync": (topic(in_sync=1), "below-min-insync", E),
    "unclean": (topic(settings={"unclean.leader.election.enable": "true"}), "unclean-election", W),
    "transactions are not verified": (kafka(unverified={"a:1": "x=false"}), "transactions-unverified", N),
    "transactions of an output are not verified": (
        replace(kafka(unverified={"a:1": "x=false"}), topics_out=KafkaFacts("host:9092")),
        "transactions-unverified",
        W,
    ),
    "group offsets expire": (runs(silence_s=3.5 * DAY), "group-offsets-expire", W),
    "no connector": (spark("connector", connectors=()), "no-connector", E),
    "no connector for queries": (spark("auto", version="4.1.4", connectors=()), "no-connector", N),
    "auto with another connector": (spark("auto", version="3.5.9", connectors=("4.2.0",)), "connector-version", E),
    "connector of another release": (spark("spark", connectors=("4.0.0",)), "connector-version", E),
    "connector of another patch": (spark("connector", connectors=("4.2.1",)), "connector-version", W),
    "small pool": (spark("connector", {"spark.kafka.consumer.cache.capacity": "7"}), "pool-small", W),
    "fetch wait as it comes": (replace(GOOD, reader="spark"), "fetch-wait", W),
    "fetch wait set long": (kafka(options={"fetch.wait.max.ms": "500"}), "fetch-wait", W),
    "fetch wait with a unit": (spark("spark", {"kafka.fetch.max.wait.ms": "5ms"}), "no-number", E),
    "fetch wait of librdkafka with a unit": (kafka(options={"fetch.wait.max.ms": "5ms"}), "no-number", E),
    "executors by themselves": (spark("spark", {"spark.executor.instances": "auto"}), "no-number", E),
    "a pool that is a word": (spark("connector", {"spark.kafka.consumer.cache.capacity": "auto"}), "no-number", E),
    "a pool that is no number of Java": (
        spark("connector", {"spark.kafka.consumer.cache.capacity": "9" * 5000}),
        "no-number",
        E,
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_wrong_is_found_with_its_remedy(name: str) -> None:
    facts, rule, severity = FOUND[name]
    [finding] = diagnose(facts)
    assert (finding.rule, finding.severity) == (rule, severity)
    assert finding.where
    assert finding.what
    assert finding.remedy
    assert set(finding.as_dict()) == {"rule", "severity", "where", "what", "remedy"}


def test_only_a_topic_that_the_group_reads_is_said_to_have_its_positions() -> None:
    told = [diagnose(topic(exists=False, read=read))[0].what for read in (True, False)]
    gone = "the topic does not exist in Kafka"
    more = ", but the group has positions of it: if it was deleted, its unread records are lost"
    assert told == [gone + more, gone]


FINE = {
    "ttl twice a gap": server(ttl="7200"),
    "a volatile policy evicts no offsets": server(maxmemory="1000", maxmemory_policy="volatile-lru"),
    **{
        f"{settings}": told(**settings)
        for settings in (
            {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "local", "replicas": "0"},
            {"synchronous_standby_names": "", "replicas": "0"},
            {"synchronous_standby_names": "*", "synchronous_commit": "remote_apply", "replicas": "2"},
            {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON", "log_bin": "OFF", "sync_binlog": "0"},
            {"log_bin": "ON", "sync_binlog": "1"},
            {"slaves_connected": "1", "wsrep_on": "ON"},
            {
                "slaves_connected": "1",
                "rpl_semi_sync_source_status": "ON",
                "rpl_semi_sync_source_clients": "1",
            },
            {"min-replicas-to-write": "0", "replicas": "0"},
            {"participants": "3", "dfs.replication": "3", "replication_factor": "2", "commitlog_sync": "batch"},
        )
    },
    "a policy without a limit": server(maxmemory_policy="allkeys-lru"),
    "a little skew": store(ahead_s=5.0),
    "a record a little ahead": topic(ahead_s=5.0),
    "pending since this morning": runs(pending_s=DAY),
    "retention twice a gap": topic(gap_s=3.5 * DAY),
    "retention for ever": topic(gap_s=90 * DAY, settings={"retention.ms": "-1"}),
    "bytes that reach back twice a gap": topic(span_s=2 * HOUR, settings={"retention.bytes": "1000"}),
    "bytes, but time deletes": topic(
        gap_s=3 * DAY, span_s=7 * DAY, settings={"retention.bytes": "1000", "retention.ms": "604800000"}
    ),
    "compacted": topic(gap_s=90 * DAY, settings={"cleanup.policy": "compact"}),
    "two replicas, one needed": topic(replicas=2, in_sync=2, settings={"min.insync.replicas": "1"}),
    "group offsets young": runs(silence_s=3.4 * DAY),
    "group offsets not in Kafka": replace(kafka(published=False), runs=Runs(silence_s=30 * DAY)),
    "no connector, none needed": spark("packed", connectors=()),
    "no connector, and none taken": spark("auto", connectors=()),
    "another connector, none used": spark("packed", connectors=("3.5.0",)),
    "a pool of each executor": spark(
        "connector", {"spark.kafka.consumer.cache.capacity": "4", "spark.executor.instances": "2"}
    ),
    "a pool as large as it takes": spark("connector", {"spark.kafka.consumer.cache.capacity": "8"}),
    "the packed reader needs no pool": spark("packed", {"spark.kafka.consumer.cache.capacity": "1"}),
    "fetch wait tuned": spark("spark"),
    "fetch wait tuned by offsetkeeper": replace(GOOD, reader="connector"),
    "fetch wait set short": kafka(options={"fetch.wait.max.ms": "100"}),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_fine_is_not_found(name: str) -> None:
    assert diagnose(FINE[name]) == []


def test_a_cluster_of_one_broker_cannot_have_more_replicas() -> None:
    [finding] = diagnose(replace(topic(replicas=1, settings={"min.insync.replicas": "1"}, in_sync=1)))
    assert finding.severity is W
    alone = topic(replicas=1, settings={"min.insync.replicas": "1"}, in_sync=1)
    assert alone.kafka
    [finding] = diagnose(replace(alone, kafka=replace(alone.kafka, nodes={"host:9092": ""})))
    assert finding.severity is N


def test_the_worst_comes_first() -> None:
    facts = replace(kafka(error="away"), store=replace(GOOD.store, abilities=frozenset(), ahead_s=9.0))
    assert [finding.severity for finding in diagnose(facts)] == [E, W, N]


def entry(event: str, ago_s: float) -> Entry:
    return Entry(1, event, "id", NOW - round(ago_s * 1000), "me")


OWNED = Snapshot("g", 5, owner=Owner("me", 1))
PENDING = replace(OWNED, pending=Batch("g", "token", 1, (OffsetRange("orders", 0, 0, 1),)))


def test_the_longest_pause_between_runs_is_read_from_the_history() -> None:
    """The pause of a run between two commits is none between runs."""
    entries = [
        entry("commit", 10),
        entry("acquire", 5000),
        entry("release", 5100),
        entry("acquire", 6000),
        entry("commit", 9000),
    ]
    assert runs_of(OWNED, entries, NOW) == Runs(3000.0, 10.0, None)
    assert runs_of(Snapshot("g", 5), [entry("release", 4000), *entries[3:]], NOW).gap_s == 4000.0
    assert runs_of(OWNED, entries[:1], NOW) == Runs(None, 10.0, None)
    assert runs_of(OWNED, [], NOW) == Runs()


def test_the_age_of_the_pending_batch_is_since_it_was_begun() -> None:
    begun = [replace(entry("begin", ago), token="token", sequence=1) for ago in (60, 70)]  # by two programs
    entries = [entry("acquire", 10), *begun, entry("commit", 80), replace(begun[0], sequence=0, at_ms=0)]
    assert runs_of(PENDING, entries, NOW).pending_s == 70.0
    assert runs_of(OWNED, entries, NOW).pending_s is None
    assert runs_of(PENDING, entries[:1], NOW).pending_s is None
