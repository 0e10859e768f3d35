"""What tests of the engine share: a broker to produce to, a Spark session, a store, and what a run has read."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # public, its library says so elsewhere
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Ledger, Pipeline, TopicPartition, open_store
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.engines.loop import Summary
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until

LIMIT_S = 120
QUICK: Mapping[str, Any] = {"group": "group", "poll_interval_s": 0.05, "retry_timeout_s": 20}


@dataclass
class Lab:
    """One test's pipelines, all of one group unless it says otherwise.

    Attributes:
        spark, kafka: of the whole test run.
        store: URL of the store.
        values: what `keep` has got, in the order of the topic within each batch.
        batches: that `keep` was called with.
    """

    spark: SparkSession
    kafka: KafkaServer
    store: str
    values: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    def pipeline(self, *topics: str, **settings: Any) -> Pipeline:
        """Return a pipeline with short waits."""
        given: Mapping[str, Any] = {"store": self.store, "brokers": self.kafka.bootstrap, "topics": topics}
        return Pipeline(**{**QUICK, **given, **settings})

    def keep(self, frame: DataFrame, batch: Batch) -> None:
        """Keep what is in the frame: the function of a pipeline."""
        rows = frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value").collect()
        self.values += [row["value"] for row in sorted(rows)]
        self.batches.append(batch)

    def read(self, *topics: str, offsets: Mapping[TopicPartition, int] | None = None, **settings: Any) -> list[str]:
        """Run a pipeline until it has caught up, and return the values it read."""
        before = len(self.values)
        summary = self.pipeline(*topics, **settings).run(self.spark, self.keep, until="caught_up", offsets=offsets)
        assert summary.ended == "caught_up"
        return self.values[before:]

    def produce(self, topic: str, *values: str | bytes, partition: int = 0, timestamp_ms: int = 0) -> None:
        """Produce records with these values, and return when Kafka has them."""
        self.produce_all(topic, [(partition, value) for value in values], timestamp_ms)

    def produce_all(self, topic: str, records: Sequence[tuple[int, str | bytes]], timestamp_ms: int = 0) -> None:
        """Produce records to these partitions with these values, and return when Kafka has them."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        errors: list[Any] = []
        for partition, value in records:
            producer.produce(
                topic,
                value,
                partition=partition,
                timestamp=timestamp_ms,
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(LIMIT_S) == 0
        assert not any(errors)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete what retention would: the records before an offset."""
        admin = self.kafka.admin()  # kept until it has answered
        [deleted] = admin.delete_records([KafkaPartition(topic, partition, before)]).values()
        deleted.result(LIMIT_S)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        admin = self.kafka.admin()  # kept until it has answered
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(LIMIT_S)
        # The controller has them; the broker hears of them afterwards, and until then a producer drops their records.
        wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == partitions, "they came", LIMIT_S)

    def recreate(self, topic: str, partitions: int = 1) -> None:
        """Delete a topic and make it again under its name."""
        self.kafka.delete_topic(topic)
        self.kafka.create_topic(topic, partitions)

    @contextmanager
    def ledger(self, store: str = "", group: str = "group") -> Iterator[Ledger]:
        """Lend the group's ledger, loaded, as an operator has it."""
        with closing(open_store(store or self.store)) as opened:
            ledger = Ledger(opened, group, retry_timeout_s=20)
            ledger.load()
            yield ledger

    def snapshot(self, store: str = "") -> Snapshot:
        """Return the group's ledger as it is stored."""
        with self.ledger(store) as ledger:
            return ledger.snapshot

    def history(self, store: str = "") -> Sequence[Entry]:
        """Return the group's history, oldest first."""
        with self.ledger(store) as ledger:
            return ledger.history(1000)[::-1]

    def events(self, store: str = "") -> list[str]:
        """Return the names of the changes in the group's history, oldest first."""
        return [entry.event for entry in self.history(store)]

    def token(self) -> str:
        """Return the token of the newest batch in the group's history."""
        return next(entry.token for entry in reversed(self.history()) if entry.token)

    def offsets(self) -> dict[int, int]:
        """Return the stored offset of each partition, of a group with one topic."""
        return {tp.partition: position.offset for tp, position in self.snapshot().positions.items()}


class Running:
    """A run in a thread of its own; a context manager at whose end it is stopped, and must end without an error.

    Attributes:
        progressed: set after each batch, cleared by `next_batch`.
        batches: committed so far.
        summary, error: what the run returned, or raised.
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession, process: Any = None, **arguments: Any) -> None:
        self.progressed = threading.Event()
        self.batches: list[Batch] = []
        self._pipeline = pipeline
        self.summary = Summary()
        self.error: BaseException | None = None
        self._arguments = {"spark": spark, "process": process, **arguments}
        self._thread = threading.Thread(target=self._run)

    def next_batch(self) -> Batch:
        """Wait for a batch to be committed since the last call, and return the newest."""
        assert self.progressed.wait(LIMIT_S), f"no batch was committed; the run: {self.error!r}"
        self.progressed.clear()
        return self.batches[-1]

    def end(self) -> Summary:
        """Wait until the run ends by itself, and return its summary or raise its error, once."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the run did not end"
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.summary

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pipeline.stop()
        self._thread.join(LIMIT_S)
        if kind is None:
            self.end()

    def _run(self) -> None:
        try:
            self.summary = self._pipeline.run(**self._arguments, on_batch=self._on_batch)
        except BaseException as error:  # noqa: BLE001 - raised again by `end`
            self.error = error

    def _on_batch(self, progress: Any) -> None:
        self.batches.append(progress.batch)
        self.progressed.set()
