"""Rows that arrive when their transaction is over: a broken connection, and a network that is slow with what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from offsetkeeper import Ledger, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import SinkError
from offsetkeeper.kafka import transactions
from offsetkeeper.kafka.producers import Rows, columns
from offsetkeeper.kafka.transactions import Saying, Slot, Turn
from offsetkeeper.sinks import Topic
from offsetkeeper.testing.held import HeldRequest
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.server import wait_until

TOPIC, VALUE = "orders", b"row one"
NUMBERS = {"topic": 0, "partition": 0, "timestamp": 0}
ROW = Rows(
    [TOPIC], pa.RecordBatch.from_pylist([{**NUMBERS, "key": None, "value": VALUE, "headers": None}], schema=columns())
)
SLOWLY = {"reconnect.backoff.ms": "500", "reconnect.backoff.max.ms": "500"}  # the batch fails before it is back
LIMIT_S = 30.0


@pytest.fixture(scope="module", params=["true", "false"], ids=["verifies", "does not verify"])
def server(request: pytest.FixtureRequest) -> Iterator[KafkaServer]:
    """A broker that verifies that a row's transaction is open; and one that does not, as before Kafka 3.6."""
    with KafkaServer(settings={"transaction.partition.verification.enable": request.param}) as server:
        server.create_topic(TOPIC)
        yield server


def committed(server: KafkaServer) -> list[bytes | None]:
    """Return the values of the rows that a consumer counts."""
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "counts", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values = []
    while (message := consumer.poll(LIMIT_S)) is not None and message.error() is None:
        values.append(message.value())
    assert message is not None, "the end was reached"
    consumer.close()
    return values


def all_ended(server: KafkaServer) -> Callable[[], bool]:
    """Return what tells whether the topic has something, and no open transaction."""
    levels = ("read_committed", "read_uncommitted")
    asked = [{"bootstrap.servers": server.bootstrap, "group.id": "ends", "isolation.level": each} for each in levels]
    consumers = [Consumer({**each, "log_level": 0}) for each in asked]

    def ended() -> bool:
        stable, end = (each.get_watermark_offsets(TopicPartition(TOPIC, 0), LIMIT_S)[1] for each in consumers)
        return bool(end) and stable == end

    return ended


def failing(late: HeldRequest, then: Callable[[], object]) -> Iterator[Rows]:
    """Give a row; fail when it is on its way and the connection that it came by has broken."""
    yield ROW
    late.wait()
    then()
    late.abandon()
    raise SinkError("a later row cannot be made")


def test_a_row_that_arrives_after_its_transaction_was_aborted_is_never_counted(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is written once: not also by the request of the attempt that failed."""
    check_late_row(server, monkeypatch)


def test_a_transaction_whose_rows_nobody_has_acknowledged_is_ended_by_the_next_one(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_ABORT_S", 1.0)
    with server.proxy() as proxy:
        late = fail(server, proxy, lambda: [proxy.cut(Cut.REQUEST, b"row one") for _ in range(100)])
        assert not all_ended(server)()
        late.land()
    assert rows_of_the_next_attempt(server) == [VALUE]


def test_brokers_that_do_not_verify_are_named_by_the_doctor_and_by_the_output(
    server: KafkaServer, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = ["--store", f"sqlite:///{tmp_path}/offsets.db", "--brokers", server.bootstrap, "--topic", TOPIC]
    store = open_store(where[1])
    Ledger(store, "shop").acquire()
    told = CliRunner().invoke(app, ["doctor", "shop", *where, "--output", TOPIC]).stdout
    Topic(server.bootstrap, TOPIC).prepare(store, Guarantee.EXACTLY_ONCE)
    setting = "transaction.partition.verification.enable=false"
    named = f"these brokers do not verify transactions: {server.bootstrap} ({setting})"
    said = [f"warning: {server.bootstrap}: {named}" in told, named in caplog.text]
    assert said == [request.node.callspec.id != "verifies"] * 2


def check_late_row(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a row which arrives after its attempt has failed is not counted, and that of the next attempt once."""
    monkeypatch.setattr(transactions, "_ABORT_S", LIMIT_S)
    with server.proxy() as proxy:
        late = fail(server, proxy)
        wait_until(all_ended(server), "the transaction has ended", LIMIT_S)
        late.land()
    assert rows_of_the_next_attempt(server) == [VALUE]


def fail(server: KafkaServer, proxy: TcpProxy, then: Callable[[], object] = lambda: None) -> HeldRequest:
    """Let an attempt fail; return its row, which is still on its way. `then` is done when it is."""
    server.delete_topic(TOPIC)
    server.create_topic(TOPIC)
    turn = Turn(Slot("shop/", TOPIC, proxy.address, SLOWLY, LIMIT_S))
    before = turn.take()
    late = proxy.keep_back(b"row one")
    with pytest.raises(SinkError, match="a later row"):
        turn.write(failing(late, then), Saying(before, 1, "one"))
    return late


def rows_of_the_next_attempt(server: KafkaServer) -> list[bytes | None]:
    """Let the next attempt write the batch; return what a consumer counts."""
    turn = Turn(Slot("shop/", TOPIC, server.bootstrap, {}, LIMIT_S))
    turn.write([ROW], Saying(turn.take(), 1, "one"))
    return committed(server)
