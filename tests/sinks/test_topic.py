"""`Topic` keeps what every output with a mark must keep, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.sinks import Topic
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.conformance.landers import Record
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import committed


class TestTopic(LanderConformance):
    """The suite, with a topic of two partitions for each output."""

    server: KafkaServer
    histories = 2

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_server: KafkaServer) -> None:
        type(self).server = kafka_server

    def make(self, name: str) -> None:
        """See `LanderConformance.make`."""
        self.server.create_topic(name, 2)

    def open(self, name: str) -> Topic:
        """See `LanderConformance.open`."""
        return Topic(self.server.bootstrap, name)

    def read(self, name: str) -> Iterable[Record]:
        """See `LanderConformance.read`."""
        return [tuple(json.loads(each.value or b"")) for each in committed(self.server.bootstrap, name)]

    def frame(self, spark: SparkSession, rows: Sequence[Record]) -> DataFrame:
        """See `LanderConformance.frame`."""
        return spark.createDataFrame([(row[1], json.dumps(row)) for row in rows], "key string, value string")
