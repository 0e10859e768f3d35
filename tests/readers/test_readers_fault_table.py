"""Each fault is the same error for both readers, and for a task on an executor, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

import pytest
from confluent_kafka import Producer

from offsetkeeper import OffsetRange, Pipeline
from offsetkeeper.errors import BrokerUnavailable, OffsetkeeperError, RangeGone, ReadStalled, UnknownTopic
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port
from readers.test_readers_faults import delete_before

MakeTopic = Callable[..., str]
Fill = Callable[..., None]

RECORDS = 5
LIMIT_S = 3.0
WAYS = ["packed", "connector", "task", "compiled task"]
NATIVE = {"task": "never", "compiled task": "required"}
# What goes wrong: the error, and what it says in all three ways.
FAULTS: dict[str, tuple[type[OffsetkeeperError], str]] = {
    "records were deleted": (RangeGone, "Kafka holds 2 up to 5"),
    "past the end": (ReadStalled, "ends? (at 5|past the)"),
    "behind an open transaction": (ReadStalled, "transactions? (is|that are still) open"),
    "no such topic": (UnknownTopic, "no-such-topic: it does not exist"),
    "no such partition": (UnknownTopic, "7: it does not exist"),
    "no broker there": (BrokerUnavailable, "refused"),
    "no such host": (BrokerUnavailable, "resolve"),
    "another protocol": (BrokerUnavailable, "SSL"),
}


def attempt(way: str, brokers: str, wanted: OffsetRange, kafka: dict[str, str]) -> None:
    """Read a range, one way or another; a fault needs no Spark to be found."""
    if way in NATIVE:
        if NATIVE[way] == "required" and find_spec("offsetkeeper_native") is None:
            pytest.skip("no C compiler made it")
        kafka = {**kafka, "offsetkeeper.native": NATIVE[way]}
        source = Source(brokers, kafka, "test", "read_committed", stall_s=LIMIT_S)
        list(read(source, [(*wanted,)]))
        return
    pipeline = Pipeline(
        group="billing",
        store="memory:",
        brokers=brokers,
        topics=[wanted.topic],
        kafka=kafka,
        reader=way,
        retry_timeout_s=LIMIT_S,
    )
    nothing: Any = None
    pipeline.read(nothing, [wanted])


@contextmanager
def open_transaction(server: KafkaServer, topic: str) -> Iterator[None]:
    """Keep a transaction open that has written a record."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "held", partition=0)
    assert producer.flush(30) == 0
    yield
    producer.abort_transaction(30)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_the_same_error_in_each_way(
    way: str, fault: str, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill
) -> None:
    orders, brokers, kafka = topic(), kafka_server.bootstrap, dict[str, str]()
    fill(kafka_server, orders, RECORDS)
    wanted = OffsetRange(orders, 0, 0, RECORDS)
    error, says = FAULTS[fault]
    if fault == "records were deleted":
        delete_before(kafka_server, orders, 2)
    elif fault in {"past the end", "behind an open transaction"}:
        wanted = wanted._replace(end=RECORDS + 1)
    elif fault == "no such topic":
        wanted = wanted._replace(topic="no-such-topic")
    elif fault == "no such partition":
        wanted = wanted._replace(partition=7)
    elif fault == "no broker there":
        brokers = f"127.0.0.1:{free_port()}"
    elif fault == "no such host":
        brokers = "no-such-host.invalid:9092"
    else:
        kafka = {"security.protocol": "ssl"}
    held = open_transaction(kafka_server, orders) if fault == "behind an open transaction" else nullcontext()
    with held, pytest.raises(error, match=f"(?i){says}") as raised:
        attempt(way, brokers, wanted, kafka)
    assert type(raised.value) is error
