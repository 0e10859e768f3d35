"""The orders of the demo: their topics, their table, and the producer."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.testing.errors import ServerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.core.batch import Batch

TOPICS: Mapping[str, int] = {"orders.eu": 3, "orders.us": 2}
GROWS = "orders.eu"
TABLE = "orders"
CREATE = f"""create table {TABLE} (
    topic text not null, partition integer not null, "offset" bigint not null,
    id bigint not null, amount bigint not null
)"""
SELECT = f'select topic, partition, "offset", id, amount from {TABLE}'  # noqa: S608 - a constant


class Order(NamedTuple):
    """One order, and its place in Kafka."""

    topic: str
    partition: int
    offset: int
    id: int
    amount: int


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns from Kafka's: the pipeline's only processing."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - the demo's parent process needs no Spark

    order = f.from_json(f.col("value").cast("string"), "id long, amount long")
    return frame.select("topic", "partition", "offset", order["id"].alias("id"), order["amount"].alias("amount"))


class Producer(threading.Thread):
    """Produces orders at a steady rate until `finish`, and keeps the acknowledged orders.

    Attributes:
        acknowledged: every order that Kafka has, with its offset.
    """

    def __init__(self, brokers: str, rate: int, *, seed: int = 1) -> None:
        super().__init__(name="producer", daemon=True)
        self.acknowledged: list[Order] = []
        self.failed: list[str] = []
        self._brokers, self._rate = brokers, rate
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._done = threading.Event()

    def run(self) -> None:
        """Produce a tenth of a second's orders ten times a second."""
        import confluent_kafka  # noqa: PLC0415 - a client library, loaded on use

        settings = {
            "bootstrap.servers": self._brokers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "topic.metadata.refresh.interval.ms": 500,  # to find the partition that is added
            "log_level": 0,
        }
        try:
            producer = confluent_kafka.Producer(settings)
            number = 0
            while not self._done.wait(0.1):
                for _ in range(max(1, self._rate // 10)):
                    number += 1
                    self._produce(producer, number)
                producer.poll(0)
            if left := producer.flush(30):
                self.failed.append(f"{left} orders were not acknowledged")
        except (confluent_kafka.KafkaException, BufferError) as error:
            self.failed.append(str(error))

    def stop(self) -> None:
        """Stop producing."""
        self._done.set()

    def finish(self) -> list[Order]:
        """Stop producing, wait until Kafka has acknowledged all orders, and return them.

        Raises:
            ServerError: Kafka refused an order.
        """
        self.stop()
        self.join()
        if self.failed:
            raise ServerError(f"the producer failed {len(self.failed)} times, first: {self.failed[0]}")
        return self.acknowledged

    def _produce(self, producer: Any, number: int) -> None:
        topic = self._random.choice(list(TOPICS))
        amount = self._random.randrange(1, 100_000)
        producer.produce(
            topic,
            json.dumps({"id": number, "amount": amount}),
            key=str(number),
            on_delivery=self._on_delivery(number, amount),
        )

    def _on_delivery(self, number: int, amount: int) -> Callable[[Any, Any], None]:
        def acknowledge(error: Any, message: Any) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged.append(Order(message.topic(), message.partition(), message.offset(), number, amount))

        return acknowledge


class Verdict(NamedTuple):
    """The comparison of the table with Kafka. `wrong` rows belong to no order, or differ from their order."""

    produced: int
    rows: int
    distinct: int
    lost: int
    doubled: int
    wrong: int

    @property
    def clean(self) -> bool:
        """Whether the table has every order exactly once and unchanged."""
        return not (self.lost or self.doubled or self.wrong)


def compare(produced: list[Order], rows: list[Order]) -> Verdict:
    """Compare the table with the produced orders, record by record."""
    orders = set(produced)
    distinct = set(rows)
    return Verdict(
        produced=len(produced),
        rows=len(rows),
        distinct=len(distinct),
        lost=len({o[:3] for o in orders} - {o[:3] for o in distinct}),
        doubled=len(rows) - len(distinct),
        wrong=len(distinct - orders),
    )


def ends(produced: list[Order]) -> dict[TopicPartition, int]:
    """Return the offset after the last order of each partition."""
    found: dict[TopicPartition, int] = {}
    for order in produced:
        tp = TopicPartition(order.topic, order.partition)
        found[tp] = max(found.get(tp, 0), order.offset + 1)
    return found
