"""Executors and Python workers are killed in the middle of a batch, on a cluster of three, with speculation.

Executors come and go besides, where Spark allocates them as it needs them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable as Lake
from pyarrow import dataset

from fixtures.clusters import CLUSTER_SESSION
from offsetkeeper.testing.java import java
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.spark import SparkCluster
from sinks import cluster_driver
from sinks.topics import values

LIMIT_S = 480
PARTITIONS, RECORDS, AT_ONCE = 4, 30, 120
SESSION = {
    **CLUSTER_SESSION,
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.stage.maxConsecutiveAttempts": "20",
    "spark.task.maxFailures": "20",
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.executor.cores": "1",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    """A standalone cluster of three workers with a core each, on a host each: Spark speculates only then."""
    with SparkCluster(workers=3, memory="512m", hosts=True) as cluster:
        yield cluster


class Killer:
    """Follows what tasks say of themselves, and kills some of those who run them, in turn executors and workers.

    Args:
        tasks: the file.
        every: how many lines lie between two kills.
    """

    def __init__(self, tasks: Path, every: int) -> None:
        self._tasks, self._every = tasks, every
        self.killed: Counter[str] = Counter()
        self._read = 0

    def looks(self) -> bool:
        """Kill whoever has written the newest line, if it is time to; return True."""
        lines = self.said()
        if len(lines) < self._read + self._every:
            return True
        self._read = len(lines)
        whom = "executor" if self.killed.total() % 2 else "worker"
        with suppress(ProcessLookupError):
            os.kill(lines[-1][whom], signal.SIGKILL)
            self.killed[whom] += 1
        return True

    def said(self) -> list[dict[str, int]]:
        """Return what the tasks have said so far: batch, task, worker and executor."""
        lines = self._tasks.read_text("ascii").splitlines() if self._tasks.exists() else []
        return [*map(json.loads, lines)]


@pytest.mark.parametrize("engine", ["run", "start"])
@pytest.mark.parametrize("executors", [pytest.param("fixed", marks=pytest.mark.soak), "dynamic"])
def test_no_row_is_lost_or_doubled_where_executors_are_killed_while_they_read_and_write(
    engine: str,
    executors: str,
    tmp_path: Path,
    cluster: SparkCluster,
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    database: str,
) -> None:
    sources, target = [topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)], topic(partitions=3)
    wanted = produce(kafka_server, sources)
    with psycopg.connect(database) as connection:
        connection.execute('create table orders (topic text, partition int, "offset" bigint, value text)')
    kinds = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "value": pa.string()}
    Lake.create(str(tmp_path / "lake"), pa.schema(list(kinds.items())))
    given = {
        "engine": engine,
        "folder": str(tmp_path),
        "spark": {**SESSION, **(DYNAMIC if executors == "dynamic" else {}), "spark.master": cluster.url},
        "pipeline": {
            "group": "billing",
            "store": f"sqlite:///{tmp_path}/offsets.db",
            "brokers": kafka_server.bootstrap,
            "topics": sources,
            "max_records": AT_ONCE,
            "attempts": 20,
        },
        "table": database,
        "topic": target,
    }
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java().resolve().parent.parent)}
    command = [sys.executable, cluster_driver.__file__, json.dumps(given)]
    killer = Killer(tmp_path / "tasks", every=4)
    with (tmp_path / "log").open("w+") as log:
        driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            wait_until(lambda: killer.looks() and driver.poll() is not None, "the run ended", LIMIT_S)
        finally:
            driver.kill()
        said, _ = driver.communicate()
        log.seek(0)
        assert driver.returncode == 0, log.read()[-4000:]
    assert int(said) >= len(wanted) // AT_ONCE
    assert min(killer.killed["worker"], killer.killed["executor"]) >= 2, killer.killed
    assert (tmp_path / "twice").exists(), "Spark ran no task twice at once"
    if executors == "dynamic":
        assert {each["task"] for each in killer.said()} == {0, 1, 2}, "more executors could come"
        assert (tmp_path / "came").exists(), "no second executor came while the first one worked"
    found = outputs(tmp_path, database, kafka_server.bootstrap, target)
    assert found == dict.fromkeys(found, wanted)


def produce(server: KafkaServer, topics: list[str]) -> list[str]:
    """Write records to all partitions; return each as text, sorted."""
    places = [(topic, number, offset) for topic in topics for number in range(PARTITIONS) for offset in range(RECORDS)]
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for topic, number, offset in places:
        producer.produce(topic, f"order {offset}", partition=number)
    assert producer.flush(LIMIT_S) == 0
    return sorted(f"{topic} {number} {offset} order {offset}" for topic, number, offset in places)


def outputs(folder: Path, database: str, brokers: str, target: str) -> dict[str, list[str]]:
    """Return what a user finds in each output, sorted."""
    with psycopg.connect(database) as connection:
        rows: list[Any] = connection.execute('select topic, partition, "offset", value from orders').fetchall()
    tables = {
        "lake": Lake(str(folder / "lake")).to_pyarrow_table(),
        "files": dataset.dataset(folder / "files", format="parquet").to_table(),
    }
    found = {name: [tuple(row.values()) for row in each.select(_NAMES).to_pylist()] for name, each in tables.items()}
    texts = {name: sorted(" ".join(map(str, row)) for row in each) for name, each in {**found, "table": rows}.items()}
    return {**texts, "topic": values(brokers, target)}


_NAMES = ["topic", "partition", "offset", "value"]
