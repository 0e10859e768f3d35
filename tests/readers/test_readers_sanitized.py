"""The compiled reader built with ASan and UBSan: random topics, random limits, memory that runs out at each place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from fixtures.sanitized import check, needs_gcc
from offsetkeeper.testing.kafka import KafkaServer
from readers.test_readers_headers import produce

pytestmark = [pytest.mark.soak, needs_gcc]
MakeTopic = Callable[..., str]

# Runs under the sanitizers; what they say goes to stderr.
CHILD = """
import json, sys
from random import Random
import offsetkeeper_native
from offsetkeeper.readers import flow
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
brokers, topic, what = *sys.argv[1:3], json.loads(sys.argv[3])
ends = what["ends"]
assert offsetkeeper_native.__file__.startswith(what["folder"]), offsetkeeper_native.__file__

def rows(native, headers, some, wanted):
    source = Source(brokers, {"offsetkeeper.native": native}, "test", "read_committed", headers=headers, **some)
    return [row for batch in read(source, wanted) for row in batch.to_pylist()]

library, chance = offsetkeeper_native.library(), Random(what["seed"])
for _ in range(what["rounds"]):
    wanted = []
    for number, end in enumerate(ends):
        start, stop = sorted(chance.choices(range(end + 1), k=2))
        wanted += [(topic, number, start, stop)] if start < stop else []
    some = {"batch_rows": chance.choice([1, 7, 10_000]), "batch_bytes": chance.choice([1, 900, 50_000, 2**23])}
    headers = chance.random() < 0.7
    flow.LIMIT = chance.choice([20_000, 24 * 2**20])
    if wanted:
        assert rows("required", headers, some, wanted) == rows("never", headers, some, wanted), (wanted, some)
one = [(topic, 0, 0, 1)]
past = [(topic, 0, ends[0] + 5, ends[0] + 9)]
for where, wanted in (("localhost:1", one), (brokers, [("nowhere", 0, 0, 1)]), (brokers, past)):
    source = Source(where, {"offsetkeeper.native": "required"}, "test", "read_committed", stall_s=2)
    try:
        raise AssertionError([*read(source, wanted)])
    except OffsetkeeperError:
        pass
source = Source(brokers, {"offsetkeeper.native": "required"}, "test", "read_committed", batch_rows=1)
begun = read(source, [(topic, 0, 0, ends[0])])
next(begun)
begun.close()  # with messages that nobody has looked at
failures = 0
for number in range(1, what["failures"]):
    library.fail_at(number)
    try:
        all_of_them = [(topic, number, 0, end) for number, end in enumerate(ends)]
        assert len(rows("required", True, {"batch_rows": 50}, all_of_them)) == sum(ends)
    except Exception as error:
        assert isinstance(error, MemoryError) or "no memory" in str(error), repr(error)
        failures += 1
    library.fail_at(0)
assert failures > 25, failures
print("all is well")
"""


@pytest.mark.parametrize("seed", range(3))
def test_no_sanitizer_finds_anything(seed: int, sanitized: Path, kafka_server: KafkaServer, topic: MakeTopic) -> None:
    orders, chance = topic(partitions=4), Random(seed)  # noqa: S311 - no secret
    ends = [0] * 4
    with Producer({"bootstrap.servers": kafka_server.bootstrap, "linger.ms": 5}) as producer:
        for _ in range(1000):
            number, size = chance.randrange(4), chance.choice([0, 1, 30, 500, 20_000])
            value, key = chance.choice([None, bytes(size)]), chance.choice([None, b"", b"key"])
            pairs = [(chance.choice(["", "a", "ключ"]), chance.choice([None, b"", b"v" * 99])) for _ in range(size % 4)]
            producer.produce(orders, value, key, partition=number, headers=pairs or None)  # type: ignore[arg-type]
            ends[number] += 1
        assert producer.flush(60) == 0
    check(sanitized, CHILD, kafka_server.bootstrap, orders, ends=ends, seed=seed, rounds=25, failures=120)


def test_odd_keys_of_headers_under_sanitizers(sanitized: Path, kafka_server: KafkaServer, topic: MakeTopic) -> None:
    orders = topic(partitions=1)
    chance = Random(7)  # noqa: S311 - no secret
    keys = [[chance.randbytes(chance.randint(0, 9)) for _ in range(chance.randint(1, 5))] for _ in range(300)]
    produce(kafka_server, orders, *keys)
    child = CHILD.replace('rows("never", headers, some, wanted)', 'rows("required", headers, {}, wanted)')
    check(sanitized, child, kafka_server.bootstrap, orders, ends=[300], seed=7, rounds=25, failures=120)
