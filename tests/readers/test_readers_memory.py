"""A task's memory does not grow with how many records it reads, and little with how small they were packed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from offsetkeeper.testing.kafka import KafkaServer

MakeTopic = Callable[..., str]
Fill = Callable[..., None]

READ = """
import json, re, sys
from pathlib import Path
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
brokers, topic, end, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
source = Source(brokers, options, "offsetkeeper-test", "read_committed")
rows = sum(batch.num_rows for batch in read(source, [(topic, 0, 0, end)]))
assert rows == end, rows
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_kb(server: KafkaServer, topic: str, end: int, implementation: dict[str, str], **options: str) -> int:
    """Return the largest resident size, in KB, of a process that reads the first `end` records as a task would.

    Not as getrusage(2) tells it, which is never less than what this process had when it started that one.
    """
    given = {name.replace("_", "."): value for name, value in options.items()}
    command = [sys.executable, "-c", READ, server.bootstrap, topic, str(end), json.dumps({**given, **implementation})]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize(("count", "size"), [(100_000, 100), (5, 8 * 2**20)])
def test_ten_times_the_records_take_about_the_same_memory(
    count: int, size: int, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, implementation: dict[str, str]
) -> None:
    orders = topic(config={"max.message.bytes": str(2**26)})
    fill(kafka_server, orders, 10 * count, size)
    few, many = (peak_kb(kafka_server, orders, end, implementation) for end in (count, 10 * count))
    assert many <= 1.3 * few, f"{few} KB for {count} records of {size} bytes, {many} KB for ten times as many"


def produce(server: KafkaServer, topic: str, values: list[bytes], **settings: Any) -> None:
    """Write records to a partition."""
    given = {"message.max.bytes": 2**27, "queue.buffering.max.kbytes": 2**19, "linger.ms": 20, **settings}
    with Producer({"bootstrap.servers": server.bootstrap, **given}) as producer:
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0


def test_one_large_record_is_not_copied_into_arrow(
    kafka_server: KafkaServer, topic: MakeTopic, implementation: dict[str, str]
) -> None:
    """The client holds it as it came, and Python or Arrow once more.

    Measured, in MB: with a small record Python takes 129 and the compiled reader 81, with the large one 190 and 198.
    """
    mb, topics = 60, [topic(config={"max.message.bytes": str(2**27)}) for _ in range(2)]
    for each, value in zip(topics, [b"small", os.urandom(mb * 2**20)], strict=True):
        produce(kafka_server, each, [value])
    small, large = (peak_kb(kafka_server, each, 1, implementation) for each in topics)
    copies = 2.1 if implementation["offsetkeeper.native"] == "required" else 1.5
    assert large - small <= copies * mb * 1024, f"{small} KB without the record of {mb} MB, {large} KB with it"


def test_values_that_are_packed_well_are_fetched_in_small_answers(
    kafka_server: KafkaServer, topic: MakeTopic, implementation: dict[str, str]
) -> None:
    """An answer of one megabyte, which is librdkafka's default, becomes some hundred; its queue counts them later."""
    orders, count, size = topic(), 40_000, 5000
    values = [os.urandom(size // 200) * 200 for _ in range(count)]
    produce(kafka_server, orders, values, **{"compression.type": "zstd"})
    as_it_is = peak_kb(kafka_server, orders, count, implementation)
    large = peak_kb(kafka_server, orders, count, implementation, fetch_message_max_bytes="1048576")
    assert as_it_is <= large - 30 * 1024, f"{as_it_is} KB, with answers of a megabyte {large} KB"


def test_the_smallest_answers_bound_what_is_packed_best(
    kafka_server: KafkaServer, topic: MakeTopic, implementation: dict[str, str]
) -> None:
    """As docs/running.md says."""
    orders, count, size = topic(), 4000, 100_000
    produce(kafka_server, orders, [bytes(size)] * count, **{"compression.type": "zstd"})
    peak = peak_kb(kafka_server, orders, count, implementation, fetch_message_max_bytes="4096")
    assert peak <= 300 * 1024, f"{peak} KB for {count * size // 1000} KB"
