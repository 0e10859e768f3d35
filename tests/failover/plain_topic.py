"""A `Topic` without Spark: the code of its task, in this process."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException

from chaos.driver import Record
from failover.outputs import Rows
from failover.pairs import LIMIT_S
from failover.plain_run import Moments
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.retry import retry
from offsetkeeper.kafka.transactions import Saying, Slot
from offsetkeeper.sinks import Topic
from offsetkeeper.sinks.topic import _Staged, task
from sinks.topics import committed


class PlainTopic(Topic):
    """A value is a record's partition, offset and value.

    Args:
        url: `brokers/topic`.
        moments: see `Moments`.
    """

    def __init__(self, url: str, moments: Moments) -> None:
        super().__init__(*url.split("/"), unclean_elections=True)
        self._moments = moments

    def for_reader_of(self, *_: object) -> PlainTopic:
        """Return this one: a copy is a `Topic`, which writes by Spark."""
        return self

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """None: there are no workers."""
        return ()

    def _stage(self, frame: Any, batch: Batch) -> _Staged:
        return _Staged(frame, frozenset(), batch.lines())

    def _work(self, slot: Slot, saying: Saying | None, frame: Any) -> None:
        assert saying is not None
        records: list[Record] = frame
        values = [json.dumps(record[1:]) for record in records]
        with self._moments.around("land"):
            task.land(slot, saying, self._name, [pa.record_batch({"value": pa.array(values, pa.string())})])
        self._moments.rows += len(records)


def topic_rows(url: str) -> Rows:
    """Return all rows that a reader of committed ones finds."""
    brokers, topic = url.split("/")
    every = retry(KafkaException, LIMIT_S, lambda _: committed(brokers, topic))  # a new leader answers a moment later
    found = [json.loads(each.value or b"") for each in every]
    return [(partition, offset, value) for partition, offset, value in found]
