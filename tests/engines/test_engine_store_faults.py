"""The store goes away and comes back, and dies between request and reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab, Running
from offsetkeeper import Batch
from offsetkeeper.errors import StoreUnavailable
from offsetkeeper.sinks import Table, Transaction
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.server import free_port

NewTopic = Callable[..., str]
CUTS = [Cut.REPLY, *(pytest.param(each, marks=pytest.mark.soak) for each in (Cut.REQUEST, Cut.MID_REPLY))]
CREATE = 'create table orders (topic text, partition int, "offset" bigint, value text)'


@pytest.fixture
def proxy(lab: Lab, database: str, postgresql_server: PostgreSQLServer) -> Iterator[TcpProxy]:
    """What the lab's store, a PostgreSQL database with a table `orders`, is reached through."""
    with psycopg.connect(database) as connection:
        connection.execute(CREATE)
    with TcpProxy("127.0.0.1", postgresql_server.port) as proxy:
        lab.store = postgresql_server.url(database.rpartition("/")[2], port=proxy.port)
        yield proxy


@contextmanager
def healed_at_a_retry(proxy: TcpProxy) -> Iterator[logging.Handler]:
    """Let the proxy work again as soon as somebody has found out that it does not, and says he will try again."""

    class Healer(logging.Handler):
        """Heals once: the thread that logs may be the one that is to try again."""

        def emit(self, record: logging.LogRecord) -> None:
            if "BrokerUnavailable" not in record.getMessage():  # as while a topic has no leader yet
                retries.removeHandler(self)
                proxy.heal()

    retries, healer = logging.getLogger("offsetkeeper.core.retry"), Healer()
    retries.addHandler(healer)
    yield healer
    healed = healer not in retries.handlers
    retries.removeHandler(healer)
    assert healed, "nobody noticed that the store was away"


def orders(database: str) -> list[str]:
    """Return the values in the table."""
    with closing(psycopg.connect(database)) as connection:
        return [value for (value,) in connection.execute('select value from orders order by "offset"').fetchall()]


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")


def test_a_store_that_is_down_at_start_is_told_once_the_patience_ends(lab: Lab, topic: NewTopic) -> None:
    lab.store = f"postgresql://me@127.0.0.1:{free_port()}/x"
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        lab.read(topic(), retry_timeout_s=0.5)
    assert lab.batches == []


def test_a_store_that_is_away_at_start_for_a_while_is_waited_for(lab: Lab, topic: NewTopic, proxy: TcpProxy) -> None:
    name = topic()
    lab.produce(name, "a")
    proxy.refuse()
    with healed_at_a_retry(proxy):
        assert lab.read(name) == ["a"]


def test_a_table_that_is_away_at_start_for_a_while_is_waited_for(
    lab: Lab, topic: NewTopic, proxy: TcpProxy, database: str
) -> None:
    name = topic()
    lab.produce(name, "a")
    proxy.refuse()
    with healed_at_a_retry(proxy):
        sink = Table(lab.store, "orders")
        lab.pipeline(name).run(lab.spark, parse, sink=sink, guarantee="exactly_once", until="caught_up")
    assert orders(database) == ["a"]


def test_a_store_that_is_away_while_a_batch_is_written_is_waited_for_and_the_batch_not_repeated(
    lab: Lab, topic: NewTopic, proxy: TcpProxy
) -> None:
    name = topic()
    lab.produce(name, "a")

    def keep(frame: DataFrame, batch: Batch) -> None:
        lab.keep(frame, batch)
        proxy.refuse()

    with healed_at_a_retry(proxy):
        lab.pipeline(name).run(lab.spark, keep, until="caught_up")
    assert lab.values == ["a"]
    assert lab.offsets() == {0: 1}


def test_a_store_that_went_away_while_there_was_nothing_to_read_is_waited_for(
    lab: Lab, topic: NewTopic, proxy: TcpProxy
) -> None:
    name = topic()
    lab.produce(name, "a")
    with Running(lab.pipeline(name), lab.spark, lab.keep) as run:
        run.next_batch()
        proxy.refuse()
        with healed_at_a_retry(proxy):
            lab.produce(name, "b")
            run.next_batch()
    assert lab.values == ["a", "b"]


def test_a_store_that_is_away_before_the_transaction_is_waited_for_before_the_batch_is_tried_again(
    lab: Lab, topic: NewTopic, proxy: TcpProxy, database: str
) -> None:
    name = topic()
    lab.produce(name, "a")

    def refuse_and_parse(frame: DataFrame, batch: Batch) -> DataFrame:
        if not batch.retry:
            proxy.refuse()
        return parse(frame, batch)

    pipeline = lab.pipeline(name, attempts=2)
    with healed_at_a_retry(proxy):
        sink = Table(database, "orders")
        pipeline.run(lab.spark, refuse_and_parse, sink=sink, guarantee="exactly_once", until="caught_up")
    assert orders(database) == ["a"]


def test_a_store_that_goes_away_inside_the_transaction_is_waited_for_before_the_batch_is_tried_again(
    lab: Lab, topic: NewTopic, proxy: TcpProxy, database: str
) -> None:
    name = topic()
    lab.produce(name, "a")

    def insert(frame: DataFrame, batch: Batch, connection: Any) -> None:
        for row in parse(frame, batch).collect():
            connection.execute("insert into orders values (%s, %s, %s, %s)", list(row))
        if not batch.retry:
            proxy.refuse()

    pipeline = lab.pipeline(name, attempts=2)
    with healed_at_a_retry(proxy):
        pipeline.run(lab.spark, sink=Transaction(insert), guarantee="exactly_once", until="caught_up")
    assert orders(database) == ["a"]


def test_a_store_that_stays_away_ends_the_run_and_the_next_one_goes_on(
    lab: Lab, topic: NewTopic, proxy: TcpProxy
) -> None:
    name = topic()
    lab.produce(name, "a")

    def keep(frame: DataFrame, batch: Batch) -> None:
        lab.keep(frame, batch)
        proxy.refuse()

    with pytest.raises(StoreUnavailable):
        lab.pipeline(name, retry_timeout_s=5).run(lab.spark, keep, until="caught_up")
    proxy.heal()
    assert lab.read(name) == ["a"]  # again, as at least once allows: the offsets could not be stored
    assert lab.batches[0] == lab.batches[-1]
    assert lab.batches[-1].retry


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize("event", ["acquire", "place", "begin", "commit", "release"])
def test_a_store_that_dies_between_request_and_reply_makes_each_change_once(
    lab: Lab, topic: NewTopic, proxy: TcpProxy, event: str, cut: Cut
) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    with proxy.cut(cut, f'"event":"{event}"'.encode()):
        lab.read(name, max_records=1)
    assert lab.values == ["a", "b"]
    assert lab.events() == ["acquire", "place", "begin", "commit", "begin", "commit", "release"]
    assert [batch.sequence for batch in lab.batches] == [1, 2]


@pytest.mark.parametrize("statement", [b'"event":"commit"', b"COMMIT"], ids=["write", "commit"])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name.lower())
def test_a_store_that_dies_within_the_transaction_commits_it_once(
    lab: Lab, topic: NewTopic, proxy: TcpProxy, database: str, cut: Cut, statement: bytes
) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    sink = Table(database, "orders")
    with proxy.cut(cut, statement):
        pipeline = lab.pipeline(name, max_records=1, attempts=2)
        summary = pipeline.run(lab.spark, parse, sink=sink, guarantee="exactly_once", until="caught_up")
    assert orders(database) == ["a", "b"]
    assert summary.batches == 2
    assert lab.events() == ["acquire", "place", "commit", "commit", "release"]
