"""Transactional producers for rows of Arrow: the compiled one, and the one in Python, which do the same.

Executors use it too.
"""

from __future__ import annotations

import logging
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from offsetkeeper.kafka.clients import library, open_producer
from offsetkeeper.kafka.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

log = logging.getLogger("offsetkeeper.producers")
_INTERFACE = 2
# Kafka's own topic, which brokers make for transactional producers. Of a topic of users, the question could make it.
_OF_TRANSACTIONS = "__transaction_state"


class Rows(NamedTuple):
    """Messages to write.

    Attributes:
        topics: names of topics.
        batch: the messages, with the columns of `columns()`: `topic`, its number in `topics`; `partition`, -1 to let
            the partitioner choose; `timestamp`, milliseconds, or 0 for the current time; `key`, `value` and `headers`.
            Only these three may be null, and no key of a header.
    """

    topics: Sequence[str]
    batch: pa.RecordBatch


def columns() -> pa.Schema:
    """Return the schema of `Rows.batch`."""
    import pyarrow as pa  # noqa: PLC0415 - only who writes needs it

    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    numbers = [("topic", pa.int32()), ("partition", pa.int32()), ("timestamp", pa.int64())]
    return pa.schema([*numbers, ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(pair))])


class TransactionalProducer(Protocol):
    """A producer with a transactional id. All methods but `__len__` may raise KafkaException."""

    def __len__(self) -> int:
        """Return how many messages wait to be delivered, or to be told that they were not."""

    def connect(self, wait_s: float, /) -> None:
        """Wait for answers of a broker, on a connection that stays."""

    def send(self, topics: Sequence[str], batch: pa.RecordBatch, wait: Callable[[], object], /) -> None:
        """Hand over `Rows` to be sent; `wait` is called where the queue is full, and the rest is tried again."""

    def poll(self, wait_s: float, /) -> object:
        """Tell what is to be told."""

    def flush(self, wait_s: float, /) -> int:
        """Wait until all is delivered or told; return how many messages still wait."""

    def init_transactions(self, wait_s: float, /) -> None:
        """Take the transactional id."""

    def begin_transaction(self) -> None:
        """Begin."""

    def send_offset_to_transaction(
        self, topic: str, offset: int, texts: Sequence[str], group: str, wait_s: float, /
    ) -> None:
        """Send an offset of the topic's partitions from 0 on, each with its text, for a group."""

    def commit_transaction(self, wait_s: float, /) -> None:
        """Commit."""

    def abort_transaction(self, wait_s: float, /) -> None:
        """Abort."""


def open_transactional(
    brokers: str,
    options: Mapping[str, str],
    name: str,
    report: Callable[[Any], None],
    failed: Callable[[Any], None],
    group: Callable[[], Any],
    *,
    writes: bool = True,
) -> TransactionalProducer:
    """Return a producer: the compiled one where it can be used, else the one in Python.

    Args:
        brokers: see `open_producer`, as for the next ones.
        options: as above.
        name: the transactional id.
        report: as above.
        failed: as above.
        group: returns confluent-kafka's metadata of the group whose offsets it sends.
        writes: whether it gets any rows; otherwise the one in Python does.

    Raises:
        SettingsError, MissingExtra: see `open_client` and `compiled`.
    """
    module = "offsetkeeper_native.producer"
    found = compiled("producer", "writes", module, _INTERFACE, options, log) if writes else None
    if found is None:
        return PythonProducer(open_producer(brokers, options, name, report, failed), group)
    made: TransactionalProducer = open_producer(brokers, options, name, report, failed, make=found.Producer)
    return made


class PythonProducer:
    """See `TransactionalProducer`.

    Args:
        producer: of confluent-kafka.
        group: see `open_transactional`.
    """

    def __init__(self, producer: Any, group: Callable[[], Any]) -> None:
        self._producer, self._group = producer, group
        self.poll, self.flush = producer.poll, producer.flush
        self.init_transactions, self.begin_transaction = producer.init_transactions, producer.begin_transaction
        self.commit_transaction, self.abort_transaction = producer.commit_transaction, producer.abort_transaction

    def __len__(self) -> int:
        """See `TransactionalProducer`."""
        return len(self._producer)

    def connect(self, wait_s: float) -> None:
        """See `TransactionalProducer`.

        The first answer may come by the address that was given, and the client then closes that connection.
        """
        for _ in range(2):
            self._producer.list_topics(_OF_TRANSACTIONS, wait_s)

    def send(self, topics: Sequence[str], batch: pa.RecordBatch, wait: Callable[[], object]) -> None:
        """See `TransactionalProducer`."""
        produce = self._producer.produce
        for topic, partition, timestamp_ms, key, value, headers in zip(*map(_values, batch.columns), strict=True):
            # By position: argument names and an empty list of headers would double the cost of the call.
            asked = (topics[topic], value, key, partition, None, None, timestamp_ms)
            if headers:
                asked = (*asked, [(header["key"], header["value"]) for header in headers])  # type: ignore[assignment]
            while True:
                try:
                    produce(*asked)
                except BufferError:
                    wait()
                else:
                    break

    def send_offset_to_transaction(
        self,
        topic: str,
        offset: int,
        texts: Sequence[str],
        group: str,  # noqa: ARG002 - the protocol's
        wait_s: float,
    ) -> None:
        """See `TransactionalProducer`. Its group is that of the consumer that it was made with."""
        sent = [library().TopicPartition(topic, number, offset, metadata=text) for number, text in enumerate(texts)]
        self._producer.send_offsets_to_transaction(sent, self._group(), wait_s)


def _values(column: pa.Array) -> Iterator[Any]:
    return repeat(None, len(column)) if column.null_count == len(column) else iter(column.to_pylist())
