"""A task's memory does not grow with what it reads."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from offsetkeeper.testing.kafka import KafkaServer

MakeTopic = Callable[..., str]
Fill = Callable[..., None]

READ = """
import re, sys
from pathlib import Path
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
brokers, topic, end = sys.argv[1], sys.argv[2], int(sys.argv[3])
source = Source(brokers, {}, "offsetkeeper-test", "read_committed")
rows = sum(batch.num_rows for batch in read(source, [(topic, 0, 0, end)]))
assert rows == end, rows
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_kb(server: KafkaServer, topic: str, end: int) -> int:
    """Return the largest resident size, in KB, of a process that reads the first `end` records as a task would.

    Not as getrusage(2) tells it, which is never less than what this process had when it started that one.
    """
    command = [sys.executable, "-c", READ, server.bootstrap, topic, str(end)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize(("count", "size"), [(100_000, 100), (5, 8 * 2**20)])
def test_ten_times_the_records_take_about_the_same_memory(
    count: int, size: int, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill
) -> None:
    orders = topic(config={"max.message.bytes": str(2**26)})
    fill(kafka_server, orders, 10 * count, size)
    few, many = (peak_kb(kafka_server, orders, end) for end in (count, 10 * count))
    assert many <= 1.3 * few, f"{few} KB for {count} records of {size} bytes, {many} KB for ten times as many"
