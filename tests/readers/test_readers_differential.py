"""Random topics: the packed reader, in Python and compiled, gives what Spark's own connector gives: what was written.

Each seed makes other topics. A test that fails names its seed, and OFFSETKEEPER_SEED=… makes the same topics again.
`make soak` tries more of them, OFFSETKEEPER_THOROUGH times as many.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, its library says so elsewhere
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Isolation
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import open_reader
from offsetkeeper.testing.kafka import KafkaServer
from readers.random_topics import RandomTopics, Row, Written, offsets_held

THOROUGH = int(os.environ.get("OFFSETKEEPER_THOROUGH", "1"))
STEPS = 100
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
READERS: dict[str, tuple[str, dict[str, str]]] = {
    "packed": ("packed", {"offsetkeeper.native": "never"}),
    "compiled": ("packed", {"offsetkeeper.native": "required"}),
    "connector": ("connector", {}),
}
if find_spec("offsetkeeper_native") is None:  # no C compiler made it
    del READERS["compiled"]
Place = tuple[TopicPartition, int]


class Asked(NamedTuple):
    """What all readers are asked for."""

    ranges: list[OffsetRange]
    isolation: Isolation
    split: int | None
    options: dict[str, str]


@pytest.fixture(scope="module")
def random_topics(kafka_server: KafkaServer) -> Iterator[RandomTopics]:
    """Writes topics to the run's broker."""
    found = RandomTopics(kafka_server)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("chunk", "rounds"), [(0, 2), *(pytest.param(n, 20, marks=pytest.mark.soak) for n in range(1, 1 + 3 * THOROUGH))]
)
def test_the_packed_reader_gives_what_sparks_own_connector_gives(
    chunk: int, rounds: int, kafka_server: KafkaServer, random_topics: RandomTopics, spark: SparkSession
) -> None:
    first = int(os.environ.get("OFFSETKEEPER_SEED", secrets.randbelow(10**9))) + chunk * rounds
    records = 0
    for seed in range(first, first + rounds):
        print(f"{records} records compared; now OFFSETKEEPER_SEED={seed}")  # noqa: T201 - shown where the test fails
        with random_topics.written(seed, STEPS) as written:
            records += sum(compare(spark, kafka_server, written, isolation) for isolation in ISOLATIONS)
    print(f"{records} records compared in all")  # noqa: T201 - pytest -rP shows it
    assert records


def test_records_of_the_oldest_format_have_no_time(spark: SparkSession) -> None:
    """Brokers before Kafka 4 may keep them; what the connector gives is a time before 1970."""
    with KafkaServer(release="2.8") as server:
        admin = server.admin()  # kept until it has answered
        made = NewTopic("old", num_partitions=1, config={"message.format.version": "0.9.0"})
        admin.create_topics([made])["old"].result(30)
        with Producer({"bootstrap.servers": server.bootstrap, "log_level": 0}) as producer:
            for value in ("a", "b"):
                producer.produce("old", value)
            assert producer.flush(30) == 0
        asked = Asked([OffsetRange("old", 0, 0, 2)], "read_committed", None, {})
        found = {}
        for name in READERS:
            frame = frame_of(spark, server, name, asked)
            rows = frame.selectExpr("offset", "value", "unix_millis(timestamp) as ms", "timestampType").collect()
            found[name] = [(row.offset, bytes(row.value), row.ms, row.timestampType) for row in rows]
    assert found == {name: [(0, b"a", -1, -1), (1, b"b", -1, -1)] for name in READERS}


def compare(spark: SparkSession, server: KafkaServer, written: Written, isolation: Isolation) -> int:
    """Read random ranges by all readers, and return how many records each of them gave."""
    chance = Random(written.seed)  # noqa: S311 - no secret
    with KafkaCluster(server.bootstrap, isolation=isolation) as cluster:
        bounds = dict(cluster.bounds(written.partitions()))
    wholes = bounds if isolation == "read_uncommitted" else whole(server, bounds)
    while True:
        held = offsets_held(server, wholes)
        ranges = [r for tp, here in bounds.items() for r in some_ranges(chance, tp, here, held[tp])]
        tasks = chance.choice([None, None, 1, 7])
        split = None if tasks is None else 1 + sum(r.size for r in ranges) // tasks
        asked = Asked(ranges, isolation, split, chance.choice([{}, {"fetch.message.max.bytes": "3000"}]))
        packed, *others = (records(frame_of(spark, server, name, asked), name, asked) for name in READERS)
        if held == offsets_held(server, wholes):
            break  # before, the cleaner was still at work
    for name, other in zip([*READERS][1:], others, strict=True):
        assert packed == other, name
        assert name == "connector" or [*packed] == [*other], f"{name} gave them in another order"
    expected = written.inside(asked.ranges, isolation)
    compacted = {*written.partitions(compacted=True)}
    began = {place: row for place, row in expected.items() if bounds[place[0]].beginning <= place[1]}
    assert {at: row for at, row in packed.items() if at[0] not in compacted} == {
        at: row for at, row in began.items() if at[0] not in compacted
    }
    assert {at: expected[at] for at in packed} == packed
    assert (written.last_of_keys() & expected.keys()) <= packed.keys()
    return len(packed)


def whole(server: KafkaServer, bounds: dict[TopicPartition, Bounds]) -> dict[TopicPartition, Bounds]:
    """Return the bounds with what lies behind an open transaction."""
    with KafkaCluster(server.bootstrap, isolation="read_uncommitted") as cluster:
        return dict(cluster.bounds(bounds))


def some_ranges(chance: Random, tp: TopicPartition, here: Bounds, held: list[int]) -> Iterator[OffsetRange]:
    """Yield the whole partition, or stretches of it: between any offsets, and places where no record lies."""
    if chance.random() < 0.3:
        yield OffsetRange(*tp, here.beginning, here.end)
        return
    inside = range(here.beginning, here.end + 1)
    holes = sorted(set(inside) - set(held))
    beside = [at + 1 for at in holes if at < here.end]
    points = [chance.choice(some) for some in (inside, holes, beside) for _ in range(chance.randint(0, 3)) if some]
    for start, end in [*pairwise(sorted(points))][:: chance.choice([1, 2])]:
        yield OffsetRange(*tp, start, end)


def frame_of(spark: SparkSession, server: KafkaServer, name: str, asked: Asked) -> DataFrame:
    """Return the frame that a reader gives."""
    kind, options = READERS[name]
    reader = open_reader(
        kind,
        KafkaCluster(server.bootstrap, {**asked.options, **options}, isolation=asked.isolation),
        group="test",
        headers=True,
        split=asked.split,
        stall_s=20,
    )
    return reader.read(spark, asked.ranges)


def records(frame: DataFrame, name: str, asked: Asked) -> dict[Place, Row]:
    """Return a frame's rows by their places, after a look at their number and order."""
    table: Any = frame.select("*", f.spark_partition_id().alias("task")).toArrow()
    rows: list[Row] = table.to_pylist()
    found = {(TopicPartition(row["topic"], row["partition"]), row["offset"]): row for row in rows}
    assert len(found) == len(rows), f"{name} gave a record twice"
    last: dict[Any, int] = {}
    for row in rows:
        task = row.pop("task")
        unit = row["topic"], row["partition"], None if asked.split is None else task
        assert last.get(unit, -1) < row["offset"], f"{name} gave {unit} in another order"
        last[unit] = row["offset"]
    return found
