"""What the Cassandra sink refuses: arguments, tables, permissions, frames and values, each with its name."""

from __future__ import annotations

import re
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from offsetkeeper.errors import Refused, RowMismatch, SettingsError, SinkMismatch
from offsetkeeper.sinks import Cassandra
from offsetkeeper.sinks.cassandra.columns import CassandraColumn, limits_of
from offsetkeeper.sinks.cassandra.task import RowPlan, changes
from offsetkeeper.sinks.limits import RANK
from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.conformance.landers import batch_of
from sinks.cassandra_tables import COLUMNS, KEY, TABLE, Shop

pytestmark = pytest.mark.xdist_group("test_cassandra")

URL = "cassandra://me:geheim@one:9043,two/shop"


def test_an_url_names_nodes_and_a_keyspace() -> None:
    sink = Cassandra(URL + "?consistency=local_quorum&timeout=5", "orders", key=["item"])
    assert sink._place.hosts == (("one", 9043), ("two", 9042))
    assert (sink._place.user, sink._place.password, sink._place.local) == ("me", "geheim", True)
    assert repr(sink) == "Cassandra('cassandra://one:9043,two/shop', 'shop.orders')"
    assert sink._target.schema == "shop"
    assert Cassandra(URL, "other.orders", key=["item"])._target.schema == "other"


@pytest.mark.parametrize(
    ("url", "how", "why"),
    [
        ("mysql://me:geheim@one/shop", {}, "cassandra://user:password@host:port"),
        ("cassandra://me:geheim@/shop", {}, "has no hosts"),
        (URL.replace("9043", "0"), {}, "has no hosts"),
        (URL + "/more", {}, "more than a keyspace"),
        (URL.removesuffix("/shop"), {}, "has no keyspace"),
        (URL + "?consistency=one", {}, "use quorum or local_quorum"),
        (URL + "?nonsense=1", {}, "unknown setting"),
        (URL, {"key": ()}, "upsert needs the columns of a key"),
        (URL, {"deletes": "item"}, "a column that is not in the key"),
        (URL, {"deletes": True}, "a column that is not in the key"),
    ],
)
def test_wrong_arguments_are_refused_at_once(url: str, how: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)) as told:
        Cassandra(url, "orders", **{"key": ["item"], **how})
    assert "geheim" not in str(told.value)


def test_tables_that_break_the_promise_are_refused_at_the_start(cassandra_shop: Shop) -> None:
    """And one that does not is taken after each of them."""
    shop = cassandra_shop

    def refused(why: str, **how: Any) -> None:
        with pytest.raises(Refused, match=why):
            shop.lander(**how)

    refused(r"the primary key of table \w+\.orders is \(item\), but key= is \(price\)", key=["price"])
    refused("deletes='hint' is a column", deletes="hint")
    shop.lander(key=["item"])
    shop.execute("ALTER TABLE {}.orders WITH gc_grace_seconds = 60")
    refused("gc_grace_seconds = 60")
    shop.execute("DROP TABLE {}.orders")
    refused("has no table")
    shop.make("item text PRIMARY KEY, n counter")
    refused("column n of table .* is a counter")
    shop.execute("DROP TABLE {}.orders")
    shop.execute("ALTER KEYSPACE {} WITH durable_writes = false")
    shop.make(TABLE)
    refused("durable_writes = false")


COMPACT = {
    "item": "item text PRIMARY KEY, note text",
    "item, n": "item text, n int, note text, PRIMARY KEY (item, n)",
    "item, n, m": "item text, n int, m int, note text, PRIMARY KEY (item, n, m)",
}


def test_a_table_that_keeps_no_row_of_nulls_is_refused(cassandra_shop: Shop) -> None:
    """A row whose values were all null vanished, and an upsert of nulls deleted its row."""
    shop = cassandra_shop
    for key, columns in COMPACT.items():
        found = []
        for options in (" WITH COMPACT STORAGE", ""):
            shop.execute("DROP TABLE {}.orders")
            shop.make(columns, options=options)
            with pytest.raises(Refused, match="keeps no row without values") if options else nullcontext():
                shop.lander(key=key.split(", "))
            values = ", ".join(["'tea'", "1", "1"][: key.count(",") + 1])
            shop.execute(f"INSERT INTO {{}}.orders ({key}, note) VALUES ({values}, null)")  # noqa: S608 - ours
            found += shop.execute("SELECT count(*) FROM {}.orders")
        assert found == [(0,), (1,)], key


def test_what_the_user_may_not_do_is_said_at_the_start(cassandra_shop: Shop) -> None:
    """With the statement that makes the marks; who may write, and finds them there, needs nothing else."""
    shop, user = cassandra_shop, f"user_{uuid.uuid4().hex}"
    shop.execute(f"CREATE ROLE {user} WITH PASSWORD = 'secret' AND LOGIN = true")
    url = shop.url(user=user, password="secret")
    with pytest.raises(Refused, match=r"no MODIFY permission on <table \w+\.orders>"):
        shop.lander(url)
    shop.execute(f"GRANT MODIFY ON {{}}.orders TO {user}")
    with pytest.raises(Refused, match=r"no CREATE permission .* CREATE TABLE IF NOT EXISTS") as told:
        shop.lander(url)
    shop.execute(str(told.value).rpartition("another user creates it: ")[2])
    for right in ("SELECT", "MODIFY"):
        with pytest.raises(Refused, match=f"no {right} permission .* need SELECT and MODIFY"):
            shop.lander(url)
        shop.execute(f"GRANT {right} ON {{}}.offsetkeeper_marks TO {user}")
    shop.write(batch_of(1), [("tea", 1.0, "")], way=shop.lander(url))
    assert shop.orders() == {"tea": [1.0, ""]}


def test_frames_that_do_not_fit_are_refused_before_anything_is_written(cassandra_shop: Shop) -> None:
    shop = cassandra_shop
    shop.execute("DROP TABLE {}.orders")
    shop.make("item text, n int, price float, all_of text static, l list<int>, PRIMARY KEY (item, n)")
    way = shop.lander(key=["item", "n"], deletes="gone")
    frame = shop.spark.sql("select 'tea' as item, 1D as price, 'a' as all_of, array(1) as l, 2 as size, true as gone")
    with pytest.raises(SinkMismatch) as told:
        way.stage(frame, batch_of(1))
    for why in (
        "column n of the key is not in the frame",
        "the table has no column size",
        "column price: double into float does not fit",
        "column all_of: string into text does not fit: it is static",
        "column l: array<int> into list<int> is not supported",
    ):
        assert why in str(told.value)
    with pytest.raises(SinkMismatch, match="column gone, which says what is deleted, is not there"):
        way.stage(frame.drop("gone"), batch_of(1))
    with pytest.raises(SinkMismatch, match="column gone, which says what is deleted, is string"):
        way.stage(frame.withColumn("gone", frame.item), batch_of(1))


def test_two_rows_of_a_key_without_an_order_are_refused(cassandra_shop: Shop) -> None:
    """And the batch is not committed; with an order the same rows pass."""
    shop = cassandra_shop
    with pytest.raises(RowMismatch, match=r"several rows .* same key \(item\)\. The batch is not committed"):
        shop.write(batch_of(1), [("tea", 1.0, ""), ("tea", 2.0, "")])
    assert shop.mark() is None


def test_what_cassandra_refuses_ends_the_batch(cassandra_shop: Shop) -> None:
    """A key that is too long, which only the server knows."""
    shop = cassandra_shop
    with pytest.raises(RowMismatch, match=r"Key length of 70000.*The batch is not committed"):
        shop.write(batch_of(1), [("x" * 70_000, 1.0, "")], COLUMNS)
    assert shop.mark() is None


def test_an_empty_partition_key_is_refused(cassandra_shop: Shop) -> None:
    shop = cassandra_shop
    with pytest.raises(RowMismatch, match=r"column item \(text\): '' cannot be the partition key"):
        shop.write(batch_of(1), [("", 1.0, "")], COLUMNS)
    assert shop.mark() is None


def test_a_number_of_several_forms_is_refused_where_each_is_a_key(cassandra_shop: Shop) -> None:
    """A partition is found by the bytes of its key; in a partition all NaN are one."""
    shop, order, key = cassandra_shop, "item double, n double, note string", ["item", "n"]
    shop.execute("DROP TABLE {}.orders")
    shop.make("item double, n double, note text, PRIMARY KEY (item, n)")
    for number, nan in enumerate((float("nan"), -float("nan")), 1):
        shop.write(batch_of(number), [(0.5, nan, str(number))], order, way=shop.lander(key=key))
        with pytest.raises(
            RowMismatch, match=r"column item \(double\): nan is a key of its own for each form of its bits"
        ):
            shop.write(batch_of(number + 1), [(nan, 0.5, str(number))], order, way=shop.lander(key=key))
    assert shop.execute("SELECT note FROM {}.orders") == [("2",)]
    for wrong, name in (((-0.0, 0.5), "item"), ((0.5, -0.0), "n")):  # a row beside that of 0.0
        with pytest.raises(RowMismatch, match=rf"column {name} \(double\): -0.0 is a key equal to 0.0"):
            shop.write(batch_of(3), [(*wrong, "3")], order, way=shop.lander(key=key))
    assert shop.execute("SELECT note FROM {}.orders") == [("2",)]


def test_a_decimal_is_refused_where_its_digits_are_of_the_key(cassandra_shop: Shop) -> None:
    """1.50 and 1.500 are two partitions; in a partition they are one row."""
    shop, key = cassandra_shop, ["item", "n"]
    shop.execute("DROP TABLE {}.orders")
    shop.make("item decimal, n decimal, note text, PRIMARY KEY (item, n)")
    for number, (whole, fraction) in enumerate((("(5,0)", "(5,2)"), ("(20,0)", "(6,3)")), 1):
        rows = f"select cast(7 as decimal{whole}) as item, cast(1.5 as decimal{fraction}) as n, '{number}' as note"
        Once(shop.lander(key=key), "").write(shop.spark.sql(rows), batch_of(number))
        with pytest.raises(SinkMismatch, match=r"column item: decimal.* has two keys for 1\.5 and 1\.50"):
            shop.lander(key=key).stage(shop.spark.sql(rows).selectExpr("n as item", "n", "note"), batch_of(9))
    assert shop.execute("SELECT note FROM {}.orders") == [("2",)]


def test_a_right_that_is_taken_away_is_no_record_s_fault(cassandra_shop: Shop) -> None:
    """The user may still write marks, but no rows."""
    shop, user = cassandra_shop, f"user_{uuid.uuid4().hex}"
    shop.execute(f"CREATE ROLE {user} WITH PASSWORD = 'secret' AND LOGIN = true")
    for right in ("SELECT", "MODIFY"):
        shop.execute(f"GRANT {right} ON KEYSPACE {{}} TO {user}")
    way = shop.lander()
    sink = Once(shop.lander(shop.url(user=user, password="secret")), "")
    shop.execute(f"REVOKE MODIFY ON KEYSPACE {{}} FROM {user}")
    shop.execute(f"GRANT MODIFY ON {{}}.offsetkeeper_marks TO {user}")
    with pytest.raises(Refused, match=r"refused the request.*MODIFY"):
        sink.write(shop.frame([("tea", 1.0, "")]), batch_of(1))
    assert (shop.orders(), way.seen(KEY).mark) == ({}, None)


PLAN = RowPlan(
    table="shop.orders",
    insert="",
    delete="",
    limits=(
        limits_of(
            CassandraColumn("id", "uuid", required=False, generated=False, nullable=False, kind="partition_key"),
            alone=True,
        ),
        limits_of(
            CassandraColumn("at", "timestamp", required=False, generated=False, nullable=True, kind="regular"),
            alone=False,
        ),
    ),
    key=(0,),
    deletes=True,
    same_key="",
)
ID = "58e0a7d7-eebc-11d8-9669-0800200c9a66"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def batch_with(row: str | None, at: datetime | None, *, gone: bool | None) -> pa.RecordBatch:
    """Return Arrow's batch of one row."""
    times = pa.array([at], pa.timestamp("us", "UTC"))
    rest = {"gone": pa.array([gone], pa.bool_()), RANK: pa.array([1])}
    return pa.record_batch({"c0": pa.array([row], pa.string()), "c1": times, **rest})


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((None, NOON, False), r"column id \(uuid\) must have a value"),
        (("tea", NOON, False), r"column id \(uuid\): 'tea' is not a UUID"),
        ((ID.upper(), NOON, False), "column id .* is not spelled as Cassandra does in a key: use lower"),
        ((f"{{{ID}}}", NOON, False), "is not spelled as Cassandra does"),
        ((ID, NOON.replace(microsecond=1001), False), "column at .* more digits of a second than 3: use date_trunc"),
        ((ID, NOON, None), "the column of deletes has no value"),
    ],
)
def test_values_that_do_not_fit_are_refused(row: tuple[Any, Any, Any], why: str) -> None:
    with pytest.raises(RowMismatch, match=why) as told:
        list(changes(PLAN, batch_with(row[0], row[1], gone=row[2])))
    assert "The batch is not committed" in str(told.value)


def test_a_row_that_is_perhaps_deleted_names_its_record() -> None:
    place = {"topic": ["orders"], "partition": pa.array([3], pa.int32()), "offset": [17]}
    given = batch_with(ID, NOON, gone=None)
    batch = pa.record_batch({**dict(zip(given.schema.names, given.columns, strict=True)), **place})
    with pytest.raises(RowMismatch, match=r"^table shop\.orders: orders 3 offset 17: the column of deletes"):
        list(changes(PLAN, batch))


def test_values_that_fit_are_passed_on() -> None:
    at = int(NOON.timestamp() * 1000) + 1
    [change] = changes(PLAN, batch_with(ID, NOON.replace(microsecond=1000), gone=False))
    assert change == (False, (uuid.UUID(ID), at))
    [change] = changes(PLAN, batch_with(ID, None, gone=True))
    assert change == (True, (uuid.UUID(ID),))


def test_two_rows_of_one_record_with_the_same_key_are_refused_in_cassandra(cassandra_shop: Shop) -> None:
    """Nothing says which is the last. Without a place in the order it is unknown too."""
    shop, order = cassandra_shop, "topic string, partition int, offset long, item string, price double"
    rows = [("t", 0, 1, "tea", 1.0), ("t", 0, 2, "tea", 2.0), ("t", 0, 2, "tea", 3.0), ("t", 0, 1, "jam", 1.0)]
    with pytest.raises(RowMismatch, match=r"several rows of one record .* same key \(item\)\. The batch is not"):
        shop.write(batch_of(1), rows, order)
    assert shop.mark() is None
    with pytest.raises(RowMismatch, match="no value in one of the columns topic, partition and offset"):
        shop.write(batch_of(1), [*rows[:2], ("t", 0, None, "tea", 3.0)], order)
    shop.write(batch_of(1), [*rows[:1], ("t", 0, 1, "jam", 2.0)], order)
    assert {item: price for item, (price, _) in shop.orders().items()} == {"tea": 1.0, "jam": 2.0}
