"""Offsets in a layout that no store knows come as a CSV: docs/migrate-dstreams.md."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from offsetkeeper import open_store
from offsetkeeper.testing.kafka import KafkaServer
from stores.migrating import ENDS, LEFT, Switch


def test_offsets_of_the_last_records_read_come_as_a_csv(
    spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    switch = Switch(spark, kafka_server, topic(2), tmp_path, f"sqlite:///{tmp_path}/offsets.db")
    switch.produce(ENDS)
    rows = [f"{switch.topic},{number},{offset - 1}" for number, offset in LEFT.items()]
    (tmp_path / "offsets.csv").write_text("\n".join(rows), "utf-8")
    switch.follow("--from-file")
    switch.follow("--shift-by")
    with closing(open_store(switch.store)) as store:
        found = store.load(switch.group).positions
    assert {tp.partition: position.offset for tp, position in found.items()} == LEFT
