"""The actions on the page are enough for a Delta Lake table in S3, and each is needed; who lacks one is told."""

from __future__ import annotations

from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import granted
from fixtures.s3_gate import s3_gate
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.sinks import DeltaTable, Lander
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.s3 import KEY, SECRET, S3Server

HEADING = "Delta Lake in S3"
ROWS = rows(HEADING)
APPEND, UPSERT = "sink `DeltaTable`", 'sink `DeltaTable`, `mode="upsert"`'
SETTINGS: dict[str, dict[str, Any]] = {APPEND: {}, UPSERT: {"mode": "upsert", "key": ["id"]}}


def write(spark: SparkSession, server: S3Server, task: str, lacking: Lacking | None) -> list[int]:
    """Write two batches through the gate, and return the ids that are there then."""
    bucket = server.create_bucket()
    uri = f"s3://{bucket}/prefix/orders"
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region": "us-east-1", "allow_http": "true"}
    direct = keys | {"endpoint_url": f"http://127.0.0.1:{server.port}"}
    deltalake.DeltaTable.create(uri, schema=pa.schema([("id", pa.int64())]), storage_options=direct)
    allowed = [(action, on.replace("bucket", bucket)) for action, on in granted(ROWS, task, lacking)]
    with s3_gate(server.port, allowed) as port:
        options = keys | {"endpoint_url": f"http://127.0.0.1:{port}", "max_retries": "0"}
        sink = DeltaTable(uri, storage_options=options, **SETTINGS[task])
        way = sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
        assert isinstance(way, Lander)
        for number in (1, 2):
            Once(way, "").write(spark.range(number, number + 2), batch_of(number))
    found = deltalake.DeltaTable(uri, storage_options=direct).to_pyarrow_table()["id"]
    return sorted(found.to_pylist())


class TestDelta(RightsSuite):
    """A table's writer."""

    headings = (HEADING,)
    tasks = SETTINGS
    error = OffsetkeeperError
    secret = SECRET

    @pytest.fixture
    def try_without(self, spark: SparkSession, s3_server: S3Server) -> TryWithout:
        """See `RightsSuite`."""

        def work(_: str, task: str, lacking: Lacking | None) -> None:
            ids = write(spark, s3_server, task, lacking)
            assert ids == ([1, 2, 2, 3] if task == APPEND else [1, 2, 3])

        return work
