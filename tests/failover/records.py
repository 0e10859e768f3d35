"""The records of a round: what a checker holds the output against."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

LIMIT_S = 60
Place = tuple[int, int]  # partition and offset


class Records:
    """Records in a topic with two partitions.

    Args:
        brokers, topic: where they are.

    Attributes:
        values: by partition and offset, as Kafka has acknowledged them.
    """

    def __init__(self, brokers: str, topic: str) -> None:
        self.brokers, self.topic = brokers, topic
        self.values: dict[Place, str] = {}

    def produce(self, count: int) -> None:
        """Produce so many more, and return when Kafka has them."""
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": "0"})
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error:
                errors.append(error)
            else:
                self.values[message.partition(), message.offset()] = message.value().decode()

        first = len(self.values)
        for number in range(first, first + count):
            producer.produce(self.topic, f"value {number}", partition=number % 2, on_delivery=delivered)
        assert producer.flush(LIMIT_S) == 0
        assert not errors
