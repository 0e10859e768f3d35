"""What each test of the engine gets."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engines.lab import Lab
from engines.misfits import LETTERS
from offsetkeeper.testing.kafka import KafkaServer


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Lab:
    """A lab with its store in a SQLite file."""
    return Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db")


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Callable[[str], list[Any]]]:
    """`tables(sql)` asks a database that has the tables `orders` and `letters`."""
    with closing(sqlite3.connect(tmp_path / "offsets.db", isolation_level=None)) as connection:
        connection.execute('create table orders (topic text, "partition" int, "offset" int, value int)')
        connection.execute(LETTERS)
        yield lambda sql: connection.execute(sql).fetchall()


@pytest.fixture(autouse=True)
def is_traced(traces: Path) -> Path:
    """Let each test write traces, which are checked at its end."""
    return traces
