"""Cassandra that is cut off, killed, or away while a batch is written: nothing is committed that is not there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cassandra import OperationTimedOut, Unavailable, WriteTimeout, WriteType
from cassandra.cluster import NoHostAvailable

from engines.lab import Lab
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.errors import MarkAhead, MarkBehind, OutcomeUnknown, SinkError
from offsetkeeper.sinks import Cassandra
from offsetkeeper.sinks.cassandra import landing
from offsetkeeper.sinks.cassandra.connection import translated
from offsetkeeper.sinks.cassandra.session import Session
from offsetkeeper.sinks.cassandra.url import read_place
from offsetkeeper.stores import open_store
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.server import free_port
from sinks.cassandra_tables import KEY, Shop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.testing.kafka import KafkaServer

pytestmark = pytest.mark.xdist_group("test_cassandra")


@pytest.fixture
def proxy(cassandra_shop: Shop) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", cassandra_shop.server.port) as proxy:
        yield proxy


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
def test_a_mark_that_is_cut_off_is_unknown_and_then_looked_up(cassandra_shop: Shop, proxy: TcpProxy, cut: Cut) -> None:
    """Of a first batch, whose mark is an UPDATE; the executors reach the server through the proxy too."""
    shop, batch = cassandra_shop, batch_of(1)
    way = shop.lander(shop.url(port=proxy.port))
    staged, seen = way.stage(shop.frame([("tea", 1.0, "")]), batch), way.seen(KEY)
    with proxy.cut(cut, b"UPDATE "), pytest.raises(OutcomeUnknown, match="may be changed or not"):
        way.land(KEY, seen, OutputMark.of(batch, way.writes_to), staged)
    assert shop.mark() == (None if cut is Cut.REQUEST else OutputMark.of(batch, way.writes_to))
    shop.write(batch, [("tea", 2.0, "")], way=way)
    assert shop.mark() == OutputMark.of(batch, way.writes_to)
    assert shop.orders() == {"tea": [2.0 if cut is Cut.REQUEST else 1.0, ""]}


def test_a_landing_that_is_cut_off_before_its_rows_may_be_tried_again(cassandra_shop: Shop, proxy: TcpProxy) -> None:
    shop, batch = cassandra_shop, batch_of(1)
    way = shop.lander(shop.url(port=proxy.port))
    with proxy.cut(Cut.REPLY, b"IF NOT EXISTS"), pytest.raises(SinkError):
        shop.write(batch, [("tea", 1.0, "")], way=way)
    assert (shop.orders(), shop.mark()) == ({}, None)
    shop.write(batch, [("tea", 2.0, "")], way=way)
    assert (shop.orders(), shop.mark()) == ({"tea": [2.0, ""]}, OutputMark.of(batch, way.writes_to))


def test_a_server_that_is_away_at_the_start_is_said(cassandra_shop: Shop) -> None:
    with pytest.raises(SinkError, match=r"cassandra://127\.0\.0\.1:\d+/\w+ cannot be reached: .*refused"):
        cassandra_shop.lander(cassandra_shop.url(port=free_port()))


def test_what_is_surely_not_done_is_told_from_what_may_be() -> None:
    """Made up, as one node never says most of it. Only what was sent to no node is sure.

    A try of the mark that some replicas have accepted may be finished by whoever comes next, also where the answer is
    that too few of them are left.
    """
    place, _ = read_place("cassandra://localhost/shop")

    def told(error: Exception, *, decides: bool = True) -> type[BaseException]:
        with pytest.raises((SinkError, OutcomeUnknown)) as caught, translated(place, decides=decides):
            raise error
        return caught.type

    unsure = [WriteTimeout("", write_type=WriteType.CAS), Unavailable(""), OperationTimedOut()]
    assert [told(each) for each in unsure] == [OutcomeUnknown] * 3
    assert [told(each, decides=False) for each in unsure] == [SinkError] * 3
    assert told(NoHostAvailable("", {})) is SinkError


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Lab:
    """A lab with its store in a SQLite file."""
    return Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db")


def prices(frame: DataFrame, _: Any) -> DataFrame:
    """Return a row for each record: its value is the item, its offset the price."""
    item = "cast(value as string) as item"
    return frame.selectExpr("topic", "partition", "offset", item, "cast(offset as double) as price", "'' as note")


def test_a_server_killed_between_rows_and_mark_is_not_committed_to(
    cassandra_shop: Shop, lab: Lab, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By kill -9; the next run goes on with the batch, and each key is there as it was last."""
    shop, name = cassandra_shop, topic(2)
    sink = Cassandra(shop.url() + "?timeout=10", "orders", key=["item"])
    write, expected, offsets = landing.write_all, {}, [0, 0]

    def produce(turn: int) -> None:
        records = [(number % 2, f"{'always' if number < 2 else turn} {number}") for number in range(20)]
        lab.produce_all(name, records)
        for partition, item in records:
            expected[item], offsets[partition] = [float(offsets[partition]), ""], offsets[partition] + 1

    def run() -> None:
        pipeline = lab.pipeline(name, attempts=1, retry_timeout_s=1)
        pipeline.run(lab.spark, prices, sink=sink, guarantee="exactly_once", until="caught_up")

    def positions() -> list[int]:
        with closing(open_store(lab.store)) as store:
            return sorted(each.offset for each in store.load("group").positions.values())

    def killed(*arguments: Any) -> Any:
        attempts = write(*arguments)
        shop.server.kill()
        return attempts

    produce(0)
    run()
    produce(1)
    monkeypatch.setattr(landing, "write_all", killed)
    with pytest.raises((SinkError, OutcomeUnknown)):
        run()
    monkeypatch.setattr(landing, "write_all", write)
    with pytest.raises(SinkError, match="cannot be reached"):
        run()
    assert positions() == [10, 10]
    shop.server.restart()
    run()
    with shop.server.session() as shop.session:
        assert shop.orders() == expected
    assert positions() == [20, 20]


def test_marks_and_rows_that_do_not_fit_the_ledger_are_refused_at_the_start(
    cassandra_shop: Shop, lab: Lab, topic: Callable[..., str]
) -> None:
    """A mark row that somebody deletes, and one of a batch that the ledger does not know."""
    shop, name = cassandra_shop, topic(1)
    sink = Cassandra(shop.url(), "orders", key=["item"])

    def run() -> None:
        lab.pipeline(name).run(lab.spark, prices, sink=sink, guarantee="exactly_once", until="caught_up")

    lab.produce(name, "tea")
    run()
    [(mark, at)] = shop.execute("SELECT mark, write_time FROM {}.offsetkeeper_marks")
    shop.execute("DELETE FROM {}.offsetkeeper_marks WHERE group_name = 'group' AND output = ''")
    with pytest.raises(MarkBehind, match="its mark was deleted"):
        run()
    columns = "group_name, output, mark, write_time"
    shop.execute(f"INSERT INTO {{}}.offsetkeeper_marks ({columns}) VALUES ('group', '', '9{mark}', {at})")  # noqa: S608
    with pytest.raises(MarkAhead, match="the store was restored"):
        run()
    assert shop.orders() == {"tea": [0.0, ""]}


def test_a_session_that_is_dropped_is_closed_in_a_thread_that_holds_no_lock() -> None:
    """The garbage collector may drop it in the library's own thread, within a lock that closing takes."""
    closed, held = threading.Event(), threading.Lock()

    class Kept:
        cluster: Any = property(lambda self: self)

        def shutdown(self) -> None:
            with held:
                closed.set()

    session = Session(read_place("cassandra://127.0.0.1:9/shop")[0])
    session._kept.append(Kept())
    with held:
        del session
    assert closed.wait(60)
