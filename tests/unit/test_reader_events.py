"""What a task makes of events that brokers give rarely. Clients are made up, as in `test_kafka_waiting`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message

from offsetkeeper.errors import BrokerError, BrokerUnavailable, NotAuthorized, OffsetkeeperError, RangeGone, ReadStalled
from offsetkeeper.readers import Source, consume, messages
from offsetkeeper.readers.messages import Event, Taken

PARTITION = ("orders", 0)
SOURCE = Source("127.0.0.1:1", {"offsetkeeper.native": "never"}, "group", "read_committed", batch_rows=1)
CODES: dict[str, int] = vars(KafkaError)  # type: ignore[assignment]  # those of its numbers that are asked for


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The consumer of a task; its partition holds 3 records."""
    made = Mock(**{"get_watermark_offsets.return_value": (0, 3)})
    made.list_topics.side_effect = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    monkeypatch.setattr(messages, "open_consumer", Mock(return_value=made))
    return made


def give(consumer: Mock, *those: Message) -> None:
    """Let the consumer give those, one after the other."""
    left = list(those)
    consumer.consume.side_effect = lambda count, _: [left.pop(0)] if left and count == 1 else []


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("_LOG_TRUNCATION", RangeGone, "offsets 0 up to 10 are to be read, but Kafka holds 0 up to 3"),
        ("_BAD_MSG", BrokerError, "partition orders 0: .* failed with _BAD_MSG"),
        ("TOPIC_AUTHORIZATION_FAILED", NotAuthorized, "partition orders 0: .* refuse"),
    ],
)
def test_an_event_that_has_no_offset_is_told_for_what_it_is(
    consumer: Mock,
    headers: bool,  # noqa: FBT001 - pytest passes it by name
    code: str,
    error: type[OffsetkeeperError],
    says: str,
) -> None:
    """As librdkafka tells a cut that it finds while it reads."""
    give(consumer, Message(*PARTITION, OFFSET_INVALID, error=KafkaError(CODES[code])))
    source = Source(SOURCE.brokers, SOURCE.options, "group", "read_committed", headers=headers)
    with pytest.raises(error, match=says):
        list(consume.read(source, [(*PARTITION, 0, 10)]))


class Rest(NamedTuple):
    """What has not come of a range."""

    position: int
    end: int


class Told:
    """A client that tells what it is told to, and then that nothing comes for a minute."""

    def __init__(self, consumer: Mock, taken: Sequence[Taken]) -> None:
        self.unread, self.awaited, self.consumer = {PARTITION: Rest(3, 10)}, PARTITION, Mock(return_value=consumer)
        self._taken: Iterator[Taken] = chain(taken, repeat(taken_after(61)))

    def take(self, _: float) -> Taken:
        """See `Messages`."""
        return next(self._taken)

    def close(self) -> None:
        """See `Messages`."""


def taken_after(waited_s: float, *events: Event, arrived: bool = False) -> Taken:
    """Return what comes without a record."""
    return Taken(None, events, waited_s, arrived)


def test_a_log_that_is_cut_after_a_pause_is_told_as_one_that_is_cut_at_once(
    consumer: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the pause Kafka was asked, and all was well."""
    end: Event = (KafkaError(KafkaError._PARTITION_EOF), PARTITION, 3)
    told = Told(consumer, [taken_after(6), taken_after(0, arrived=True), taken_after(0, end), taken_after(6)])
    monkeypatch.setattr(consume, "open_messages", Mock(return_value=told))
    with pytest.raises(RangeGone, match="offsets 3 up to 10 are to be read, but Kafka holds 0 up to 3"):
        list(consume.read(SOURCE, [(*PARTITION, 3, 10)], epochs={PARTITION: 4}))


@pytest.mark.parametrize(("leader", "error"), [(-1, BrokerUnavailable), (1, ReadStalled)])
def test_a_partition_without_a_leader_is_no_range_past_its_end(
    consumer: Mock, monkeypatch: pytest.MonkeyPatch, leader: int, error: type[OffsetkeeperError]
) -> None:
    """The client waits for a leader, and reports nothing."""
    there = Mock(error=None, partitions={0: Mock(leader=leader), 1: Mock(leader=-1)})
    consumer.list_topics = Mock(return_value=Mock(topics={"orders": there}))
    monkeypatch.setattr(consume, "open_messages", Mock(return_value=Told(consumer, [])))
    with pytest.raises(OffsetkeeperError) as raised:
        list(consume.read(SOURCE, [(*PARTITION, 3, 10)]))
    assert type(raised.value) is error
    assert ("orders 0 has no leader" in str(raised.value)) is (leader < 0)
    assert "orders 0 at 3 of 10" in str(raised.value)


def test_the_cluster_is_asked_again_before_the_last_record_is_given(consumer: Mock) -> None:
    give(consumer, *(Message(*PARTITION, offset, b"k", b"v", timestamp=(1, 5)) for offset in range(2)))
    consumer.list_topics.side_effect = [Mock(cluster_id="A"), Mock(cluster_id="B")]
    batches = consume.read(SOURCE, [(*PARTITION, 0, 2)], cluster_id="A")
    assert next(batches)["offset"].to_pylist() == [0]
    with pytest.raises(RangeGone, match="lead to the Kafka cluster B now, and led to A"):
        next(batches)


def test_a_cluster_that_does_not_answer_is_the_one_that_answered_last(consumer: Mock) -> None:
    """And not an unknown one, which would be let through."""
    give(consumer, *(Message(*PARTITION, offset, b"k", b"v", timestamp=(1, 5)) for offset in range(2)))
    consumer.list_topics.side_effect = [Mock(cluster_id="B"), KafkaException(KafkaError(KafkaError._TIMED_OUT))]
    client = messages.PythonMessages(SOURCE, [(*PARTITION, 0, 2)], Mock())
    assert [client.cluster_id(1), client.cluster_id(1)] == ["B", "B"]
