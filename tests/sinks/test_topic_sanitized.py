"""The compiled producer built with ASan and UBSan: random rows, queues that are full, memory that runs out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fixtures.sanitized import check, needs_gcc
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import committed

pytestmark = [pytest.mark.soak, needs_gcc]
NewTopic = Callable[..., str]

# Runs under the sanitizers; what they say goes to stderr.
CHILD = """
import json, sys
from random import Random
import pyarrow as pa
import offsetkeeper_native
from offsetkeeper_native.producer import library
from offsetkeeper.errors import MarkMoved, RowMismatch, SinkError
from offsetkeeper.kafka.transactions import Saying, Turn
from offsetkeeper.sinks import MarkKey, Topic
from offsetkeeper.sinks.topic import task
brokers, topics, what = sys.argv[1], sys.argv[2:4], json.loads(sys.argv[4])
assert offsetkeeper_native.__file__.startswith(what["folder"]), offsetkeeper_native.__file__
chance = Random(what["seed"])

def slot(native, name, **more):
    options = {"offsetkeeper.native": native, **more}
    return Topic(brokers, topics[0], kafka=options, timeout_s=10)._slot(MarkKey(name, ""))

def some(sizes):
    return chance.choice([None, b"", chance.randbytes(chance.choice(sizes))])

def rows(count):
    keys = ["", "k", "schl\\u00fcssel"]
    pairs = lambda: [{"key": chance.choice(keys), "value": some([1, 99])} for _ in range(chance.randrange(4))]
    columns = {
        "key": pa.array([some([3, 40]) for _ in range(count)], pa.binary()),
        "value": pa.array([some([1, 100, 9000]) for _ in range(count)], pa.binary()),
        "headers": pa.array(
            [chance.choice([None, [], pairs()]) for _ in range(count)],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
        "partition": pa.array([chance.randrange(2) for _ in range(count)], pa.int32()),
        "timestamp": pa.array(
            [chance.choice([None, what["now"] + number * 1000]) for number in range(count)], pa.timestamp("us", "UTC")
        ),
    }
    chosen = [name for name in columns if name in {"value", "partition"} or chance.random() < 0.7]
    made = pa.record_batch({name: columns[name] for name in chosen})
    start = chance.randrange(count)  # so that offsets are not 0
    return made.slice(start, chance.randrange(count - start + 1))

def land(native, number, batches, name="shop", **more):
    at = slot(native, name, **more)
    before = at.said()
    where = [pa.array([topics[native == "never"]] * batch.num_rows, pa.string()) for batch in batches]
    rows = [batch.append_column("topic", each) for batch, each in zip(batches, where)]
    task.land(at, Saying(before, number, f"{number} mark"), None, rows)

for number in range(1, what["rounds"] + 1):
    batches = [rows(chance.choice([1, 7, 300])) for _ in range(4)]
    more = chance.choice([{}, {"queue.buffering.max.messages": "5"}, {"queue.buffering.max.kbytes": "20"}])
    for native in ("required", "never"):
        land(native, number, batches, native, **more)

large = pa.record_batch({"value": [b"v" * 5000], "headers": [[("k", b"v")]]}, schema=pa.schema(
    [("value", pa.binary()), ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))]))
for more in ({"message.max.bytes": "1000"}, {"queue.buffering.max.kbytes": "1"}):
    try:
        land("required", 1, [large], "large", **more)
        raise AssertionError("a row that is too large")
    except RowMismatch:
        pass

older, newer = (Turn(slot("required", "fenced")) for _ in range(2))
older.take()
def overtaken():
    yield from task.messages([rows(50)], topics[0], lambda _: 2)
    newer.take()
    yield from task.messages([rows(50)], topics[0], lambda _: 2)
try:
    older.write(overtaken(), Saying(None, 1, "1"))
    raise AssertionError("it was fenced")
except MarkMoved:
    pass
del older, newer
left = Turn(slot("required", "left"))
left.take()
left._producer.begin_transaction()
left._producer.send(*next(task.messages([rows(300)], topics[0], lambda _: 2)), print)
del left  # with messages that wait

failures = 0
for number in range(1, what["failures"]):
    library().ours.fail_at(number)
    try:
        turn = Turn(slot("required", "failing"))
        turn._producer._topic(topics[0])
    except Exception as error:
        assert isinstance(error, MemoryError) or "no memory" in str(error), repr(error)
        failures += 1
    library().ours.fail_at(0)
assert failures == 2, failures  # the producer, and the table of its topics
print("all is well")
"""


@pytest.mark.parametrize("seed", range(3))
def test_no_sanitizer_finds_anything_and_both_producers_write_the_same(
    seed: int, sanitized: Path, kafka_server: KafkaServer, topic: NewTopic
) -> None:
    topics = topic(2), topic(2)
    began_ms = int(datetime.now(UTC).timestamp()) * 1000
    what = {"seed": seed, "rounds": 12, "failures": 6, "now": (began_ms - 3_600_000) * 1000}
    check(sanitized, CHILD, kafka_server.bootstrap, *topics, **what)
    compiled, python = (committed(kafka_server.bootstrap, each) for each in topics)
    assert len(compiled) > 100
    for ours, theirs in zip(compiled, python, strict=True):
        if ours.timestamp_ms >= began_ms <= theirs.timestamp_ms:  # of a row without one
            theirs = theirs._replace(timestamp_ms=ours.timestamp_ms)  # noqa: PLW2901
        assert ours == theirs
