"""A name leads to another place than before: a schema that appears, a table that is made again, another cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.databases import connect, do
from engines.lab import Lab
from offsetkeeper.errors import MarkBehind, RangeGone, Refused
from offsetkeeper.sinks import Table
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import TcpProxy

NewTopic = Callable[..., str]
OWN = "create schema authorization current_user"  # by default it comes first in the search path
TABLE = "create table {}records (topic text, part int, place bigint)"


def rows(url: str, table: str = "public.records") -> list[Any]:
    """Return the offsets of the records in a table."""
    with closing(connect(url)) as connection:
        found = connection.execute(f"select place from {table}").fetchall()  # noqa: S608 - ours
        return sorted(place for (place,) in found)


def parse(frame: DataFrame, _: Any) -> DataFrame:
    return frame.selectExpr("topic", "partition as part", "offset as place")


def run(lab: Lab, name: str, url: str, **settings: Any) -> None:
    """Write records into the table, exactly once."""
    given = {"guarantee": "exactly_once", "until": "caught_up", **settings}
    lab.pipeline(name, max_records=2).run(lab.spark, parse, sink=Table(url, "records"), **given)


@pytest.fixture
def shop(postgresql_server: PostgreSQLServer) -> str:
    """URL of a database with a table of records."""
    url = postgresql_server.url(postgresql_server.create_database())
    do(url, TABLE.format("public."))
    return url


@pytest.fixture(params=["by a mark", "in one transaction"])
def name(request: pytest.FixtureRequest, lab: Lab, topic: Callable[..., str], shop: str, database: str) -> str:
    """A topic with four records; the ledger is in another database or in that of the table."""
    lab.store = shop if request.param == "in one transaction" else database
    found = topic(1)
    lab.produce(found, "a", "b", "c", "d")
    return found


def test_a_ledger_that_a_new_schema_hides_is_not_taken_for_no_ledger(lab: Lab, name: str, shop: str) -> None:
    run(lab, name, shop)
    do(lab.store, OWN)
    with pytest.raises(Refused, match=r"has a ledger in schema public, and none in schema \w+.*\?schema=public"):
        run(lab, name, shop)
    lab.store += "?schema=public" if "?" not in lab.store else "&schema=public"
    lab.produce(name, "e")
    run(lab, name, shop)
    assert rows(shop) == [*range(5)]


def test_a_run_lands_its_first_batch_in_the_table_that_it_has_found(lab: Lab, database: str, topic: NewTopic) -> None:
    """An older run may have landed it in the table before, or may still: only a start looks for it anew."""
    name, shop, seen = topic(1), database, list[int]()
    do(shop, TABLE.format("public."))
    lab.produce(name, "a", "b", "c", "d")

    def replaced(frame: DataFrame, batch: Any) -> DataFrame:
        if not seen:
            do(shop, "alter table public.records rename to before", TABLE.format("public."))
        seen.append(1)
        return parse(frame, batch)

    given: dict[str, Any] = {"sink": Table(shop, "records"), "guarantee": "exactly_once", "until": "caught_up"}
    with pytest.raises(MarkBehind, match=r"its first batch is under way: .*its name leads to another one"):
        lab.pipeline(name, max_records=2).run(lab.spark, replaced, **given)
    assert rows(shop) == []
    run(lab, name, shop)
    assert rows(shop) == [*range(4)]


def test_a_table_that_appears_in_an_earlier_schema_in_mid_run_gets_no_rows(lab: Lab, name: str, shop: str) -> None:
    seen: list[int] = []

    def appear(_: Any) -> None:
        seen.append(1)
        if len(seen) == 1:
            do(shop, OWN, TABLE.format(""))

    run(lab, name, shop, on_batch=appear)
    assert len(seen) == 2
    assert rows(shop) == [*range(4)]
    assert rows(shop, "records") == []


@pytest.mark.parametrize("name", ["by a mark"], indirect=True)
@pytest.mark.parametrize("middle", [False, True])
def test_a_table_that_was_made_again_under_its_mark_is_refused(lab: Lab, name: str, shop: str, *, middle: bool) -> None:
    """The marks' table stays, so the mark says that the rows are there."""

    def remake(_: Any = None) -> None:
        do(shop, "drop table records", TABLE.format(""))

    why = "was deleted and made again, or its name leads to another one"
    if middle:
        with pytest.raises(MarkBehind, match=why):
            run(lab, name, shop, on_batch=remake)
    else:
        run(lab, name, shop)
        remake()
        with pytest.raises(MarkBehind, match=why):
            run(lab, name, shop)
    assert rows(shop) == []


@pytest.mark.parametrize("reader", ["required", "never"])
def test_no_record_is_read_of_another_cluster_under_the_same_name(
    lab: Lab, topic: Callable[..., str], reader: str
) -> None:
    """Clients that are connected stay where they are, and ask for topic ids there; a consumer goes to the new place."""
    name = topic(1)
    lab.produce(name, "a", "b")
    with KafkaServer() as other, TcpProxy("127.0.0.1", lab.kafka.port) as brokers:
        other.create_topic(name, 1)
        lab_of_other = replace(lab, kafka=other)
        lab_of_other.produce(name, "x", "x", "x", "x")
        leads: list[str] = []

        def lead_elsewhere(_: Any) -> None:
            if not leads:
                leads.append("elsewhere")
                brokers.lead_to("127.0.0.1", other.port)
                lab.produce(name, "c")

        pipeline = lab.pipeline(name, brokers=brokers.address, kafka={"offsetkeeper.native": reader}, attempts=1)
        with pytest.raises(RangeGone, match=r"lead to the Kafka cluster|deleted and created again"):
            pipeline.run(lab.spark, lab.keep, on_batch=lead_elsewhere)
    assert leads
    assert lab.values == ["a", "b"]
    assert lab.offsets() == {0: 2}
