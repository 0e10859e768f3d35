"""A consumer that committed its offsets to its group is replaced by a pipeline, and comes back."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from stores.migrating import ENDS, LATER, LEFT, LIMIT_S, MORE, Switch


@pytest.fixture
def switch(spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path) -> Switch:
    """A consumer's group; ledgers of this test are in a topic of their own."""
    name = topic(2)
    url = f"kafka://{kafka_server.bootstrap}?topic={name}-ledgers"
    places = {r"kafka://\S+": url}
    return Switch(spark, kafka_server, name, tmp_path, url, page="migrate-kafka-groups.md", places=places)


def consumer(switch: Switch) -> Consumer:
    """Return a consumer of the group, as the old program had one."""
    return Consumer(
        {"bootstrap.servers": switch.kafka.bootstrap, "group.id": switch.group, "enable.auto.commit": False}
    )


def commit(switch: Switch, offsets: Mapping[int, int]) -> None:
    """Commit offsets for the group."""
    with closing(consumer(switch)) as old:
        old.commit(offsets=[TopicPartition(switch.topic, *each) for each in offsets.items()], asynchronous=False)


def committed(switch: Switch) -> dict[int, int]:
    """Return the group's offsets in Kafka."""
    with closing(consumer(switch)) as old:
        found = old.committed([TopicPartition(switch.topic, number) for number in LEFT], LIMIT_S)
    return {each.partition: each.offset for each in found}


def test_a_program_with_its_offsets_in_kafka_is_replaced_and_comes_back(switch: Switch) -> None:
    switch.there_and_back(lambda: committed(switch), lambda offsets: commit(switch, offsets), copy=True)


def test_into_another_store_and_back(switch: Switch) -> None:
    switch.begin()
    commit(switch, LEFT)
    switch.follow("--store kafka://")
    moved = replace(switch, store=f"sqlite:///{switch.folder}/offsets.db")
    moved.run_pipeline()
    moved.check_output(ENDS)
    moved.follow("--overwrite")
    assert committed(switch) == ENDS
    switch.produce(MORE, ENDS)
    with closing(consumer(switch)) as old:
        old.subscribe([switch.topic])
        found = [old.poll(LIMIT_S) for _ in range(6)]
    values = sorted((message.value() or b"").decode() for message in found if message)
    assert values == sorted(f"{number}/{at}" for number in MORE for at in range(ENDS[number], MORE[number]))


def test_a_group_with_a_slash_and_a_colon_is_taken_over_and_operated(switch: Switch) -> None:
    """Kafka takes any name, and a program that is to be replaced has its group already."""
    group = f"team/sales:v2-{secrets.token_hex(4)}"
    named = replace(switch, group=group)
    named.there_and_back(lambda: committed(named), lambda offsets: commit(named, offsets), copy=True)
    assert f"\n{group}\t" in named.run("offsetkeeper groups")
    named.run("offsetkeeper reset shop --topic orders:0 --to-earliest --execute")
    assert committed(named) == {0: 0, 1: LATER[1]}
    named.run("offsetkeeper forget shop orders:1 --execute")
    shown = named.run("offsetkeeper show shop")
    assert re.search(rf"{named.topic}\t0\t0\b", shown)
    assert not re.search(rf"{named.topic}\t1\t", shown)
