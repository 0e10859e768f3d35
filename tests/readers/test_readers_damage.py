"""A bit that has changed on the broker's disk is an error, and no value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from fixtures.damage import flip
from offsetkeeper.errors import BrokerError
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
from offsetkeeper.testing.kafka import KafkaServer

BATCHES = [f"value-{number}-".encode() * 20 for number in range(3)]


@pytest.mark.parametrize("damaged", range(3))
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_bit_that_changed_on_the_brokers_disk_is_an_error_that_names_partition_and_offset(
    kafka_server: KafkaServer, topic: Callable[..., str], source_of: Callable[..., Source], codec: str, damaged: int
) -> None:
    """Without a check the value is read as it is. With it, the client goes on behind the batch that it reports."""
    name = topic()
    with Producer({"bootstrap.servers": kafka_server.bootstrap, "compression.type": codec}) as producer:
        for value in BATCHES:
            producer.produce(name, value, partition=0)
            assert producer.flush(30) == 0
    source = source_of(kafka_server)
    assert sum(batch.num_rows for batch in read(source, [(name, 0, 0, 3)])) == 3
    flip(kafka_server, name, b"-%d-" % damaged)
    found: list[bytes] = []
    with pytest.raises(BrokerError, match=rf"partition {name} 0.*offset {damaged}.*CRC"):
        found += [value for batch in read(source, [(name, 0, 0, 3)]) for value in batch.column("value").to_pylist()]
    assert found == []
    others = [number for number in range(3) if number != damaged]
    whole = [batch.num_rows for number in others for batch in read(source, [(name, 0, number, number + 1)])]
    assert whole == [1, 1], "the others can be read"
