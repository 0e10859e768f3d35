"""What each test of the structured engine gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from structured.lab import StructuredLab


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> StructuredLab:
    """A lab with its store in a SQLite file, and the packed reader."""
    return StructuredLab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db", checkpoint=tmp_path / "checkpoint")


@pytest.fixture(params=["packed", "connector"])
def either(request: pytest.FixtureRequest, lab: StructuredLab) -> StructuredLab:
    """The same with either reader."""
    lab.settings["reader"] = request.param
    return lab
