"""What each test of the engine gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from engines.lab import Lab
from offsetkeeper.testing.kafka import KafkaServer


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Lab:
    """A lab with its store in a SQLite file."""
    return Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db")
