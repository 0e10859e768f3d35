"""What each test of the structured engine gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from structured.lab import StructuredLab


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> StructuredLab:
    """A lab with its store in a SQLite file, and Spark's own source, which starts a second sooner."""
    store = f"sqlite:///{tmp_path}/offsets.db"
    return StructuredLab(
        spark, kafka_server, store, checkpoint=tmp_path / "checkpoint", settings={"reader": "connector"}
    )


@pytest.fixture
def packed(lab: StructuredLab) -> StructuredLab:
    """The same with the packed reader."""
    lab.settings["reader"] = "packed"
    return lab


@pytest.fixture(params=["packed", "connector"])
def either(request: pytest.FixtureRequest, lab: StructuredLab) -> StructuredLab:
    """The same with either reader."""
    lab.settings["reader"] = request.param
    return lab
