"""What tests of readers share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from fixtures.implementations import implementations
from offsetkeeper.readers import Source
from offsetkeeper.testing.kafka import KafkaServer


@pytest.fixture
def own_server() -> Iterator[KafkaServer]:
    """A broker that the test may kill."""
    with KafkaServer() as server:
        yield server


@pytest.fixture
def fill() -> Callable[..., None]:
    """`fill(server, topic, count, size=100, partition=0)` writes records, all alike."""

    def write(server: KafkaServer, topic: str, count: int, size: int = 100, partition: int = 0) -> None:
        settings: dict[str, Any] = {
            "message.max.bytes": 2**26,
            "queue.buffering.max.kbytes": 2**18,
            "queue.buffering.max.messages": 10**6,
            "log_level": 0,
        }
        with Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5, **settings}) as producer:
            value = b"v" * size
            for _ in range(count):
                while len(producer) * size > 2**26:
                    producer.poll(0.01)
                producer.produce(topic, value, partition=partition)
            assert producer.flush(60) == 0

    return write


@pytest.fixture(params=implementations("offsetkeeper_native"))
def implementation(request: pytest.FixtureRequest) -> dict[str, str]:
    """The setting that takes one of the two readers of a task."""
    found: dict[str, str] = request.param
    return found


@pytest.fixture
def source_of(implementation: dict[str, str]) -> Callable[..., Source]:
    """`source_of(server, options=None, **more)` is a source that reads the server's records."""

    def make(server: KafkaServer, options: dict[str, str] | None = None, **more: Any) -> Source:
        given = {**implementation, **(options or {})}
        return Source(server.bootstrap, given, "offsetkeeper-test", "read_committed", **more)

    return make
