"""A program that kept its offsets in HBase is replaced by a pipeline, and comes back: docs/migrate-dstreams.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from fixtures.hbase import TABLE
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.kafka import KafkaServer
from stores.migrating import Switch


def test_a_program_with_its_offsets_in_hbase_is_replaced_and_comes_back(
    hbase_server: HBaseServer,
    hbase_tables: str,
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    switch = Switch(spark, kafka_server, topic(2), tmp_path, hbase_tables)

    def write(offsets: Mapping[int, int]) -> None:
        key = f"{switch.topic}:{switch.group}:{time.time_ns() // 1_000_000}"
        with closing(hbase_server.client()) as client:
            client.table(TABLE).put(key.encode(), {b"offsets:%d" % n: b"%d" % at for n, at in offsets.items()})

    def read() -> Mapping[int, int]:
        with closing(hbase_server.client()) as client:
            prefix = f"{switch.topic}:{switch.group}:".encode()
            [(_, row)] = client.table(TABLE).scan(row_prefix=prefix, reverse=True, limit=1)
        return {int(column.rpartition(b":")[2]): int(offset) for column, offset in row.items()}

    switch.there_and_back(read, write, copy=True)
