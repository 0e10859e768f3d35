"""Few rows of a task come with its answer: no table is made for them, and they are as exact as staged ones."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position
from offsetkeeper.errors import Refused, RowMismatch, SinkError, SinkMismatch
from offsetkeeper.sinks import Table, few
from offsetkeeper.sinks.sink import Joiner, Lander, MarkKey
from offsetkeeper.stores import open_store
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from sinks.conftest import PARTITION, STAGING

ONCE = Guarantee.EXACTLY_ONCE
KEY = MarkKey("shop", "")
LARGE = few.LIMIT.rows + 500
COUNTED = """
    create table made (tag text);
    create function count_it() returns event_trigger language plpgsql as
        $$ begin insert into public.made values (tg_tag); end $$;
    create event trigger counts on ddl_command_start execute function count_it()"""


class Shop(NamedTuple):
    """A database with a table `orders`.

    Attributes:
        url: of the database.
        ask: runs a statement, and returns what it finds.
        made: returns how many tables were made or dropped in it, since it was called first.
        other: statement that gives a session another character set.
        staging: statement that finds staging tables.
        key: what makes `id` the key.
    """

    url: str
    ask: Callable[[str], list[Any]]
    made: Callable[[], int]
    other: str
    staging: str
    key: str


@pytest.fixture
def of_postgresql(postgresql_server: PostgreSQLServer) -> Iterator[Shop]:
    url = postgresql_server.url(postgresql_server.create_database())
    with psycopg.connect(url, autocommit=True) as connection:

        def ask(text: str) -> list[Any]:
            found = connection.execute(text.encode())
            return found.fetchall() if found.description else []

        def made() -> int:
            if not ask("select 1 from pg_event_trigger"):
                ask(COUNTED)
            return len(ask("select tag from made where tag <> 'CREATE EVENT TRIGGER'"))

        key = "alter table orders add primary key (id)"
        yield Shop(url, ask, made, "set client_encoding = 'latin1'", STAGING, key)


@pytest.fixture
def of_mysql(mariadb_server: MariaDBServer) -> Iterator[Shop]:
    name = mariadb_server.create_database()
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root", "autocommit": True}
    with pymysql.connect(**settings, database=name) as connection:

        def ask(text: str) -> list[Any]:
            with connection.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall())

        def made() -> int:
            counts = ask("show global status where variable_name in ('Com_create_table', 'Com_drop_table')")
            return sum(int(number) for _, number in counts)

        staging = "show tables like 'offsetkeeper\\_%\\_%'"
        key = "alter table orders modify id bigint primary key"
        yield Shop(mariadb_server.url(name), ask, made, "set names latin1", staging, key)


@pytest.fixture(params=["of_postgresql", "of_mysql"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """A database of each kind."""
    found: Shop = request.getfixturevalue(request.param)
    utf8 = "" if found.url.startswith("postgres") else "character set utf8mb4"
    found.ask(f"create table orders (id bigint, item varchar(20)) {utf8}")
    return found


@pytest.fixture
def ledger(shop: Shop) -> Iterator[Ledger]:
    """The ledger of a run in the same database."""
    with closing(open_store(shop.url)) as store:
        ledger = Ledger(store, "shop")
        ledger.acquire()
        ledger.place({PARTITION: Position(0)})
        yield ledger


@pytest.fixture
def batch(ledger: Ledger) -> Batch:
    """The next batch."""
    return ledger.batch([OffsetRange(*PARTITION, 0, 10)])


def parts(spark: SparkSession, *sizes: int) -> DataFrame:
    """Return orders in tasks of these sizes."""
    frame, start = None, 0
    for size in sizes:
        part = spark.range(start, start + size, numPartitions=1)
        frame, start = part if frame is None else frame.union(part), start + size
    assert frame is not None
    return frame.selectExpr("id", "concat('é€ ', id) as item")


def joined(ledger: Ledger, shop: Shop, frames: list[DataFrame], **words: Any) -> None:
    """Write frames with the offsets, a batch each."""
    way = Table(shop.url, "orders", **words).prepare(ledger.store, ONCE)
    assert isinstance(way, Joiner)
    for frame in frames:
        start = ledger.snapshot.positions[PARTITION].offset
        batch = ledger.batch([OffsetRange(*PARTITION, start, start + 10)])
        finish = way.stage(frame, batch)
        with ledger.transaction(batch) as connection:
            finish(connection)


def test_fifty_batches_with_few_rows_make_no_table(spark: SparkSession, ledger: Ledger, shop: Shop) -> None:
    """Neither with the ledger's transaction nor with a mark: what they add to the catalogs would be there to vacuum."""
    frame = parts(spark, 3, 0, 2)
    joined(ledger, shop, [frame])
    lander = Table(shop.url, "orders").prepare(MemoryStore("memory://few"), ONCE)
    assert isinstance(lander, Lander)
    before = shop.made()
    way = Table(shop.url, "orders").rows
    for number in range(1, 26):
        batch = Batch("shop", "token", number, (OffsetRange(*PARTITION, number, number + 1),))
        with ledger.transaction(ledger.batch([OffsetRange(*PARTITION, number + 9, number + 10)])) as connection:
            way.stage(frame, batch)(connection)
        lander.land(KEY, lander.seen(KEY), OutputMark.of(batch), lander.stage(frame, batch))
    assert (shop.made() - before, shop.ask("select count(*), count(distinct id) from orders")) == (0, [(51 * 5, 5)])


def test_few_and_many_rows_of_one_batch_are_there_once(spark: SparkSession, ledger: Ledger, shop: Shop) -> None:
    """Several tasks make the staging table at once, and it goes with the batch."""
    joined(ledger, shop, [parts(spark, 3, LARGE, LARGE, 7, 0, LARGE)] * 2)
    rows = 3 + 3 * LARGE + 7
    assert shop.ask("select count(*), count(distinct id), min(id), max(id) from orders") == [
        (2 * rows, rows, 0, rows - 1)
    ]
    assert shop.ask("select count(*) from orders where item = concat('é€ ', id)") == [(2 * rows,)]
    assert shop.ask(shop.staging) == []


@pytest.mark.parametrize("sizes", [(4, 4), (4, LARGE), (LARGE, 4)])
def test_the_last_row_of_a_key_stays_whichever_way_it_comes(
    spark: SparkSession, ledger: Ledger, shop: Shop, sizes: tuple[int, int]
) -> None:
    """Both tasks have the same four keys, and the first has the later partition."""
    shop.ask(shop.key)
    first, second = (
        spark.range(size, numPartitions=1).selectExpr(
            "id % 4 as id", f"'{word}' as item", "'t' as topic", f"{place} as partition", "id as offset"
        )
        for size, word, place in zip(sizes, ("new", "old"), (1, 0), strict=True)
    )
    joined(ledger, shop, [first.union(second)], mode="upsert", key=["id"])
    assert sorted(shop.ask("select * from orders")) == [(number, "new") for number in range(4)]


def test_rows_of_one_key_that_have_no_order_are_refused(spark: SparkSession, batch: Batch, shop: Shop) -> None:
    shop.ask(shop.key)
    table = Table(shop.url, "orders", mode="upsert", key=["id"])
    frame = spark.sql("select 1L as id, 'a' as item union all select 1L, 'b'")
    with pytest.raises(RowMismatch, match=r"same key \(id\).*topic, partition, offset"):
        table.rows.write(frame, batch)
    assert shop.ask("select count(*) from orders") == [(0,)]


def test_texts_are_as_they_were_after_a_block_that_has_set_another_character_set(
    spark: SparkSession, batch: Batch, ledger: Ledger, shop: Shop
) -> None:
    finish = Table(shop.url, "orders").rows.stage(parts(spark, 3), batch)
    with ledger.transaction(batch) as connection:
        connection.execute(shop.other)
        finish(connection)
    assert shop.ask("select item from orders order by id") == [(f"é€ {number}",) for number in range(3)]


def test_a_value_that_only_the_server_refuses_is_the_fault_of_its_row_and_its_column_is_named(
    spark: SparkSession, batch: Batch, shop: Shop
) -> None:
    kind = "json" if shop.url.startswith("postgres") else "varchar(20) character set latin2"
    shop.ask(f"create table notes (id bigint, c0 {kind})")
    frame = spark.sql("""select 1L as id, '"a"' as c0 union all select 2L, '{\u20aa'""")
    with pytest.raises(RowMismatch, match=r"column c0|`c0`"):
        Table(shop.url, "notes").rows.write(frame, batch)
    assert shop.ask("select count(*) from notes") == [(0,)]


MODIFY = "alter table orders modify item varchar(20) character set utf8mb4"
ALTERED = {
    "postgres": {
        "rounded": "alter table orders alter column price type numeric(10, 2)",
        "without its zone": "alter table orders alter column seen type timestamp",
        "another table": "alter table orders rename to old; create table orders (like old including all)",
        "a trigger": "create trigger seen before insert on orders for each row execute function seen()",
    },
    "mysql": {
        "rounded": "alter table orders modify price decimal(10, 2)",
        "without its microseconds": "alter table orders modify seen timestamp null",
        "blanks that count": f"{MODIFY} collate utf8mb4_nopad_bin",
        "another key": "alter table orders add unique (price)",
    },
}
NO_LONGER = {"rounded", "without its zone", "without its microseconds", "another key"}


@pytest.mark.parametrize("rows", [3, LARGE], ids=["few", "staged"])
@pytest.mark.parametrize("change", sorted({change for changes in ALTERED.values() for change in changes}))
def test_a_table_that_is_altered_under_its_staged_rows_gets_none_of_them(
    spark: SparkSession, ledger: Ledger, batch: Batch, shop: Shop, rows: int, change: str
) -> None:
    """A server casts them without a word; the next try fits the table as it is then, or is refused."""
    kind = "postgres" if shop.url.startswith("postgres") else "mysql"
    if change not in ALTERED[kind]:
        pytest.skip("of the other server")
    of_time = "timestamptz" if kind == "postgres" else "timestamp(6) null"
    exact = "" if kind == "postgres" else " modify item varchar(20) character set utf8mb4 collate utf8mb4_bin,"
    shop.ask(f"alter table orders{exact} add primary key (item), add price numeric(10, 4), add seen {of_time}")
    if kind == "postgres":
        shop.ask("create function seen() returns trigger language plpgsql as $$ begin return new; end $$")
    table = Table(shop.url, "orders", mode="upsert", key=["item"])
    assert isinstance(table.prepare(ledger.store, ONCE), Joiner)
    frame = (
        parts(spark, rows)
        .selectExpr("*", "id + cast(0.2345 as decimal(10, 4)) as price", "timestamp_micros(id + 1500001) as seen")
        .selectExpr("id", "item", "cast(price as decimal(10, 4)) as price", "seen")
    )
    finish = table.rows.stage(frame, batch)
    shop.ask(ALTERED[kind][change])
    with pytest.raises(SinkError, match="altered while rows were staged"), ledger.transaction(batch) as connection:
        finish(connection)
    assert shop.ask("select count(*) from orders") == [(0,)]
    if change in NO_LONGER:
        with pytest.raises((SinkMismatch, Refused)):
            table.rows.stage(frame, batch)
        return
    finish = table.rows.stage(frame, batch)
    with ledger.transaction(batch) as connection:
        finish(connection)
    assert shop.ask("select count(*) from orders where price = id + 0.2345") == [(rows,)]
