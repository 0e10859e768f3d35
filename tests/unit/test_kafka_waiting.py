"""Each code that passes is waited for, at each place that asks Kafka. The clients are made up, so it takes no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
)

from offsetkeeper.clients.url import read_url
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import BrokerUnavailable, UnknownTopic
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.codes import judge
from offsetkeeper.kafka.consumers import Consumers
from offsetkeeper.readers import Source, consume, messages
from offsetkeeper.stores.kafka.clients import Clients
from offsetkeeper.testing.clock import no_waiting

PARTITION = TopicPartition("orders", 0)
CODES = {name: code for name, code in vars(KafkaError).items() if isinstance(code, int)}
PASSING = sorted(name for name in CODES if judge(name).passes)
LOCAL = [name for name in PASSING if name.startswith("_")]
BROKERS = "127.0.0.1:1"  # nobody is asked there


@pytest.fixture(params=PASSING)
def code(request: pytest.FixtureRequest) -> str:
    """Name each code that passes."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def no_pauses() -> Iterator[None]:
    """Let no time pass between two tries."""
    with no_waiting():
        yield


def answer(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def failure(name: str) -> KafkaException:
    return KafkaException(KafkaError(CODES[name]))


def test_a_secret_that_a_client_quotes_is_not_in_the_stores_error() -> None:
    """By the one list of secret settings, which readers and `KafkaCluster` have too."""
    for name in ("sasl.password", "sasl.oauthbearer.config", "ssl.key.pem"):
        clients = Clients(read_url(f"kafka://host:9092?{name}=a-long-secret", (), own=None))
        error = KafkaError(KafkaError._INVALID_ARG, "no good: a-long-secret")
        assert "a-long-secret" not in str(clients.failure(error, "the ledger"))


def one_after_the_other(*values: object) -> Callable[..., dict[Any, Future[Any]]]:
    """Return a request of an admin client that answers with these values, one for each call."""
    left = list(values)
    return lambda asked, **_: dict.fromkeys(getattr(asked, "topics", asked), answer(left.pop(0)))


def topic(*partitions: int) -> Mock:
    described = Mock(topic_id="id", partitions=[Mock(id=number, replicas=[1], isr=[1]) for number in partitions])
    described.name = "orders"
    return described


def described(*partitions: int) -> Mock:
    """Return a request that always answers with a topic that has these partitions."""
    return Mock(side_effect=lambda *_, **__: {"orders": answer(topic(*partitions))})


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    """A cluster whose client is made up."""
    with KafkaCluster(BROKERS, {"log_level": "0"}) as cluster:
        cluster._admin.client = Mock()
        cluster._admin.client.describe_cluster = Mock(side_effect=lambda **_: answer(Mock(cluster_id="one")))
        yield cluster


def test_a_question_about_offsets(cluster: KafkaCluster, code: str) -> None:
    """Also where the client does not see the partition: it is looked for, and it is there."""
    cluster._admin.client.describe_topics = described(0)
    cluster._admin.client.list_offsets = one_after_the_other(
        failure(code), Mock(offset=3), failure(code), Mock(offset=5, leader_epoch=7)
    )
    assert cluster.bounds([PARTITION]) == {PARTITION: Bounds(3, 5, leader_epoch=7)}


def test_a_question_about_topics(cluster: KafkaCluster, code: str) -> None:
    answers = [{"orders": answer(failure(code))}, {"orders": answer(topic(0, 1))}]
    cluster._admin.client.describe_topics = Mock(side_effect=answers)
    assert cluster.describe(["orders"])["orders"].partitions == (0, 1)


def test_a_question_about_the_cluster(cluster: KafkaCluster, code: str) -> None:
    """It is asked beside the topics, and once more where it is not answered."""
    cluster._admin.client.describe_topics = described(0)
    answers = [answer(failure(code)), answer(Mock(cluster_id="one"))]
    cluster._admin.client.describe_cluster = Mock(side_effect=lambda **_: answers.pop(0))
    assert cluster.describe(["orders"])["orders"].cluster_id == "one"
    assert answers == []


def test_a_question_about_settings(cluster: KafkaCluster, code: str) -> None:
    cluster._admin.client.describe_configs = one_after_the_other(failure(code), {"retention.ms": Mock(value="5")})
    assert cluster.settings("topic", ["orders"]) == {"orders": {"retention.ms": "5"}}


def test_a_question_about_brokers(cluster: KafkaCluster, code: str) -> None:
    node = Mock(id=1, host="here", port=9092)
    cluster._admin.client.list_topics = Mock(side_effect=[failure(code), Mock(brokers={1: node})])
    assert cluster.nodes() == {"1": ("here", 9092)}


def test_the_reason_is_told_until_a_question_is_answered(cluster: KafkaCluster) -> None:
    """The client tells why it cannot connect when it tries, and it does not try for each question."""
    cluster._admin._reports.append(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    for _ in range(2):
        cluster._admin.client.list_offsets = one_after_the_other(*[failure("_TIMED_OUT")] * 100)
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            cluster.bounds([PARTITION])


def test_a_question_that_is_never_answered_ends_as_unavailable(cluster: KafkaCluster, code: str) -> None:
    cluster._admin.client.describe_topics = described(0)
    cluster._admin.client.list_offsets = one_after_the_other(*[failure(code)] * 100)
    with pytest.raises(BrokerUnavailable, match="partition orders 0: no answer"):
        cluster.bounds([PARTITION])


def test_an_offset_that_the_client_has_not_set_is_no_answer(cluster: KafkaCluster) -> None:
    """As librdkafka 2.16 gives it where the connection breaks. A -1 is one: no record is of that time, or a later."""
    unset, end = Mock(offset=OFFSET_INVALID), Mock(offset=5)
    cluster._admin.client.list_offsets = one_after_the_other(unset, end, unset, Mock(offset=-1))
    assert cluster.offsets_for_times([PARTITION], 0) == {PARTITION: 5}
    cluster._admin.client.list_offsets = one_after_the_other(end, unset, Mock(offset=0))
    assert cluster.offsets_for_times([PARTITION], 0) == {PARTITION: 0}


@pytest.mark.parametrize("name", ["_NOENT", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"])
def test_a_partition_is_unknown_only_where_the_topic_has_none_of_that_number(cluster: KafkaCluster, name: str) -> None:
    cluster._admin.client.describe_topics = described(0)
    other = TopicPartition("orders", 7)
    cluster._admin.client.list_offsets = one_after_the_other(failure(name))
    with pytest.raises(UnknownTopic, match="partition orders 7: it does not exist"):
        cluster.bounds([other])


def let_consumer_say(monkeypatch: pytest.MonkeyPatch, *those: Message) -> None:
    """Let the reader's consumer say those one after the other."""
    said = list(those)
    consumer = Mock()
    consumer.consume.side_effect = lambda count, _: [said.pop(0)] if said and count == 1 else []
    consumer.list_topics.side_effect = failure("_TRANSPORT")
    monkeypatch.setattr(messages, "open_consumer", Mock(return_value=consumer))


def told(name: str, offset: int = OFFSET_INVALID) -> Message:
    return Message(*PARTITION, offset, error=KafkaError(CODES[name]))


def test_a_reader(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    record = Message(*PARTITION, 0, b"k", b"v", timestamp=(1, 5))
    let_consumer_say(monkeypatch, told(code), record, told(code), told("_PARTITION_EOF", 1))
    source = Source(BROKERS, {"offsetkeeper.native": "never"}, "group", "read_committed")
    assert [row["offset"] for batch in consume.read(source, [(*PARTITION, 0, 1)]) for row in batch.to_pylist()] == [0]


def test_a_reader_of_timestamps(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    consumer = Mock(**{"consume.side_effect": [[told(code)], [Message(*PARTITION, 0, b"k", b"v", timestamp=(1, 5))]]})
    monkeypatch.setattr("confluent_kafka.Consumer", lambda _: consumer)
    with KafkaCluster(BROKERS) as cluster:
        assert cluster.record_timestamps({PARTITION: 0}).times_ms == {PARTITION: 5}


def test_a_consumer_of_the_store(code: str) -> None:
    made = Mock(**{"get_watermark_offsets.side_effect": [failure(code), (0, 3)]})
    make = Mock(return_value=made)
    assert Consumers(make, 30).end("offsetkeeper") == 3
    assert make.call_count == 2


def test_an_admin_client_of_the_store(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """A list that lacks what one broker knows is no answer either."""
    listed = Mock(valid=[Mock(group_id="shop")], errors=[])
    partly = Mock(valid=[], errors=[KafkaError(CODES[code])])
    admin = Mock(**{"list_consumer_groups.side_effect": [answer(failure(code)), answer(partly), answer(listed)]})
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: admin)
    assert Clients(read_url(f"kafka://{BROKERS}", ())).groups() == ["shop"]


@pytest.mark.parametrize(
    ("state", "kind", "has_members"),
    [
        (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC, True),
        (ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupType.CLASSIC, True),
        (ConsumerGroupState.EMPTY, ConsumerGroupType.CONSUMER, False),
        (ConsumerGroupState.UNKNOWN, ConsumerGroupType.CONSUMER, True),  # such as Assigning and Reconciling
        (ConsumerGroupState.UNKNOWN, ConsumerGroupType.UNKNOWN, False),  # an old broker tells none
    ],
)
def test_a_group_has_consumers_by_its_state_in_the_list_of_all(
    monkeypatch: pytest.MonkeyPatch, state: ConsumerGroupState, kind: ConsumerGroupType, *, has_members: bool
) -> None:
    listed = Mock(valid=[Mock(group_id="shop", state=state, type=kind)], errors=[])
    admin = Mock(spec=["list_consumer_groups"], **{"list_consumer_groups.return_value": answer(listed)})
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _: admin)
    clients = Clients(read_url(f"kafka://{BROKERS}", ()))
    monkeypatch.setattr(clients.consumers, "offsets", Mock())
    assert clients.has_members("shop", "t") == has_members
    assert not clients.has_members("other", "t")


def test_the_codes_that_made_runs_end_are_among_them() -> None:
    assert {"_DESTROY_BROKER", "_NODE_UPDATE", "COORDINATOR_LOAD_IN_PROGRESS", "THROTTLING_QUOTA_EXCEEDED"} < {*PASSING}
    assert len(LOCAL) > 20
