"""A program that kept its offsets in MySQL is replaced by a pipeline, and comes back: docs/migrate-dstreams.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pymysql
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
from stores.migrating import Switch

TABLE = """CREATE TABLE kafka_offsets (
    topic varchar(200), group_id varchar(200), `partition` int, `offset` bigint, `timestamp` timestamp,
    PRIMARY KEY (topic, group_id, `partition`))"""


def test_a_program_with_its_offsets_in_mysql_is_replaced_and_comes_back(
    mariadb_server: MariaDBServer,
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    database = mariadb_server.create_database()
    switch = Switch(spark, kafka_server, topic(2), tmp_path, mariadb_server.url(database))
    with (
        closing(
            pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root", database=database, autocommit=True)
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(TABLE)

        def write(offsets: Mapping[int, int]) -> None:
            rows = [(switch.topic, switch.group, number, offset) for number, offset in offsets.items()]
            cursor.executemany(
                "REPLACE INTO kafka_offsets (topic, group_id, `partition`, `offset`) VALUES (%s, %s, %s, %s)", rows
            )

        def read() -> Mapping[int, int]:
            where = (switch.topic, switch.group)
            cursor.execute("SELECT `partition`, `offset` FROM kafka_offsets WHERE topic = %s AND group_id = %s", where)
            return dict(cursor.fetchall())

        switch.there_and_back(read, write)
