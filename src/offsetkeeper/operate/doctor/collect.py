"""Collects what the doctor's `rules` judge: asks store, Kafka and the installed Spark, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot, kafka_positions
from offsetkeeper.core.store import Store
from offsetkeeper.errors import StoreError
from offsetkeeper.kafka import Cluster
from offsetkeeper.operate.doctor.facts import Examined, Facts, ReaderKind, Runs, StoreFacts
from offsetkeeper.operate.doctor.kafka import cluster_facts
from offsetkeeper.operate.doctor.rules import runs_of
from offsetkeeper.operate.doctor.spark import installed_spark

_HISTORY = 1000


def examine(
    ledger: Ledger,
    cluster: Cluster | None,
    *,
    topics: Collection[str] = (),
    reader: ReaderKind = "packed",
    spark: Mapping[str, str] | None = None,
) -> Facts:
    """Return what is known of a pipeline's set-up.

    Args:
        ledger: of its group.
        cluster: Kafka, or None to look at the store only.
        topics: that it reads, beside those that the ledger has positions of.
        reader: which it uses; "spark" is Spark's own Kafka source, used without offsetkeeper's reader.
        spark: settings of Spark and options of its Kafka source, over those of spark-defaults.conf.

    Raises:
        SettingsError: the store or the cluster refuses the settings.
    """
    store = ledger.store
    snapshot, runs = Snapshot(ledger.group), Runs()
    try:
        snapshot = ledger.load()
        runs = runs_of(snapshot, ledger.history(_HISTORY), time.time_ns() // 1_000_000)
        found = _store(store)
    except StoreError as error:
        found = StoreFacts(store.address, store.abilities, error=str(error))
    positions = kafka_positions(snapshot.positions)
    kafka = cluster_facts(cluster, ledger.group, positions, topics) if cluster else None
    return Facts(found, runs, kafka, installed_spark(spark or {}), reader)


def _store(store: Store) -> StoreFacts:
    from offsetkeeper.stores.kafka import KafkaStore  # noqa: PLC0415 - loads the client library

    if isinstance(store, KafkaStore):
        return StoreFacts(store.address, store.abilities, kafka=store.kafka_facts())
    if not isinstance(store, Examined):
        return StoreFacts(store.address, store.abilities)
    settings = store.server_settings()
    before = time.time()
    at = store.clock_ms() / 1000
    after = time.time()
    # It looked at its clock at some moment in between, and cut the time to milliseconds: this much is sure, at least.
    ahead_s = at - after if at > after else min(0.0, at + 0.001 - before)
    return StoreFacts(store.address, store.abilities, settings=settings, ahead_s=ahead_s)
