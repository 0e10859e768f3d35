"""What tests of `Topic` share: what a reader of committed records finds, and landers by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.kafka.clients import NO_OPTIONS
from offsetkeeper.kafka.producers import Rows, columns
from offsetkeeper.kafka.transactions import Saying, Slot, Turn
from offsetkeeper.sinks import Lander, MarkKey, Topic
from offsetkeeper.stores.memory import MemoryStore

KEY = MarkKey("billing", "")
LIMIT_S = 60.0


class Found(NamedTuple):
    """A record, as a reader finds it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]] | None


def committed(brokers: str, topic: str) -> list[Found]:
    """Return all records of a topic that a reader of committed ones finds, those of a partition in order.

    A commit is durable before it shows: it waits until no transaction is open.
    """
    settings: Mapping[str, Any] = {
        "bootstrap.servers": brokers,
        "group.id": "reader",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,
        "log_level": 0,
    }
    with closing(Consumer({**settings, "isolation.level": "read_uncommitted"})) as consumer:
        parts = [
            TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, LIMIT_S).topics[topic].partitions
        ]
        ends = {each.partition: _end(consumer, each) for each in parts}
    found: list[Found] = []
    with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
        consumer.assign(parts)
        while ends:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"transactions stayed open in partitions {list(ends)} of {topic}"
            number, error = message.partition(), message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                if number in ends and (message.offset() or 0) >= ends[number]:
                    del ends[number]
                continue
            fields: Any = (number, message.key(), message.value(), message.timestamp()[1], message.headers())
            found.append(Found(*fields))
    return found


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    bounds = consumer.get_watermark_offsets(partition, LIMIT_S)
    assert bounds is not None
    return bounds[1]


def values(brokers: str, topic: str) -> list[str]:
    """Return the values as texts, sorted."""
    return sorted((each.value or b"").decode() for each in committed(brokers, topic))


def lander(sink: Topic) -> Lander:
    """Return the sink's lander."""
    return sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)


def mark(sequence: int) -> OutputMark:
    """Return a mark."""
    return OutputMark(sequence, "token", f"{sequence:016x}")


def slot(
    brokers: str,
    topic: str,
    key: MarkKey = KEY,
    *,
    timeout_s: float = 10.0,
    options: Mapping[str, str] = NO_OPTIONS,
    **kafka: str,
) -> Slot:
    """Return the slot that the sink has for a group and output; options, or those with underscores for dots."""
    given = {**options, **{name.replace("_", "."): value for name, value in kafka.items()}}
    return Topic(brokers, topic, kafka=given, timeout_s=timeout_s)._slot(key)


class StepTurn(Turn):
    """A producer that calls a function at a step, once.

    Attributes:
        at: the step: "taken", "writing", "flushed", "said" (all but the commit is done).
        call: what is called.
    """

    at: str = ""
    call: Callable[[], object] = staticmethod(lambda: None)

    def step(self, name: str) -> None:
        """Call it, if this is the step."""
        if name == self.at:
            self.call()

    def write(self, messages: Iterable[Rows], saying: Saying, agree: Callable[[], object] = lambda: None) -> None:
        """See `Turn.write`."""
        self.step("taken")
        super().write(messages, saying, agree)

    def _flush(self) -> None:
        super()._flush()
        self.step("flushed")

    def _say(self, saying: Saying) -> None:
        super()._say(saying)
        self.step("said")


def write(
    at: Slot, before: OutputMark | None, after: OutputMark, texts: Iterable[str], step: str = "", call: Any = None
) -> None:
    """Write values and a mark, if the mark before is as told, as a task does; `call` is called at a step."""
    turn = StepTurn(at)
    turn.at, turn.call = step, call

    def messages() -> Iterator[Rows]:
        for number, text in enumerate(texts):
            row = {"topic": 0, "partition": -1, "timestamp": 0, "value": text.encode()}
            yield Rows([at.topic], pa.RecordBatch.from_pylist([row], columns()))
            if number == 0 and step == "writing":
                turn._flush()
                turn.step("writing")

    found = turn.take()
    assert found == (None if before is None else str(before))
    turn.write(messages(), Saying(found, after.sequence, str(after)))


def said(at: Slot) -> OutputMark | None:
    """Return the mark."""
    text = at.said()
    return None if text is None else OutputMark.parse(text)
