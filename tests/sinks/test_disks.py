"""An executor of a cluster lacks the mount of an output: nothing lands before the mount is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable as Delta
from pyarrow import dataset

from fixtures.clusters import CLUSTER_SESSION
from offsetkeeper.stores import open_store
from offsetkeeper.testing.java import java
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.spark import SparkCluster
from sinks import disks_driver
from sinks.icebergs import Lake

LIMIT_S = 400
PARTITIONS, RECORDS = 4, 10
WANTED = [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]
EACH = dict.fromkeys(["files", "query", "lake", "iceberg"], True)
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
SESSION = CLUSTER_SESSION | {"spark.cores.max": "2"}


@pytest.mark.timeout(2 * LIMIT_S)
def test_no_row_is_lost_where_a_mount_is_missing_on_a_machine(
    tmp_path: Path, kafka_server: KafkaServer, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, disk, mount = topic(partitions=PARTITIONS), tmp_path / "driver" / "disk", tmp_path / "mount"
    produce(kafka_server, source)
    disk.mkdir(parents=True)
    monkeypatch.chdir(disk.parent)  # as the driver: there the mount is
    mount.symlink_to("/proc/self/cwd/disk")
    Delta.create(str(mount / "lake"), SCHEMA)
    iceberg = Lake.made(mount)
    iceberg.create("orders", SCHEMA)
    given: dict[str, Any] = {
        "folder": str(tmp_path),
        "mount": str(mount),
        "catalog": iceberg.properties | {"uri": f"sqlite:///{disk}/catalog.db"},
        "pipeline": {
            "store": f"sqlite:///{tmp_path}/offsets.db",
            "brokers": kafka_server.bootstrap,
            "topics": [source],
            "attempts": 1,
        },
    }
    with SparkCluster(workers=2, memory="512m") as cluster:
        settings = given | {"spark": SESSION | {"spark.master": cluster.url}}
        soon = {"retry_timeout_s": 8.0}  # a mount that is missing is waited for
        told = drive(settings | {"pipeline": settings["pipeline"] | soon}, tmp_path)
        assert (tmp_path / "lacks").exists()
        assert {name: "is missing" in text or "is mounted on" in text for name, text in told.items()} == EACH
        assert rows(mount, iceberg) == {name: [] for name in EACH}
        assert read(tmp_path) == dict.fromkeys(EACH, 0)
        (tmp_path / "mended").touch()
        assert drive(settings, tmp_path) == {}
    assert rows(mount, iceberg) == dict.fromkeys(EACH, WANTED)
    assert read(tmp_path) == dict.fromkeys(EACH, len(WANTED))


def drive(settings: dict[str, Any], folder: Path) -> dict[str, str]:
    """Run all pipelines; return the errors of those that failed."""
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java().resolve().parent.parent)}
    command = [sys.executable, disks_driver.__file__, json.dumps(settings)]
    with (folder / "log").open("w+") as log:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, timeout=LIMIT_S, check=False
        )
        log.seek(0)
        assert done.returncode == 0, log.read()[-4000:]
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


def produce(server: KafkaServer, topic: str) -> None:
    """Write records to all partitions."""
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for partition, offset in WANTED:
        producer.produce(topic, f"order {offset}", partition=partition)
    assert producer.flush(LIMIT_S) == 0


def rows(mount: Path, iceberg: Lake) -> dict[str, list[tuple[int, int]]]:
    """Return what a reader finds in each output."""
    tables = {name: dataset.dataset(mount / name, format="parquet").to_table() for name in ("files", "query")}
    tables |= {
        "lake": Delta(str(mount / "lake")).to_pyarrow_table(),
        "iceberg": iceberg.table("orders").scan().to_arrow(),
    }
    return {
        name: sorted((row["partition"], row["offset"]) for row in table.to_pylist()) for name, table in tables.items()
    }


def read(folder: Path) -> dict[str, int]:
    """Return how many records each group has behind it, by its ledger."""
    with closing(open_store(f"sqlite:///{folder}/offsets.db")) as store:
        return {name: sum(each.offset for each in store.load(name).positions.values()) for name in EACH}
