"""What a task needs to know to read, and the consumer made of it. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsetkeeper.kafka.clients import open_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetkeeper.kafka.clients import Isolation

TUNING = {
    # One second by default: what a consumer waits before it fetches on when its queue was full.
    "fetch.queue.backoff.ms": "5",
    # How long a broker may sit on a request for a partition that has nothing more.
    "fetch.wait.max.ms": "10",
    # They bound the memory of a task. The queue is filled up to so many records (each takes half a kilobyte besides its
    # bytes) or so many bytes, and may then get one more answer, which is as large as the third before it is unpacked.
    "queued.min.messages": "50000",
    "queued.max.messages.kbytes": "32768",
    "fetch.max.bytes": "4194304",
    # How long a topic that a broker does not know is asked for again.
    "topic.metadata.propagation.max.ms": "5000",
    # No record is too large to be received.
    "receive.message.max.bytes": "2147483647",
    # Spark decides when the next batch is wanted.
    "max.poll.interval.ms": "86400000",
}
_FIXED = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
}


@dataclass(frozen=True)
class Source:
    """What a task needs to know to read.

    Attributes:
        brokers: `host:port,host:port,…`.
        options: settings of librdkafka; they win over the reader's tuning.
        group: a label for the brokers' logs and quotas; the group is never joined.
        isolation: read_committed or read_uncommitted.
        headers: whether to deliver the records' headers.
        stall_s: seconds without any progress after which to give up.
        batch_bytes: size of one record batch; only a batch of one record may have more.
        batch_rows: number of rows in one record batch, at most.
    """

    brokers: str
    options: dict[str, str] = field(repr=False)
    group: str
    isolation: Isolation
    headers: bool = False
    stall_s: float = 60
    batch_bytes: int = 8 * 2**20
    batch_rows: int = 10_000


def open_consumer(source: Source, report: Callable[[Any], None]) -> Any:
    """Return a consumer that reads as `source` says. `report` is called with each `KafkaError` beside the messages.

    Raises:
        SettingsError, MissingExtra: see `open_client`.
    """
    settings = _FIXED | {"group.id": source.group, "isolation.level": source.isolation}
    return open_client("Consumer", source.brokers, TUNING | source.options, settings, report)
