"""A program that kept its offsets in ZooKeeper is replaced by a pipeline, and comes back: docs/migrate-dstreams.md."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.zookeeper import ZooKeeperServer
from stores.migrating import Switch


def test_a_program_with_its_offsets_in_zookeeper_is_replaced_and_comes_back(
    zookeeper_server: ZooKeeperServer,
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    chroot = f"test-{secrets.token_hex(6)}"
    switch = Switch(spark, kafka_server, topic(2), tmp_path, zookeeper_server.url(chroot))
    with closing(zookeeper_server.client()) as client:
        place = f"/{chroot}/consumers/{switch.group}/offsets/{switch.topic}"

        def write(offsets: Mapping[int, int]) -> None:
            for number, offset in offsets.items():
                client.ensure_path(f"{place}/{number}")
                client.set(f"{place}/{number}", b"%d" % offset)

        def read() -> Mapping[int, int]:
            return {int(number): int(client.get(f"{place}/{number}")[0]) for number in client.get_children(place)}

        switch.there_and_back(read, write, copy=True)
        client.stop()
