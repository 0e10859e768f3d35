"""A few lives of pipelines, drawn by chance once and the same each time: every row is counted.

`make swarm` draws others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from swarm.draw import draw
from swarm.trial import Machine


@pytest.mark.parametrize("seed", [3, 21, 27, 29, 41])  # most acts, and nothing that takes ten seconds
def test_no_record_is_lost_doubled_or_changed(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path, seed: int
) -> None:
    result = Machine(spark, kafka_server, tmp_path).tried(draw(seed))
    assert result.finding is None, str(result)
