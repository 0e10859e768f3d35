"""Collects the facts for the doctor's `rules` from the store, Kafka and the installed Spark; changes nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from offsetkeeper.core import environment
from offsetkeeper.core.bounds import Bounds, Standing, standing_of
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.core.outside import LARGEST_TABLE, read_text
from offsetkeeper.core.published import told
from offsetkeeper.core.store import Store
from offsetkeeper.errors import BrokerError, BrokerUnavailable, StoreError
from offsetkeeper.kafka.clients import library
from offsetkeeper.kafka.cluster import KafkaCluster
from offsetkeeper.kafka.codes import CodeVerdict, judge
from offsetkeeper.kafka.consumers import can_be_asked, group_consumers
from offsetkeeper.kafka.replication import KafkaFacts, Refusal, TopicFacts
from offsetkeeper.operate.doctor.facts import (
    Clocked,
    Examined,
    Facts,
    GroupStanding,
    ReaderKind,
    Runs,
    SparkFacts,
    StoreFacts,
)
from offsetkeeper.operate.doctor.outputs import describe, server_facts, shown, written_topics
from offsetkeeper.operate.doctor.rules import runs_of
from offsetkeeper.operate.lag import group_lag, total
from offsetkeeper.operate.published import edited
from offsetkeeper.operate.status import entries_to_read, status

_HISTORY = 1000
_CONNECT_S = 3.0
_READ_S = 5.0
_OFFSETS_S = 3.0  # without permission for the group, no answer ever comes
_FUTURE_MS = 5_000
_CORE = re.compile(r"spark-core_[\d.]+-(\d.*)\.jar")
_CONNECTOR = re.compile(r"spark-sql-kafka-0-10_[\d.]+[-:]([\w.-]+?)(?:\.jar)?")


def examine(
    ledger: Ledger,
    cluster: KafkaCluster | None,
    *,
    topics: Collection[str] = (),
    reader: ReaderKind = "auto",
    spark: Mapping[str, str] | None = None,
    outputs: Collection[str] = (),
) -> Facts:
    """Return the facts about a pipeline's set-up.

    Args:
        ledger: ledger of the pipeline's group.
        cluster: Kafka, or None to ask only the store.
        topics: topics that the pipeline reads, in addition to those in the ledger.
        reader: the pipeline's reader; "spark" is Spark's own Kafka source without offsetkeeper's reader.
        spark: settings of Spark and options of its Kafka source; they override spark-defaults.conf.
        outputs: what the pipeline writes into: URLs of databases, and names of topics of the cluster.

    Raises:
        SettingsError: the store, the cluster or an output refuses the settings.
    """
    store = ledger.store
    snapshot, runs = Snapshot(ledger.group), Runs()
    entries: Sequence[Entry] = ()
    try:
        snapshot = ledger.load()
        entries = ledger.history(_HISTORY)
        runs = runs_of(snapshot, entries, environment.now_ms())
        found = _store(store)
        if differing := edited(ledger):
            found = replace(found, edited=told(ledger.group, differing))
    except StoreError as error:
        found = StoreFacts(store.address, store.abilities, error=str(error))
    positions = snapshot.positions
    kafka = cluster_facts(cluster, ledger.group, positions, topics) if cluster else None
    written = [name for name in outputs if "://" not in name]
    return Facts(
        found,
        runs,
        kafka,
        installed_spark(spark or {}),
        reader,
        outputs=[server_facts(url) for url in outputs if "://" in url],
        topics_out=written_topics(cluster, written) if cluster and written else None,
        standing=_standing(cluster, kafka, snapshot, entries, topics) if cluster and kafka else None,
    )


def _standing(
    cluster: KafkaCluster, kafka: KafkaFacts, snapshot: Snapshot, entries: Sequence[Entry], topics: Collection[str]
) -> GroupStanding | None:
    """Return what `offsetkeeper lag` says; None if Kafka does not say it: other findings have the reason."""
    if kafka.error or all(kafka.nodes.values()) or not (snapshot.positions or snapshot.missing):
        return None
    try:
        found = group_lag(snapshot, cluster, topics)
    except BrokerError:
        return None
    newest = entries[: entries_to_read(len(found))]
    return GroupStanding(snapshot.group, status(snapshot, found, newest, environment.now_ms()), total(found, {}))


def _store(store: Store) -> StoreFacts:
    from offsetkeeper.stores.kafka import KafkaStore  # noqa: PLC0415 - loads the client library

    if isinstance(store, KafkaStore):
        return StoreFacts(store.address, store.abilities, kafka=store.kafka_facts())
    facts = StoreFacts(store.address, store.abilities)
    if isinstance(store, Examined):
        settings, hidden = shown(store.server_settings())
        facts = replace(facts, settings=settings, hidden=hidden)
    return replace(facts, ahead_s=_ahead_s(store)) if isinstance(store, Clocked) else facts


def _ahead_s(store: Clocked) -> float:
    before_ms = environment.now_ms()
    at_ms = store.clock_ms()
    after_ms = environment.now_ms()
    # The server read its clock between our two readings, and times are cut to milliseconds: this is the sure minimum.
    ahead_ms = at_ms - after_ms - 1 if at_ms > after_ms else min(0, at_ms + 1 - before_ms)
    return ahead_ms / 1000


def cluster_facts(cluster: KafkaCluster, group: str, positions: Positions, topics: Collection[str] = ()) -> KafkaFacts:
    """Return the facts about a cluster and the topics that a group reads there.

    Args:
        cluster: Kafka.
        group: the consumer group.
        positions: the group's positions in Kafka's topics.
        topics: more topics that the group reads.
    """
    known = KafkaFacts(cluster.brokers, options=cluster.options)
    try:
        nodes = _nodes(cluster)
        known = replace(known, nodes={f"{host}:{port}": _reach(host, port) for host, port in nodes.values()})
        if all(known.nodes.values()):
            return known  # every other request would time out too
        return _facts(cluster, known, list(nodes), group, positions, {*topics, *(tp.topic for tp in positions)})
    except BrokerError as error:
        return replace(known, error=str(error))


def _nodes(cluster: KafkaCluster) -> dict[str, tuple[str, int]]:
    """Return the advertised addresses; if no answer comes, those that the client has heard of and cannot reach.

    As soon as librdkafka hears of the advertised addresses it leaves the given one, even with a request under way. So
    the answer comes only if it is faster, and may be lost each time.
    """
    try:
        return cluster.nodes()
    except BrokerUnavailable:
        if found := cluster.unreached():
            return found
        raise


def _facts(
    cluster: KafkaCluster, known: KafkaFacts, nodes: list[str], group: str, positions: Positions, names: Collection[str]
) -> KafkaFacts:
    refused: list[Refusal] = []
    described = describe(cluster, sorted(names), refused)
    there = [about for about in described.values() if about is not None]
    bounds = cluster.with_log_ends(cluster.bounds_of(there))
    began = cluster.held_since(bounds, timeout_s=_READ_S)
    refused += [Refusal(f"read topic {topic} (READ)", needed=True) for topic in _unreadable(cluster, bounds)]
    broker = cluster.settings("broker", nodes[:1])
    settings = cluster.settings("topic", [about.topic for about in there])
    hidden = [f"topic {about.topic}" for about in there if about.topic not in settings] + ["brokers"] * (not broker)
    refused += [Refusal(f"see the settings of {what} (DESCRIBE_CONFIGS)", needed=False) for what in hidden]
    minutes = next(iter(broker.values()), {}).get("offsets.retention.minutes")
    reached = cluster.with_open_transactions(positions, bounds)  # positions of a run that reads uncommitted records
    with suppress(BrokerError):  # a missing right to read is a finding of its own
        reached = cluster.with_cuts(positions, reached)
    standings = {
        name: [standing_of(at, reached.get(tp)) for tp, at in positions.items() if tp.topic == name]
        for name in described
    }
    topics = [
        _topic(cluster, about, standings[name], settings.get(name, {}), bounds, _oldest_open(name, bounds, began))
        if about
        else TopicFacts(name, exists=False, partitions=0, read=bool(standings[name]))
        for name, about in described.items()
    ]
    return replace(
        known,
        topics=topics,
        offsets_retention_s=None if minutes is None else float(minutes) * 60,
        published=_published(cluster, group, bounds, refused),
        refused=refused,
        unverified=cluster.unverified(),
    )


def _unreadable(cluster: KafkaCluster, bounds: Mapping[TopicPartition, Bounds]) -> list[str]:
    """Return the topics whose records may not be read; one record of each topic is tried."""
    first = {tp.topic: (tp, at.beginning) for tp, at in bounds.items() if at.beginning < at.end}
    return sorted(cluster.record_timestamps(dict(first.values()), timeout_s=_READ_S).refused)


def _oldest_open(
    topic: str, bounds: Mapping[TopicPartition, Bounds], began: Mapping[TopicPartition, int]
) -> tuple[int, int, float] | None:
    """Return the oldest open transaction: its partition, first offset and age in seconds; None if none is open."""
    here_ms = environment.now_ms()
    ages = (
        (tp.partition, bounds[tp].end, (here_ms - at_ms) / 1000) for tp, at_ms in began.items() if tp.topic == topic
    )
    return max(ages, key=lambda each: each[-1], default=None)


def _topic(
    cluster: KafkaCluster,
    about: TopicDescription,
    standings: Collection[Standing],
    settings: Mapping[str, str],
    bounds: Mapping[TopicPartition, Bounds],
    open_: tuple[int, int, float] | None,
) -> TopicFacts:
    here_ms = environment.now_ms()
    own = [TopicPartition(about.topic, partition) for partition in about.partitions]
    future = cluster.first_since(dict.fromkeys(own, here_ms + _FUTURE_MS))
    return TopicFacts(
        about.topic,
        recreated=Standing.RECREATED in standings,
        elsewhere=Standing.ELSEWHERE in standings,
        beyond=sum(standing is Standing.BEYOND_END for standing in standings),
        cut=sum(standing is Standing.CUT for standing in standings),
        partitions=len(about.partitions),
        replicas=about.replicas,
        in_sync=about.in_sync,
        settings=settings,
        ahead_s=max(((at_ms - here_ms) / 1000 for _, at_ms in future.values()), default=0.0),
        open=open_,
        read=bool(standings),
        span_s=_span_s(cluster, {tp: bounds[tp] for tp in own if tp in bounds}, settings),
    )


def _span_s(
    cluster: KafkaCluster, bounds: Mapping[TopicPartition, Bounds], settings: Mapping[str, str]
) -> float | None:
    """Return how many seconds back a topic with retention.bytes reaches now, if records were deleted; else None.

    The answer comes from an index of the broker; no record is read.
    """
    cut = dict.fromkeys((tp for tp, at in bounds.items() if at.beginning), 0)
    if settings.get("retention.bytes", "-1").startswith("-") or not cut:
        return None
    oldest_ms = [at_ms for _, at_ms in cluster.first_since(cut).values()]
    return (environment.now_ms() - max(oldest_ms)) / 1000 if oldest_ms else None


def _published(cluster: KafkaCluster, group: str, asked: Collection[TopicPartition], refused: list[Refusal]) -> bool:
    """Whether the group has offsets in Kafka. The group is not joined. Without permission to ask, the answer is no."""
    if not can_be_asked(group):
        return False
    try:
        return bool(group_consumers(cluster, _OFFSETS_S).offsets(group, asked))
    except library().KafkaException as error:
        if judge(error.args[0]) is CodeVerdict.REFUSED:
            refused.append(Refusal(f"see the offsets of group {group} in Kafka (DESCRIBE)", needed=False))
        return False


def _reach(host: str, port: int) -> str:
    """Try to connect; return the error, or an empty text."""
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        return str(error) or type(error).__name__
    return ""


def installed_spark(given: Mapping[str, str]) -> SparkFacts | None:
    """Return the Spark of SPARK_HOME, else the one that pip installed; None if neither exists.

    Args:
        given: settings of Spark; they override its spark-defaults.conf.
    """
    home = _home()
    if home is None:
        return None
    names = [path.name for path in (home / "jars").glob("*.jar")]
    version = next((match[1] for name in names if (match := _CORE.fullmatch(name))), None)
    if version is None:
        return None
    settings = _defaults(Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf") | {**given}
    more = [part for name in ("spark.jars", "spark.jars.packages") for part in settings.get(name, "").split(",")]
    return SparkFacts(version, tuple(_connectors([*names, *more])), settings)


def _home() -> Path | None:
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else None


def _connectors(names: Iterable[str]) -> Iterable[str]:
    """Return the versions, each once; a name is a jar, a path to a jar, or Maven coordinates."""
    found = (_CONNECTOR.fullmatch(re.split(r"[/\\]|^[^:]*:(?=spark-)", name.strip())[-1]) for name in names)
    return sorted({match[1] for match in found if match})


def _defaults(path: Path) -> dict[str, str]:
    """Return the settings of a spark-defaults.conf: a name, then its value after spaces or `=`."""
    lines = read_text(path, most=LARGEST_TABLE).splitlines() if os.path.isfile(path) else []  # noqa: PTH113 - it never raises
    pairs = (re.split(r"\s*[=\s]\s*", line.strip(), maxsplit=1) for line in lines if not line.lstrip().startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}
