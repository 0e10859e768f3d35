"""A program that kept its offsets in Redis is replaced by a pipeline, and comes back: docs/migrate-dstreams.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from docs.pages import ROOT, blocks
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.redis import RedisServer
from stores.migrating import ENDS, LATER, LEFT, MORE, Switch, commands


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


def test_a_hash_of_another_layout_goes_into_another_store_and_is_written_back(
    redis_server: RedisServer,
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the blocks of the page. Without the way back the old program would write its rows a second time."""
    monkeypatch.chdir(tmp_path)
    switch = Switch(spark, kafka_server, topic(2), tmp_path, database)
    names: dict[str, Any] = {}

    def run_block(word: str) -> None:
        [block] = [block for block in blocks(ROOT / "docs" / switch.page) if word in block]
        code = block.replace("redis://localhost:6379/0", redis_server.url())
        exec(re.sub(r"\borders\b", switch.topic, code), names)  # noqa: S102 - what is under test

    def read() -> dict[int, int]:
        found = {field.partition(":"): int(offset) for field, offset in client.hgetall(place).items()}
        assert {name for name, *_ in found} == {switch.topic}
        return {int(number): offset for (*_, number), offset in found.items()}

    def write(offsets: Mapping[int, int]) -> None:
        client.hset(place, mapping={f"{switch.topic}:{number}": offset for number, offset in offsets.items()})

    place = f"offsets:{switch.topic}"
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        switch.begin()
        write(LEFT)
        run_block("hgetall")
        switch.follow("shows it")
        assert "2 resume" in switch.run("offsetkeeper plan shop")
        switch.run_pipeline()
        switch.check_output(ENDS)
        oldest = switch.run("offsetkeeper history shop").splitlines()[-1]
        assert "rewind" in oldest
        assert f"{switch.topic} 0 - → {LEFT[0]}" in oldest
        assert read() == LEFT, "nobody has told the old program"
        [export] = commands(switch.page, "--export")
        command, _, file = export.partition(" > ")
        (tmp_path / file.strip()).write_text(switch.run(command), "utf-8")
        run_block("hset")
        assert read() == ENDS
        switch.old_program_goes_on(read, write)
        run_block("hgetall")
        switch.follow("the old program went on")
        switch.produce(LATER, MORE)
        switch.run_pipeline()
        switch.check_output(LATER)
