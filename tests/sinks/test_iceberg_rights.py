"""The rights on the page are enough for an Iceberg table in S3, and each is needed; who lacks one is told."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import granted
from fixtures.s3_gate import s3_gate
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.sinks import Lander
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.s3 import KEY, SECRET, S3Server
from sinks.icebergs import Lake

HEADING = "Iceberg in S3, with a catalog in PostgreSQL"
APPEND, UPSERT = "sink `IcebergTable`", 'sink `IcebergTable`, `mode="upsert"`'
SETTINGS: dict[str, dict[str, Any]] = {APPEND: {}, UPSERT: {"mode": "upsert", "key": ["id"]}}


class TestIceberg(RightsSuite):
    """A table's writer."""

    headings = (HEADING,)
    tasks = SETTINGS
    error = OffsetkeeperError

    @pytest.fixture
    def try_without(
        self, spark: SparkSession, s3_server: S3Server, postgresql_server: PostgreSQLServer, tmp_path: Path
    ) -> TryWithout:
        """See `RightsSuite`."""

        def work(_: str, task: str, lacking: Lacking | None) -> None:
            name, user, bucket = (
                postgresql_server.create_database(),
                f"user_{secrets.token_hex(6)}",
                s3_server.create_bucket(),
            )
            uri = postgresql_server.url(name).replace("postgresql://", "postgresql+psycopg://", 1)
            files = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": "us-east-1"}
            direct = {
                **files,
                "warehouse": f"s3://{bucket}/prefix",
                "s3.endpoint": f"http://127.0.0.1:{s3_server.port}",
            }
            lake = Lake(tmp_path, {"uri": uri, "init_catalog_tables": "true", **direct})
            with lake.catalog() as catalog:
                catalog.create_namespace(lake.namespace)
            lake.create("orders", pa.schema([("id", pa.int64())]))
            rights = granted(rows(HEADING), task, lacking)
            with psycopg.connect(postgresql_server.url(name), autocommit=True) as connection:
                connection.execute(f"CREATE USER {user} PASSWORD '{self.secret}'".encode())
                for right, on in rights:
                    if on.startswith("TABLE"):
                        connection.execute(f"GRANT {right} ON {on} TO {user}".encode())
            allowed = [(right, on.replace("bucket", bucket)) for right, on in rights if right.startswith("s3:")]
            with s3_gate(s3_server.port, allowed) as port:
                theirs = f"postgresql+psycopg://{user}:{self.secret}@127.0.0.1:{postgresql_server.port}/{name}"
                gated = {**lake.properties, "uri": theirs, "s3.endpoint": f"http://127.0.0.1:{port}"}
                sink = lake._replace(properties={**gated, "init_catalog_tables": "false"}).sink(
                    "orders", **SETTINGS[task]
                )
                way = sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
                assert isinstance(way, Lander)
                for number in (1, 2):
                    Once(way, "").write(spark.range(number, number + 2), batch_of(number))
            assert lake.rows("orders") == [(n,) for n in ([1, 2, 2, 3] if task == APPEND else [1, 2, 3])]

        return work
