"""Checkpoints that Spark has made, to be copied."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from checkpoints.queries import ROCKSDB, Queries, copy
from offsetkeeper.checkpoint import LocalFiles
from offsetkeeper.testing.kafka import KafkaServer


@pytest.fixture(scope="session")
def queries(spark: SparkSession, kafka_server: KafkaServer) -> Queries:
    """Queries over one topic that no test adds to."""
    kafka_server.create_topic("checkpoints", 2)
    found = Queries(spark, kafka_server, "checkpoints")
    found.produce(6)
    return found


@pytest.fixture(scope="session")
def plain(queries: Queries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a query without state: three batches, all committed."""
    path = tmp_path_factory.mktemp("plain") / "checkpoint"
    queries.run(path)
    return path


@pytest.fixture(scope="session")
def counting(queries: Queries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of one that counts, with Spark's default state store."""
    path = tmp_path_factory.mktemp("counting") / "checkpoint"
    queries.run(path, counting=True)
    return path


@pytest.fixture(scope="session")
def rocks(queries: Queries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with RocksDB, and ids of the state in the commits."""
    path = tmp_path_factory.mktemp("rocks") / "checkpoint"
    queries.run(path, counting=True, confs=ROCKSDB)
    return path


@pytest.fixture
def files(plain: Path, tmp_path: Path) -> LocalFiles:
    """A copy of the plain one."""
    return copy(plain, tmp_path / "checkpoint")
