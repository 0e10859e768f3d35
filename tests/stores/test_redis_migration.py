"""A program that kept its offsets in Redis is replaced by a pipeline, and comes back: docs/migrate-dstreams.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.redis import RedisServer
from stores.migrating import Switch


@pytest.mark.parametrize("key", ["offset:{topic}:{group}", "kafka:{topic}:{topic}:{group}"])
def test_a_program_with_its_offsets_in_redis_is_replaced_and_comes_back(
    key: str,
    redis_server: RedisServer,
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    switch = Switch(spark, kafka_server, topic(2), tmp_path, f"{redis_server.url()}?key={key}")
    place = key.format(topic=switch.topic, group=switch.group)
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        switch.there_and_back(
            lambda: {int(number): int(offset) for number, offset in client.hgetall(place).items()},
            lambda offsets: client.hset(place, mapping={str(number): offset for number, offset in offsets.items()}),
        )
