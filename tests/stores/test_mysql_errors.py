"""The store in MySQL, on MariaDB: what refuses it, tables of others, limits, TLS, and that no password is shown."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
import pytest

from offsetkeeper.clients import mysql
from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StoreUnavailable,
)
from offsetkeeper.stores.mysql import MySQLStore
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import free_port, wait_until
from stores.let_in_suite import Doors, LetInSuite, refusal
from stores.tables_suite import Tables, TablesSuite
from stores.test_senseless_answers import END, PACKET, Telling, column

Opener = Callable[[str], MySQLStore]
A = TopicPartition("a", 0)
SECRET = "s3cret/@:%€"
QUOTED = quote(SECRET, safe="")
FOREIGN = "CREATE TABLE kafka_offsets (topic varchar(200), group_id varchar(200), `partition` int, `offset` bigint"


def rewind(snapshot: Snapshot, offset: int, count: int = 1) -> Change:
    positions = {TopicPartition("a", partition): Position(offset) for partition in range(count)}
    return rules.decide(snapshot, rules.Rewind(positions, force=True), rules.Author("me", "me", 0, "id"))


class Admin:
    """A connection of the superuser, in a database of the test's own."""

    def __init__(self, server: MariaDBServer) -> None:
        self.database = server.create_database()
        self.connection = pymysql.connect(
            host="127.0.0.1", port=server.port, user="root", database=self.database, autocommit=True, charset="utf8mb4"
        )

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of the answer."""
        cursor = self.connection.cursor()
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())


@pytest.fixture(scope="module")
def folding() -> Iterator[MariaDBServer]:
    """A server that does not tell capitals apart in names of tables, as on Windows."""
    with MariaDBServer(settings={"lower-case-table-names": "1"}, fsync=False) as server:
        yield server


@pytest.fixture
def admin(mariadb_server: MariaDBServer) -> Iterator[Admin]:
    """A connection of the superuser."""
    admin = Admin(mariadb_server)
    yield admin
    admin.connection.close()


@pytest.fixture
def url(mariadb_server: MariaDBServer, admin: Admin) -> str:
    """URL of the database, as superuser."""
    return mariadb_server.url(admin.database)


@pytest.fixture
def user_url(admin: Admin, url: str) -> Iterator[str]:
    """URL of the database, as a user who may do nothing in it but look at its name, and has SECRET as password."""
    name = f"user_{secrets.token_hex(6)}"
    admin.ask(f"CREATE USER {name} IDENTIFIED BY '{SECRET}'")
    admin.ask(f"GRANT CREATE VIEW ON {admin.database}.* TO {name}")
    yield url.replace("root@", f"{name}:{QUOTED}@")
    admin.ask(f"DROP USER {name}")


@pytest.fixture
def open_store(at_end: ExitStack) -> Opener:
    """Open stores that are closed at the end of the test."""
    return lambda url: at_end.enter_context(closing(MySQLStore(url)))


@pytest.fixture
def store(open_store: Opener, url: str) -> MySQLStore:
    """The store, as superuser."""
    return open_store(url)


class TestLetIn(LetInSuite):
    """A user with a password."""

    said = Doors("Access denied", "Access denied", "nowhere", "refused", "")

    @pytest.fixture
    def doors(self, user_url: str, url: str, admin: Admin) -> Doors:
        """See `LetInSuite`."""
        return Doors(
            user_url.replace(QUOTED, "wr0ng"),
            user_url.replace(f":{QUOTED}", ""),
            url.replace(admin.database, "nowhere"),
            re.sub(r":\d+/", f":{free_port()}/", user_url),
            user_url.replace("@127.0.0.1:", "@nowhere.invalid:"),
        )


class TestTables(TablesSuite):
    """A database of the superuser."""

    quote = "`"

    without_case = (
        f"{FOREIGN}, `timestamp` timestamp, UNIQUE (group_id, topic, `partition`)) COLLATE utf8mb4_general_ci",
    )

    @pytest.fixture
    def tables(self, url: str, admin: Admin) -> Tables:
        """See `TablesSuite`."""
        return Tables(lambda more: MySQLStore(f"{url}?{more}"), admin.ask)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:s3cret@host",
        "mysql://user:s3cret@host/",
        "mysql://user:s3cret@host/a/b",
        "mysql://user:s3cret@host/db#x",
        "mysql://user:s3cret@host:0/db",
        "mysql://user:s3cret@host:99999/db",
        "mysql://user:s3cret@host/db?schema=x",
        "mysql://user:s3cret@host/db?ssl_verify_cert=perhaps",
        "mysql://user:s3cret@host/db?connect_timeout=soon",
    ],
)
def test_a_wrong_url_is_refused_and_shows_no_password_in_mysql(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        MySQLStore(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value)).replace(url, "")


def test_a_certificate_that_is_not_there_is_a_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    refusal(f"{url}?ssl_ca=/nowhere.pem", SettingsError, caplog)


def test_a_server_without_the_tls_that_is_asked_for_is_a_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "SSL" in refusal(f"{url}?ssl_verify_cert=true", Refused, caplog)


def test_tls_is_spoken_and_a_certificate_nobody_vouches_for_is_a_setting_in_mysql(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=t",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(
        [openssl, "req", "-x509", *options, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    settings = {"ssl": "1", "ssl-cert": str(certificate), "ssl-key": str(key), "ssl-ca": str(certificate)}
    with MariaDBServer(settings=settings, fsync=False) as server:
        url = server.url(server.create_database())
        store = MySQLStore(f"{url}?ssl_ca={certificate}&ssl_verify_identity=true")
        store.apply(rewind(Snapshot("g"), 1))
        with store.transaction(rewind(store.load("g"), 2)) as connection:
            [(_, cipher)] = connection.execute("SHOW STATUS LIKE 'Ssl_cipher'").fetchall()
        assert cipher
        store.close()
        assert "signed by no CA that this machine knows" in refusal(f"{url}?ssl_verify_cert=true", Refused, caplog)


@pytest.mark.parametrize("table", ["OffsetKeeper", "Kafka_Offsets"])
def test_capitals_make_another_table_unless_the_server_says_otherwise(
    open_store: Opener, url: str, folding: MariaDBServer, table: str
) -> None:
    """With tables in common, a run of one store moved the positions of the other, and records came twice."""
    store = open_store(f"{url}?table={table}")
    store.apply(rewind(Snapshot("g"), 1))
    assert store.load("g").version == 1
    database = folding.create_database()
    with pytest.raises(SettingsError, match=rf"table={table} .* records come twice"):
        open_store(f"{folding.url(database)}?table={table}").load("g")
    with pymysql.connect(host="127.0.0.1", port=folding.port, user="root", database=database) as connection:
        assert connection.cursor().execute("SHOW TABLES") == 0
    assert open_store(f"{folding.url(database)}?table=Others").load("g") == Snapshot("g")


def test_a_user_who_may_not_make_the_tables_is_told_in_mysql(user_url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "denied" in refusal(user_url, Refused, caplog)


def test_a_user_who_may_read_reads_and_who_may_write_writes_in_mysql(
    open_store: Opener, admin: Admin, store: MySQLStore, user_url: str
) -> None:
    """Tables that are there need no right to make any."""
    limited = open_store(user_url)
    user = user_url.partition("//")[2].partition(":")[0]
    store.apply(rewind(Snapshot("g"), 1))
    admin.ask(f"GRANT SELECT ON {admin.database}.* TO {user}")
    assert limited.load("g") == store.load("g")
    with pytest.raises(Refused, match="denied"):
        limited.apply(rewind(store.load("g"), 2))
    assert store.load("g").version == 1
    admin.ask(f"GRANT INSERT, UPDATE, DELETE ON {admin.database}.* TO {user}")
    limited.apply(rewind(store.load("g"), 2))
    assert store.load("g").positions == {A: Position(2)}
    assert limited.identity() == store.identity()


def test_a_server_that_is_read_only_is_neither_read_nor_written(
    open_store: Opener, admin: Admin, store: MySQLStore, user_url: str
) -> None:
    """It may be a replica, and behind."""
    limited = open_store(user_url)
    admin.ask(f"GRANT ALL ON {admin.database}.* TO {user_url.partition('//')[2].partition(':')[0]}")
    limited.apply(rewind(Snapshot("g"), 1))
    seen = store.load("g")
    admin.ask("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreUnavailable, match="read-only"):
            store.load("g")
        with pytest.raises(StoreUnavailable, match="nothing was written"):
            limited.apply(rewind(seen, 2))
    finally:
        admin.ask("SET GLOBAL read_only = 0")
    assert store.load("g") == seen


def test_a_server_whose_engine_alone_is_read_only_is_not_read(open_store: Opener) -> None:
    """As a reader of Aurora, whose `read_only` is off."""
    with MariaDBServer(settings={"default-tmp-storage-engine": "Aria"}, fsync=False) as server:
        url = server.url(server.create_database())
        open_store(url).apply(rewind(Snapshot("g"), 1))
        server.stop()
        server._settings["innodb-read-only"] = "1"
        server.restart()
        with pytest.raises(StoreUnavailable, match="read-only for now, or a replica, which may be behind"):
            open_store(url).load("g")


def test_a_connection_to_a_server_that_was_demoted_is_not_kept(
    open_store: Opener, mariadb_server: MariaDBServer, folding: MariaDBServer, admin: Admin
) -> None:
    """The address leads to the new primary by then. A run tried again on the old connection until it gave up."""
    folding.create_database(admin.database)
    with TcpProxy("127.0.0.1", mariadb_server.port) as address:
        store = open_store(mariadb_server.url(admin.database, port=address.port))
        for server in (mariadb_server, folding):
            open_store(server.url(admin.database)).apply(rewind(Snapshot("g"), 1))
        seen = store.load("g")
        address.lead_to("127.0.0.1", folding.port)
        admin.ask("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(StoreUnavailable, match="read-only"):
                store.load("g")
        finally:
            admin.ask("SET GLOBAL read_only = 0")
        store.apply(change := rewind(seen, 2))
    assert open_store(folding.url(admin.database)).load("g") == change.after


@pytest.mark.parametrize(("code", "told"), [(1047, StoreUnavailable), (3100, OutcomeUnknown), (3101, StoreUnavailable)])
def test_a_cluster_that_cannot_serve_now_is_worth_another_try(
    store: MySQLStore, admin: Admin, code: int, told: type[OffsetkeeperError]
) -> None:
    """A node of Galera that is not ready, and Group Replication: half-way in a commit, and after a conflict."""
    store.apply(rewind(Snapshot("g"), 1))
    seen = store.load("g")
    raised = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}"
    admin.ask(f"CREATE TRIGGER away BEFORE INSERT ON offsetkeeper_history FOR EACH ROW {raised}")
    with pytest.raises(told):
        store.apply(rewind(seen, 2))
    admin.ask("DROP TRIGGER away")
    assert store.load("g") == seen
    store.apply(rewind(seen, 2))


@pytest.mark.parametrize("node", [True, False])
def test_what_a_node_of_galera_answers_is_not_behind(
    open_store: Opener, url: str, monkeypatch: pytest.MonkeyPatch, *, node: bool
) -> None:
    """It waits for what the others had committed. MariaDB has the setting also where it is no node."""
    if node:
        monkeypatch.setattr(mysql, "_IS_NODE", "SELECT 'wsrep_on', 'ON'")
    store = open_store(url)
    for offset in (1, 2):  # the second on a connection that was reset
        change = rewind(store.load("g"), offset)
        with store.transaction(change) as connection:
            assert connection.execute("SELECT @@wsrep_sync_wait").fetchall() == ((int(node),),)
    assert store.load("g") == change.after
    with store._connections.lend() as own:
        assert own.execute("SELECT @@wsrep_sync_wait").fetchall() == ((int(node),),)


def test_a_node_of_galera_is_known_by_its_variable() -> None:
    """Told by a server of our own, as no Galera can be had."""
    names = [b"\2", column(b"Variable_name"), column(b"Value"), END, b"\x08wsrep_on\2ON", END]
    with Telling({mysql._IS_NODE.encode(): names, b"@@max_allowed_packet": PACKET}) as server:
        store = MySQLStore(f"mysql://u:p@127.0.0.1:{server.port}/shop?timeout=2")
        store._ready = True  # the server has no tables that could be looked at
        with closing(store), store._connections.lend() as connection:
            assert connection.node


def test_the_tables_are_those_people_know(store: MySQLStore, admin: Admin) -> None:
    """Read as the mysql client would."""
    store.apply(rewind(Snapshot("shop"), 2**63 - 1))
    rows = admin.ask(
        "SELECT topic, group_id, `partition`, `offset`, topic_id, ABS(TIMESTAMPDIFF(SECOND, timestamp, NOW())) < 60"
        " FROM kafka_offsets"
    )
    assert rows == [("a", "shop", 0, 2**63 - 1, None, 1)]
    assert admin.ask("SELECT group_id, version FROM offsetkeeper_groups") == [("shop", 1)]
    assert admin.ask("SELECT group_id, version FROM offsetkeeper_history") == [("shop", 1)]


@pytest.mark.parametrize(
    "collation", ["latin1_swedish_ci", "utf8mb4_general_ci", "utf8mb4_uca1400_ai_ci", "utf8mb3_bin"]
)
def test_a_table_of_others_is_taken_over_whatever_its_collation(
    store: MySQLStore, admin: Admin, collation: str
) -> None:
    """The server takes capitals and small letters for the same there; the store does not."""
    extra = "`timestamp` timestamp, id int AUTO_INCREMENT PRIMARY KEY, UNIQUE (topic, `partition`, group_id)"
    admin.ask(f"{FOREIGN}, {extra}) COLLATE {collation}")
    rows = [("a", "Shop", 0, 7), ("A", "shop", 1, 8), ("b", "shop", 0, 9)]
    for row in rows:
        admin.ask("INSERT INTO kafka_offsets (topic, group_id, `partition`, `offset`) VALUES (%s, %s, %s, %s)", *row)
    assert store.load("Shop").positions == {A: Position(7)}
    found = store.load("shop")
    assert found.positions == {TopicPartition("A", 1): Position(8), TopicPartition("b", 0): Position(9)}
    assert list(store.groups()) == ["Shop", "shop"]
    positions = {tp: Position(20) for tp in found.positions}
    change = rules.decide(found, rules.Rewind(positions), rules.Author("me", "me", 0, "id"))
    store.apply(change)
    assert store.load("shop") == change.after
    assert store.load("Shop").positions == {A: Position(7)}
    assert admin.ask("SELECT COUNT(*) FROM kafka_offsets") == [(3,)]


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        (f"{FOREIGN}, `timestamp` timestamp, PRIMARY KEY (group_id, topic, `partition`)) ENGINE = MyISAM", "InnoDB"),
        (f"{FOREIGN}, `timestamp` timestamp)", "ADD UNIQUE KEY"),
        (f"{FOREIGN}, `timestamp` timestamp, UNIQUE (group_id, topic))", "ADD UNIQUE KEY"),
    ],
)
def test_a_table_that_could_lose_or_double_offsets_is_refused_with_what_helps(
    open_store: Opener, url: str, admin: Admin, table: str, remedy: str
) -> None:
    admin.ask(table)
    with pytest.raises(Refused, match=f"ALTER TABLE .*{remedy}") as caught:
        open_store(url).load("g")
    admin.ask(str(caught.value).partition(": ")[2].partition(": ")[2] or str(caught.value).rpartition(": ")[2])
    open_store(url).apply(rewind(Snapshot("g"), 1))


@pytest.mark.parametrize("table", ["kafka_offsets", "offsetkeeper_groups", "offsetkeeper_history"])
def test_each_table_that_is_kept_by_another_engine_is_refused(
    open_store: Opener, url: str, admin: Admin, table: str
) -> None:
    """As a server may have made it that knows better which engine to use, or somebody by hand."""
    open_store(url).apply(rewind(Snapshot("g"), 1))
    admin.ask(f"ALTER TABLE {table} ENGINE = Aria")
    with pytest.raises(Refused, match=f"{table}` is kept by Aria, which does not commit together") as caught:
        open_store(url).load("g")
    admin.ask(str(caught.value).rpartition(": ")[2])
    assert open_store(url).load("g").version == 1
    admin.ask(f"RENAME TABLE {table} TO elsewhere")
    admin.ask(f"CREATE VIEW {table} AS SELECT * FROM elsewhere")  # noqa: S608 - a word
    with pytest.raises(Refused, match=f"{table} is a view"):
        open_store(url).load("g")


def test_a_store_is_refused_where_mysql_makes_tables_by_another_engine(
    open_store: Opener, url: str, admin: Admin
) -> None:
    admin.ask("SET GLOBAL enforce_storage_engine = Aria")
    try:
        with pytest.raises(Refused, match="unset enforce_storage_engine"):
            open_store(url).load("g")
    finally:
        admin.ask("SET GLOBAL enforce_storage_engine = DEFAULT")
    open_store(url).apply(rewind(Snapshot("g"), 1))


@pytest.mark.parametrize("table", [f"{FOREIGN})", "CREATE TABLE kafka_offsets (topic text, group_id text, part int)"])
def test_a_table_that_lacks_a_column_is_told_in_mysql(open_store: Opener, admin: Admin, url: str, table: str) -> None:
    admin.ask(table)
    with pytest.raises(Refused, match="Unknown column"):
        open_store(url).load("g")


def test_a_text_in_place_of_an_offset_is_told_in_mysql(store: MySQLStore, admin: Admin) -> None:
    columns = "topic varchar(9), group_id varchar(9), `partition` int, `offset` text, `timestamp` timestamp"
    admin.ask(f"CREATE TABLE kafka_offsets ({columns}, PRIMARY KEY (topic, group_id, `partition`))")
    admin.ask("INSERT INTO kafka_offsets VALUES ('a', 'g', 0, 'ten', NOW())")
    with pytest.raises(CorruptStore, match="not an offset"):
        store.load("g")


def test_a_column_too_short_for_a_name_is_told_and_nothing_is_cut(store: MySQLStore, admin: Admin) -> None:
    admin.ask("SET GLOBAL sql_mode = ''")
    try:
        columns = "topic varchar(9), group_id varchar(3), `partition` int, `offset` bigint, `timestamp` timestamp"
        admin.ask(f"CREATE TABLE kafka_offsets ({columns}, PRIMARY KEY (topic, group_id, `partition`))")
        with pytest.raises(Refused, match="too long"):
            store.apply(rewind(Snapshot("long name"), 1))
    finally:
        admin.ask("SET GLOBAL sql_mode = DEFAULT")
    assert list(store.groups()) == []


def test_a_server_that_takes_no_backslashes_gets_none(open_store: Opener, admin: Admin, url: str) -> None:
    """Texts with quotes and backslashes survive whatever mode the server is in."""
    admin.ask("SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
    try:
        store, group = open_store(url), 'it\'s \\ "quoted"'
        store.apply(rewind(Snapshot(group), 1))
        change = rewind(store.load(group), 2)
        with store.transaction(change):
            pass
        assert store.load(group) == change.after
        assert store.history(group)[0] == change.entry
    finally:
        admin.ask("SET GLOBAL sql_mode = DEFAULT")


@pytest.mark.parametrize("count", [1, 1000])
def test_a_change_is_two_requests_on_a_kept_connection(
    store: MySQLStore, admin: Admin, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store.apply(rewind(Snapshot("g"), 1, count))
    change = rewind(store.load("g"), 2, count)
    [(_, made)] = admin.ask("SHOW GLOBAL STATUS LIKE 'Connections'")
    sent: list[object] = []
    usual = pymysql.connections.Connection.query

    def query(connection: Any, statement: Any, **settings: Any) -> int:
        sent.append(statement)
        return usual(connection, statement, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(pymysql.connections.Connection, "query", query)
        store.apply(change)
    assert len(sent) == 2
    assert admin.ask("SHOW GLOBAL STATUS LIKE 'Connections'") == [("Connections", made)]
    assert store.load("g") == change.after


def test_small_packets_are_kept_to_and_what_does_not_fit_is_refused_before_it_begins(
    open_store: Opener, admin: Admin, url: str
) -> None:
    [(usual,)] = admin.ask("SELECT @@global.max_allowed_packet")
    admin.ask("SET GLOBAL max_allowed_packet = 131072")
    try:
        store = open_store(url)
        store.apply(rewind(Snapshot("g"), 10**15, 2000))
        change = rewind(store.load("g"), 10**15 + 1, 2000)
        store.apply(change)
        assert store.load("g") == change.after
        with pytest.raises(Refused, match="max_allowed_packet"):
            store.apply(rewind(change.after, 10**15, 10_000))
        with (
            pytest.raises(Refused, match="max_allowed_packet"),
            store.transaction(rewind(change.after, 1, 10_000)),
        ):
            pytest.fail("the block ran")
        assert store.load("g") == change.after
    finally:
        admin.ask(f"SET GLOBAL max_allowed_packet = {usual}")


def test_a_wait_for_a_lock_has_a_limit_and_leaves_no_doubt(open_store: Opener, admin: Admin, url: str) -> None:
    ledger = Ledger(open_store(f"{url}?timeout=1"), "g")
    ledger.acquire()
    ledger.place({A: Position(0)})
    admin.ask("BEGIN")
    admin.ask("SELECT * FROM kafka_offsets FOR UPDATE")
    batch = ledger.batch([OffsetRange(*A, 0, 10)])
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        ledger.store.apply(ledger._decide(rules.Commit(batch.ranges)))
    assert time.monotonic() - began < 40
    admin.ask("COMMIT")
    ledger.commit(batch)
    committed = ledger.snapshot
    assert ledger.load() == committed
    assert committed.positions == {A: Position(10)}


def test_a_deadlock_with_another_program_is_tried_again_in_mysql(store: MySQLStore, admin: Admin) -> None:
    """The other holds a position and then wants the control record, against our order."""
    ledger = Ledger(store, "g")
    ledger.acquire()
    ledger.place({A: Position(0)})
    admin.ask("BEGIN")
    admin.ask("UPDATE kafka_offsets SET timestamp = NOW() + INTERVAL 1 DAY")
    committing = threading.Thread(target=lambda: ledger.commit(ledger.batch([OffsetRange(*A, 0, 10)])))
    committing.start()
    wait_until(lambda: waiting(admin) == 1, "the commit waits for the row", 60)
    with suppress(pymysql.OperationalError):  # one of the two is the victim
        admin.ask("SELECT 1 FROM offsetkeeper_groups FOR UPDATE")
    admin.ask("COMMIT")
    committing.join(60)
    assert store.load("g") == ledger.snapshot
    assert ledger.snapshot.positions == {A: Position(10)}


def waiting(admin: Admin) -> int:
    """Return how many wait for the lock of a row."""
    [(_, count)] = admin.ask("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return int(count)
