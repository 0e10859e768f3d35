"""A program that kept its offsets in PostgreSQL is replaced by a pipeline, and comes back: docs/migrate-dstreams.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from stores.migrating import Switch

TABLE = """create table kafka_offsets (
    topic text, group_id text, partition integer, "offset" bigint, timestamp timestamptz default now(),
    primary key (topic, group_id, partition))"""


def test_a_program_with_its_offsets_in_postgresql_is_replaced_and_comes_back(
    database: str, spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    switch = Switch(spark, kafka_server, topic(2), tmp_path, database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)

        def write(offsets: Mapping[int, int]) -> None:
            rows = [(switch.topic, switch.group, number, offset) for number, offset in offsets.items()]
            connection.cursor().executemany(
                "insert into kafka_offsets values (%s, %s, %s, %s)"
                ' on conflict (topic, group_id, partition) do update set "offset" = excluded."offset"',
                rows,
            )

        query = 'select partition, "offset" from kafka_offsets where topic = %s and group_id = %s'
        switch.there_and_back(lambda: dict(connection.execute(query, (switch.topic, switch.group)).fetchall()), write)
