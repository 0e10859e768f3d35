"""The same ranges give the same rows in the same order, whichever reader reads them, and whatever arrives first.

Spark takes a frame that is read for determinate, and computes stages again when an executor is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from offsetkeeper.errors import ReadStalled
from offsetkeeper.readers import Source, flow
from offsetkeeper.readers.consume import read
from offsetkeeper.readers.turns import Range
from offsetkeeper.testing.kafka import KafkaServer
from readers.test_readers_holes import COMPACT, cleaner_without_pauses, compacted

MakeTopic = Callable[..., str]
MakeSource = Callable[..., Source]
Fill = Callable[..., None]
Place = tuple[str, int, int]

PARTITIONS = 40
WAYS: dict[str, dict[str, str]] = {"python": {"offsetkeeper.native": "never"}}
if find_spec("offsetkeeper_native") is not None:  # else no C compiler made it
    WAYS["compiled"] = {"offsetkeeper.native": "required"}
FETCHES: dict[str, dict[str, str]] = {
    "as usual": {},
    "little at once": {"fetch.message.max.bytes": "3000"},
    "one after the other": {"fetch.max.bytes": "2000", "fetch.message.max.bytes": "2000", "message.max.bytes": "2000"},
}


@pytest.fixture(scope="module")
def uneven(kafka_server: KafkaServer) -> Iterator[list[Range]]:
    """The ranges of a topic whose partitions are of all sizes, some full of aborted transactions."""
    topic, chance = "uneven", Random(5)  # noqa: S311 - no secret
    kafka_server.create_topic(topic, PARTITIONS)
    ends = [0] * PARTITIONS
    producer = Producer(
        {"bootstrap.servers": kafka_server.bootstrap, "transactional.id": "uneven", "batch.num.messages": 100}
    )
    producer.init_transactions(30)
    for turn in range(4):
        producer.begin_transaction()
        for number in range(PARTITIONS):
            count = 1500 if number == 7 else chance.choice([0, 1, 20, 100, 300])
            for _ in range(count):
                producer.produce(topic, bytes(chance.choice([0, 10, 100])), b"key", partition=number)
            ends[number] += count + (count > 0)  # and the transaction's marker
        assert producer.flush(30) == 0
        if turn % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    producer.close()
    yield [(topic, number, 0, end) for number, end in enumerate(ends) if end]
    kafka_server.delete_topic(topic)


def places(source: Source, ranges: list[Range]) -> list[Place]:
    """Return where the records lie that a task gives, in the order in which it gives them."""
    columns = "topic", "partition", "offset"
    return [place for batch in read(source, ranges) for place in zip(*map(batch.to_pydict().get, columns), strict=True)]


def found_in_all_ways(server: KafkaServer, ranges: list[Range], chance: Random) -> dict[str, list[Place]]:
    """Return what tasks give, read in many ways."""
    found = {}
    for name, options in WAYS.items():
        for fetch, more in FETCHES.items():
            rows, size = chance.choice([(10_000, 2**23), (100, 2**23), (10_000, 5000)])
            source = Source(
                server.bootstrap, options | more, "test", "read_committed", batch_rows=rows, batch_bytes=size
            )
            listed = chance.sample(ranges, len(ranges))
            found[f"{name}, {fetch}, {rows} rows or {size} bytes at once"] = places(source, listed)
    return found


@pytest.mark.parametrize("limit", [flow.LIMIT, 200_000])
def test_rows_come_in_one_order_whoever_reads_and_whatever_arrives_first(
    limit: int, kafka_server: KafkaServer, uneven: list[Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where so little may wait that partitions are paused all the time."""
    monkeypatch.setattr(flow, "LIMIT", limit)
    found = found_in_all_ways(kafka_server, uneven, Random(limit))  # noqa: S311 - no secret
    first = next(iter(found.values()))
    assert len({*first}) == len(first)
    assert len(first) > 2 * 1500
    for name, rows in found.items():
        assert rows == first, name


def test_rows_of_a_compacted_log_come_in_one_order(kafka_server: KafkaServer, topic: MakeTopic, fill: Fill) -> None:
    orders = topic(partitions=3, config=COMPACT)
    cleaner_without_pauses(kafka_server)
    source = Source(kafka_server.bootstrap, {}, "test", "read_committed")
    end = compacted(kafka_server, orders, source)
    others = topic(partitions=2)
    for number in range(2):
        fill(kafka_server, others, 500, partition=number)
    ranges = [(orders, 0, 0, end), (others, 0, 0, 500), (others, 1, 100, 500)]
    while True:
        held = places(source, ranges[:1])
        found = found_in_all_ways(kafka_server, ranges, Random(1))  # noqa: S311 - no secret
        if held == places(source, ranges[:1]):
            break  # before, the cleaner was still at work
    first = next(iter(found.values()))
    assert len(first) == len(held) + 900
    for name, rows in found.items():
        assert rows == first, name


def test_little_waits_for_a_partition_that_hangs_and_it_is_named(
    kafka_server: KafkaServer,
    topic: MakeTopic,
    fill: Fill,
    source_of: MakeSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, totals, change = topic(partitions=4), [0], flow.Flow.change
    fill(kafka_server, orders, 10, partition=2)
    for number in (0, 1, 3):
        fill(kafka_server, orders, 20_000, 1500, number)

    def noted(self: Any, awaited: int | None, arrived: Any, held: Any, total: int) -> Any:
        totals.append(total)
        return change(self, awaited, arrived, held, total)

    monkeypatch.setattr(flow.Flow, "change", noted)
    ranges = [(orders, number, 0, 30_000 if number == 2 else 20_000) for number in range(4)]
    with pytest.raises(ReadStalled, match=rf"Unread: {orders} 2 at 10 of 30000 .the partition ends at 10.; {orders} 0"):
        list(read(source_of(kafka_server, stall_s=4), ranges))
    assert max(totals) <= flow.LIMIT + 8 * 2**20
    assert max(totals) > flow.LIMIT // 2
