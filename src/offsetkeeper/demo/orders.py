"""The orders of the demo: their topics, their table, and the producer."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.demo.poison import Bad, Letter
from offsetkeeper.testing.errors import ServerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.core.batch import Batch

TOPICS: Mapping[str, int] = {"orders.eu": 3, "orders.us": 2}
GROWS = "orders.eu"
TABLE = "orders"
CREATE = f"""create table {TABLE} (
    topic text not null, partition integer not null, "offset" bigint not null,
    id bigint not null, amount bigint not null check (amount > 0), customer text not null
)"""
SELECT = f'select topic, partition, "offset", id, amount, customer from {TABLE}'  # noqa: S608 - a constant


class Order(NamedTuple):
    """One order, and its place in Kafka."""

    topic: str
    partition: int
    offset: int
    id: int
    amount: int
    customer: str


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns from Kafka's: the pipeline's only processing. The table refuses what is no order."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - the demo's parent process needs no Spark

    order = f.from_json(f.col("value").cast("string"), "id long, amount long")
    customer = f.col("key").cast("string").alias("customer")
    return frame.select(
        "topic", "partition", "offset", order["id"].alias("id"), order["amount"].alias("amount"), customer
    )


def checked(frame: DataFrame, batch: Batch) -> DataFrame:
    """Return the same; a record that is no order fails here. For outputs that would take it."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    text = "decode(cast(customer as binary), 'UTF-8')"  # releases of Spark refuse what is not UTF-8, or replace it
    fits = f"id is not null and coalesce(amount > 0, false) and not contains({text}, '\ufffd')"
    return parse(frame, batch).withColumn("id", f.expr(f"if({fits}, id, raise_error('this is no order'))"))


class Producer(threading.Thread):
    """Produces orders at a steady rate until `finish`, and keeps the acknowledged orders.

    Args:
        brokers: brokers of the cluster.
        rate: orders in a second.
        bad: bad orders, and the numbers of the orders behind which they are produced.
        seed: seed of topics and amounts.

    Attributes:
        acknowledged: every order that Kafka has, with its offset.
        letters: every bad order that Kafka has, by what is wrong with it.
        failed: errors.
    """

    def __init__(self, brokers: str, rate: int, bad: Iterable[tuple[int, Bad]] = (), *, seed: int = 1) -> None:
        super().__init__(name="producer", daemon=True)
        self.acknowledged: list[Order] = []
        self.letters: dict[str, list[Letter]] = defaultdict(list)
        self.failed: list[str] = []
        self._brokers, self._rate, self._bad = brokers, rate, iter(bad)
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
            number, bad = 0, next(self._bad, None)
            while not self._done.wait(0.1):
                for _ in range(max(1, self._rate // 10)):
                    number += 1
                    self._produce(producer, number)
                    if bad is not None and bad[0] == number:
                        self._spoil(producer, bad[1])
                        bad = next(self._bad, None)
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
        amount, customer = self._random.randrange(1, 100_000), f"customer {self._random.randrange(1000)}"

        def acknowledge(topic: str, partition: int, offset: int) -> None:
            self.acknowledged.append(Order(topic, partition, offset, number, amount, customer))

        self._send(producer, topic, customer, json.dumps({"id": number, "amount": amount}), acknowledge)

    def _spoil(self, producer: Any, bad: Bad) -> None:
        def acknowledge(topic: str, partition: int, offset: int) -> None:
            self.letters[bad.kind].append(Letter(topic, partition, offset, bad.key, bad.value))

        self._send(producer, self._random.choice(list(TOPICS)), bad.key, bad.value, acknowledge, bad.time_ms)

    def _send(
        self,
        producer: Any,
        topic: str,
        key: str | bytes,
        value: str | bytes,
        acknowledge: Callable[[str, int, int], None],
        time_ms: int = 0,
    ) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                acknowledge(message.topic(), message.partition(), message.offset())

        producer.produce(topic, value, key=key, timestamp=time_ms, on_delivery=on_delivery)


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


def ends(produced: Iterable[Order | Letter]) -> dict[TopicPartition, int]:
    """Return the offset after the last record of each partition."""
    found: dict[TopicPartition, int] = {}
    for each in produced:
        tp = TopicPartition(each.topic, each.partition)
        found[tp] = max(found.get(tp, 0), each.offset + 1)
    return found
