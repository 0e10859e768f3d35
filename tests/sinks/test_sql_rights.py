"""The rights on the page are enough for a database's user, and each of them is needed; who lacks one is told."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pymysql
import pytest

from fixtures.rights import rows, statements
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import granted, keeps, looks
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.sinks import Joiner, Lander, MarkKey, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsetkeeper.testing.mariadb import MariaDBServer
    from offsetkeeper.testing.postgresql import PostgreSQLServer

SECRET = RightsSuite.secret
ORDERS = TopicPartition("orders", 0)
MARK = OutputMark(1, "token", "1".zfill(16))
JOINED = "`Table` in the store's database, beside the store's rights"
THERE = "store, tables are there"
LOOKED_AT = "store, only looked at: `show`, `lag`, `history`, `groups`"


class Shop(NamedTuple):
    """A database as the page has it: what its owner may ask, and URLs of a user with the rights of a task."""

    ask: Callable[[str], list[Any]]
    owner: str
    store: str
    rows: str
    spark: SparkSession

    @property
    def orders(self) -> int:
        """How many rows are in the table."""
        return len(self.ask(f"SELECT id FROM {self.table}"))  # noqa: S608 - a word

    @property
    def table(self) -> str:
        """The table's name."""
        return "ops.orders" if self.owner.startswith("postgresql") else "orders"


class Database(NamedTuple):
    """A database, empty but for `orders`.

    Attributes:
        ask: does a statement as its owner.
        owner: URL of the store as owner.
        grant: makes a user with rights, each with what it is on; returns URLs of the store and for `Table`.
    """

    ask: Callable[[str], list[Any]]
    owner: str
    grant: Callable[[list[tuple[str, str]]], tuple[str, str]]


@contextmanager
def postgresql(server: PostgreSQLServer) -> Iterator[Database]:
    name, user = server.create_database(), f"user_{secrets.token_hex(6)}"
    with psycopg.connect(server.url(name), autocommit=True) as connection:

        def ask(text: str) -> list[Any]:
            found = connection.execute(text.encode())
            return found.fetchall() if found.description else []

        ask("CREATE SCHEMA ops; CREATE SCHEMA work; CREATE TABLE ops.orders (id int PRIMARY KEY)")
        ask(f"REVOKE ALL ON SCHEMA public FROM public; CREATE USER {user} PASSWORD '{SECRET}'")

        def grant(rights: list[tuple[str, str]]) -> tuple[str, str]:
            for right, on in rights:
                ask(f"GRANT {right} ON {on} TO {user}")
            url = f"postgresql://{user}:{SECRET}@127.0.0.1:{server.port}/{name}"
            path = "work" if any(on == "SCHEMA work" for _, on in rights) else "ops"
            return f"{url}?schema=ops", f"{url}?options=-csearch_path%3D{path}"

        yield Database(ask, f"{server.url(name)}?schema=ops", grant)
        ask(f"DROP OWNED BY {user}; DROP USER {user}")


@contextmanager
def mysql(server: MariaDBServer) -> Iterator[Database]:
    name, user = server.create_database(), f"user_{secrets.token_hex(6)}"
    with pymysql.connect(host="127.0.0.1", port=server.port, user="root", database=name, autocommit=True) as connection:

        def ask(text: str) -> list[Any]:
            with connection.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall())

        ask("CREATE TABLE orders (id int PRIMARY KEY)")
        ask(f"CREATE USER {user} IDENTIFIED BY '{SECRET}'")

        def grant(rights: list[tuple[str, str]]) -> tuple[str, str]:
            # Without any right to a database nobody may so much as name it; this one is of no use for anything else.
            for right, on in [("CREATE VIEW", "shop.*"), *rights]:
                ask(f"GRANT {right} ON {on.replace('shop', name)} TO {user}")
            url = server.url(name).replace("root@", f"{user}:{SECRET}@")
            return url, url

        yield Database(ask, server.url(name), grant)
        ask(f"DROP USER {user}")


def stand(ledger: Ledger) -> None:
    ledger.acquire("start")
    ledger.place({ORDERS: Position(0)})


def joins(shop: Shop) -> None:
    with closing(open_store(shop.store)) as store:
        ledger = Ledger(store, "shop")
        stand(ledger)
        batch = ledger.batch([OffsetRange(*ORDERS, 0, 10)])
        way = Table(shop.rows, shop.table).prepare(store, Guarantee.EXACTLY_ONCE)
        assert isinstance(way, Joiner)
        finish = way.stage(frame(shop), batch)
        with ledger.transaction(batch) as connection:
            finish(connection)
    assert shop.orders == 2


def lands(shop: Shop, **how: Any) -> None:
    with closing(open_store("memory://rights")) as store:
        way = Table(shop.rows, shop.table, **how).prepare(store, Guarantee.EXACTLY_ONCE)
        assert isinstance(way, Lander)
        ledger = Ledger(store, "shop")
        ledger.acquire()
        ledger.place({ORDERS: Position(0)})
        key, batch = MarkKey("shop", ""), ledger.batch([OffsetRange(*ORDERS, 0, 10)])
        way.land(key, way.seen(key), MARK, way.stage(frame(shop), batch))
        way.land(key, way.seen(key), MARK._replace(sequence=2), None)
        assert way.seen(key).mark == MARK._replace(sequence=2)
    assert shop.orders == 2


def upserts(shop: Shop) -> None:
    lands(shop, mode="upsert", key=["id"])


def frame(shop: Shop) -> Any:
    return shop.spark.range(2, numPartitions=1).selectExpr("int(id) as id")


DOES: dict[str, Callable[[Shop], None]] = {
    "store that makes its tables": lambda shop: keeps(shop.store),
    THERE: lambda shop: keeps(shop.store),
    LOOKED_AT: lambda shop: looks(shop.store),
    JOINED: joins,
    "`Table` elsewhere": lands,
    "`Table` elsewhere, upsert": upserts,
    "`Table` elsewhere, marks are there": lands,
    "`Table` elsewhere, marks are there, rows staged apart": lands,
}
HEADINGS = {"PostgreSQL": "postgresql_server", "MySQL and MariaDB": "mariadb_server"}
_OURS = ("kafka_offsets", "offsetkeeper_groups", "offsetkeeper_history")
LAYOUT = {
    "PostgreSQL": [
        """SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
        WHERE table_schema = 'ops' ORDER BY table_name, ordinal_position""",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'ops' ORDER BY indexname",
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'ops'::regnamespace ORDER BY relname",
    ],
    "MySQL and MariaDB": [f"SHOW CREATE TABLE {name}" for name in _OURS],
}


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_statements_on_the_page_make_the_tables_that_the_store_makes(
    heading: str, request: pytest.FixtureRequest
) -> None:
    made = []
    for by_hand in (True, False):
        with (postgresql if heading == "PostgreSQL" else mysql)(request.getfixturevalue(HEADINGS[heading])) as database:
            for statement in statements(heading) if by_hand else ():
                database.ask(statement)
            with closing(open_store(database.owner)) as store:
                stand(Ledger(store, "shop"))
            made.append([found for question in LAYOUT[heading] for found in database.ask(question)])
    assert made[0] == made[1]
    assert len(made[0]) >= len(_OURS)


class TestSQL(RightsSuite):
    """A database's user."""

    headings = (*HEADINGS,)
    tasks = DOES
    error = OffsetkeeperError

    @pytest.fixture
    def try_without(self, request: pytest.FixtureRequest, spark: SparkSession) -> TryWithout:
        """See `RightsSuite`."""

        def work(heading: str, task: str, lacking: Lacking | None) -> None:
            make = postgresql if heading == "PostgreSQL" else mysql
            with make(request.getfixturevalue(HEADINGS[heading])) as database:
                if task == THERE:
                    for statement in statements(heading):
                        database.ask(statement)
                elif task != "store that makes its tables":
                    keeps(database.owner, group="shop" if task == LOOKED_AT else "other")
                if "marks are there" in task:
                    owned = re.sub(r"\?.*", "", database.owner)
                    table = "ops.orders" if make is postgresql else "orders"
                    with closing(open_store("memory://rights")) as store:
                        Table(owned, table).prepare(store, Guarantee.EXACTLY_ONCE)
                rights = granted(rows(heading), task, lacking)
                if task == JOINED:
                    rights += granted(rows(heading), THERE)
                store_url, rows_url = database.grant(rights)
                DOES[task](Shop(database.ask, database.owner, store_url, rows_url, spark))

        return work
