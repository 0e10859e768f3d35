"""The store in PostgreSQL: what refuses it, who may do what, tables of others, and that no password is shown."""

from __future__ import annotations

import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import CorruptStore, Fenced, OutcomeUnknown, Refused, StoreUnavailable, VersionConflict
from offsetkeeper.stores import postgresql
from offsetkeeper.stores.postgresql import PostgreSQLStore
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.server import free_port, wait_until
from stores.let_in_suite import Doors, LetInSuite, refusal
from stores.tables_suite import Tables, TablesSuite

Opener = Callable[[str], PostgreSQLStore]
A = TopicPartition("a", 0)
SECRET = "s3cret/@:%"


def rewind(snapshot: Snapshot, offset: int, count: int = 1) -> Change:
    positions = {TopicPartition("a", partition): Position(offset) for partition in range(count)}
    return rules.decide(snapshot, rules.Rewind(positions), rules.Author("me", "me", 0, "id"))


@pytest.fixture(scope="module")
def server(postgresql_server: PostgreSQLServer) -> PostgreSQLServer:
    """Ask users named guarded_* for their password."""
    rules_file = postgresql_server.folder / "data" / "pg_hba.conf"
    guarded = "host all /^guarded_ 127.0.0.1/32 scram-sha-256\n"
    rules_file.write_text(guarded + rules_file.read_text("utf-8"), "utf-8")
    with psycopg.connect(postgresql_server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
    return postgresql_server


@pytest.fixture(scope="module")
def database(server: PostgreSQLServer) -> str:
    """Name of a database for all tests of this file."""
    return server.create_database()


@pytest.fixture
def admin(server: PostgreSQLServer, database: str) -> Iterator[psycopg.Connection]:
    """A connection of the superuser, in a schema of this test's own."""
    schema = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server.url(database), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(f"SET search_path TO {schema}".encode())
        yield connection


@pytest.fixture
def schema(admin: psycopg.Connection) -> str:
    """Name of the schema."""
    [(name,)] = admin.execute("SELECT current_schema()").fetchall()
    return str(name)


@pytest.fixture
def user(admin: psycopg.Connection, schema: str) -> Iterator[str]:
    """Name of an ordinary user, who may look into the schema and has SECRET as password."""
    name = f"guarded_{secrets.token_hex(6)}"
    admin.execute(f"CREATE USER {name} PASSWORD '{SECRET}'".encode())
    admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}".encode())
    yield name
    admin.execute(f"DROP OWNED BY {name}; DROP USER {name}".encode())


@pytest.fixture
def url(server: PostgreSQLServer, database: str, schema: str) -> str:
    """URL of the schema, as superuser."""
    return f"{server.url(database)}?schema={schema}"


@pytest.fixture
def user_url(server: PostgreSQLServer, database: str, schema: str, user: str) -> str:
    """URL of the schema, as the ordinary user."""
    return f"postgresql://{user}:{quote(SECRET, safe='')}@127.0.0.1:{server.port}/{database}?schema={schema}"


@pytest.fixture
def open_store(at_end: ExitStack) -> Opener:
    """Open stores that are closed at the end of the test."""
    return lambda url: at_end.enter_context(closing(PostgreSQLStore(url)))


@pytest.fixture
def store(open_store: Opener, url: str) -> PostgreSQLStore:
    """The store in the schema, as superuser."""
    return open_store(url)


class TestLetIn(LetInSuite):
    """A user with a password."""

    said = Doors("password authentication failed", "", "nowhere", "refused", "")

    @pytest.fixture
    def doors(self, user_url: str, database: str) -> Doors:
        """See `LetInSuite`."""
        secret = quote(SECRET, safe="")
        return Doors(
            user_url.replace(secret, "wr0ng"),
            user_url.replace(f":{secret}", ""),
            user_url.replace(f"/{database}", "/nowhere"),
            re.sub(r":\d+/", f":{free_port()}/", user_url),
            user_url.replace("@127.0.0.1:", "@nowhere.invalid:"),
        )


class TestTables(TablesSuite):
    """A schema of the superuser."""

    without_case = (
        "CREATE COLLATION IF NOT EXISTS any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        (
            "CREATE TABLE kafka_offsets (topic text, group_id text COLLATE any_case, partition integer, "
            '"offset" bigint, timestamp timestamptz DEFAULT now(), PRIMARY KEY (group_id, topic, partition))'
        ),
    )

    @pytest.fixture
    def tables(self, url: str, admin: psycopg.Connection) -> Tables:
        """See `TablesSuite`."""

        def ask(statement: str) -> list[tuple[object, ...]]:
            cursor = admin.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        return Tables(lambda more: PostgreSQLStore(f"{url}&{more}"), ask)


def test_a_user_who_may_not_make_the_tables_is_told_in_postgresql(
    user_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert "permission denied for schema" in refusal(user_url, Refused, caplog)


def test_an_unknown_schema_is_a_setting(url: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "nowhere" in refusal(url.replace(schema, "nowhere"), Refused, caplog)


def test_a_server_of_an_old_dialect_is_a_setting(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Redshift, which there is none of here: so this server is called too old."""
    monkeypatch.setattr(postgresql, "_OLDEST", 990_000)
    assert "Redshift" in refusal(url, Refused, caplog)


def test_a_user_who_may_read_reads_and_who_may_write_writes_in_postgresql(
    open_store: Opener, admin: psycopg.Connection, url: str, user_url: str, user: str, schema: str
) -> None:
    """Tables that are there need no right to make any."""
    owner, store = open_store(url), open_store(user_url)
    owner.apply(rewind(Snapshot("g"), 1))
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}".encode())
    assert store.load("g") == owner.load("g")
    with pytest.raises(Refused, match="permission denied"):
        store.apply(rewind(store.load("g"), 2))
    admin.execute(f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}".encode())
    store.apply(rewind(store.load("g"), 2))
    assert owner.load("g").positions == {A: Position(2)}
    assert store.identity() == owner.identity()


def test_a_database_that_is_read_only_for_now_is_worth_another_try(open_store: Opener, url: str) -> None:
    open_store(url).load("g")
    store = open_store(f"{url}&options=-cdefault_transaction_read_only%3Don")
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.apply(rewind(Snapshot("g"), 1))
    assert store.load("g") == Snapshot("g")


def test_a_connection_whose_session_is_read_only_is_not_kept(open_store: Opener, url: str) -> None:
    """As behind a pooler whose server was demoted. A run tried again on the old connection until it gave up."""
    store = open_store(url)
    store.load("g")
    with store._connections.lend() as connection:
        connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.apply(rewind(Snapshot("g"), 1))
    store.apply(change := rewind(Snapshot("g"), 2))
    assert store.load("g") == change.after


def test_a_server_may_stand_in_the_settings_of_a_url(
    open_store: Opener, server: PostgreSQLServer, database: str
) -> None:
    """As with a socket, or the service of a file: such a URL could not be parsed."""
    parts = urlsplit(server.url(database))
    settings = f"host={parts.hostname}&port={parts.port}&user={parts.username or ''}"
    assert open_store(f"postgresql:///{database}?{settings}").load("nobody").version == 0


@pytest.mark.parametrize("columns", ['"offset" bigint', "topic text, group_id text, partition int"])
def test_a_table_that_lacks_a_column_is_told_in_postgresql(
    open_store: Opener, admin: psycopg.Connection, url: str, columns: str
) -> None:
    admin.execute(f"CREATE TABLE kafka_offsets ({columns})".encode())
    with pytest.raises(Refused, match=r"column .* does not exist"):
        open_store(url).load("g")


@pytest.mark.parametrize("table", ["kafka_offsets", "offsetkeeper_groups", "offsetkeeper_history"])
def test_each_table_that_a_crash_empties_or_another_server_keeps_is_refused(
    open_store: Opener, admin: psycopg.Connection, url: str, table: str
) -> None:
    """Somebody made it so by hand, or a tool that makes all tables so; a partition is a part of the table."""

    def refused(said: str) -> str:
        with pytest.raises(Refused, match=said) as caught:
            open_store(url).load("g")
        return str(caught.value)

    def instead(statement: str) -> None:
        admin.execute(f"ALTER TABLE {table} RENAME TO elsewhere".encode())
        admin.execute(statement.format(table).encode())

    def back(kind: str) -> None:
        admin.execute(f"DROP {kind} {table}; ALTER TABLE elsewhere RENAME TO {table}".encode())

    open_store(url).apply(rewind(Snapshot("g"), 1))
    admin.execute(f"ALTER TABLE {table} SET UNLOGGED".encode())
    admin.execute(refused(f"{table} is unlogged, so a crash").rpartition(": ")[2].encode())
    assert open_store(url).load("g").version == 1
    instead("CREATE VIEW {} AS SELECT * FROM elsewhere")
    refused(f"{table} is a view")
    back("VIEW")
    admin.execute("CREATE EXTENSION postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw")
    instead("CREATE FOREIGN TABLE {} (topic_id text) SERVER far")
    refused(f"{table} is a foreign table, whose server commits by itself")
    admin.execute("DROP EXTENSION postgres_fdw CASCADE; ALTER TABLE elsewhere RENAME TO a")
    admin.execute(f"CREATE TABLE {table} (LIKE a) PARTITION BY HASH (group_id)".encode())
    for number, unlogged in enumerate(["", "UNLOGGED"]):
        values = f"FOR VALUES WITH (MODULUS 2, REMAINDER {number})"
        admin.execute(f"CREATE {unlogged} TABLE part_{number} PARTITION OF {table} {values}".encode())
    admin.execute(refused("part_1 is unlogged").rpartition(": ")[2].encode())
    assert open_store(url).load("nobody").version == 0


def test_a_text_in_place_of_an_offset_is_told_in_postgresql(
    open_store: Opener, admin: psycopg.Connection, url: str
) -> None:
    admin.execute('CREATE TABLE kafka_offsets (topic text, group_id text, partition int, "offset" text)')
    admin.execute("INSERT INTO kafka_offsets VALUES ('a', 'g', 0, 'ten')")
    with pytest.raises((CorruptStore, Refused), match=r"offset|UNION"):
        open_store(url).load("g")


HIDING = "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY; CREATE POLICY w ON {0} FOR INSERT WITH CHECK (true)"


@pytest.fixture
def clerk(open_store: Opener, admin: psycopg.Connection, url: str, user_url: str, user: str) -> Ledger:
    """A ledger with positions, opened by the ordinary user."""
    ledger = Ledger(open_store(url), "g")
    ledger.acquire()
    ledger.place({A: Position(5)}, "a test")
    ledger.release()
    for table in ("kafka_offsets", "offsetkeeper_groups", "offsetkeeper_history"):
        admin.execute(f"GRANT ALL ON {table} TO {user}".encode())
    return Ledger(open_store(user_url), "g")


def test_a_ledger_that_row_level_security_hides_is_told_as_that(
    admin: psycopg.Connection, clerk: Ledger, user: str
) -> None:
    """And not as another writer's change. The second policy is that of tables which several users share."""
    for table in ("offsetkeeper_groups", "kafka_offsets"):
        admin.execute(HIDING.format(table).encode())
    with pytest.raises(Refused, match="row-level security policy for table"):
        clerk.acquire()
    admin.execute("ALTER TABLE offsetkeeper_groups ADD COLUMN owner text DEFAULT current_user")
    admin.execute("CREATE POLICY own ON offsetkeeper_groups USING (owner = current_user)")
    hidden = f"20 tries.*no other writer was first: row-level security of table .*{user}"
    with pytest.raises(VersionConflict, match=hidden):
        clerk.acquire()
    assert admin.execute('SELECT "offset" FROM kafka_offsets').fetchall() == [(5,)]


def test_positions_that_row_level_security_hides_are_told_as_that(
    admin: psycopg.Connection, clerk: Ledger, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And not only as rows that a clean-up has deleted. A policy that hides nothing here is not named."""
    admin.execute(HIDING.format("kafka_offsets").encode())
    assert clerk.load().missing == {A}
    assert re.search(f"lacks positions: row-level security of table .*kafka_offsets for user {user}", caplog.text)
    caplog.clear()
    admin.execute("CREATE POLICY r ON kafka_offsets FOR SELECT USING (true)")
    assert (clerk.load().missing, caplog.text) == (frozenset(), "")


def test_a_conflict_with_another_writer_is_told_as_one_also_beside_row_level_security(
    open_store: Opener, admin: psycopg.Connection, url: str, clerk: Ledger
) -> None:
    admin.execute("ALTER TABLE offsetkeeper_groups ENABLE ROW LEVEL SECURITY")
    admin.execute("CREATE POLICY own ON offsetkeeper_groups USING (group_id = 'g')")
    clerk.acquire()
    Ledger(open_store(url), "g").acquire()
    with pytest.raises(Fenced):
        clerk.place({TopicPartition("b", 0): Position(1)}, "a test")
    author = rules.Author("me", "me", 0, "id")
    change = rules.decide(clerk.store.load("g"), rules.Rewind({A: Position(7)}, force=True), author)
    Ledger(open_store(url), "g").acquire()
    with pytest.raises(VersionConflict, match="another writer changed its ledger"):
        clerk.store.apply(change)


@pytest.mark.parametrize(
    ("table", "when", "what"),
    [
        ("kafka_offsets", "before insert", "return null"),
        ("kafka_offsets", "before update", "return null"),
        ("kafka_offsets", "before update", 'new."offset" = old."offset"; return new'),
        ("kafka_offsets", "before insert", 'new."offset" = 0; return new'),
        ("offsetkeeper_groups", "before update", "return null"),
        ("offsetkeeper_groups", "before update", "new.control = old.control; return new"),
        ("offsetkeeper_history", "before insert", "return null"),
    ],
)
def test_a_trigger_that_swallows_a_part_of_a_change_takes_all_of_it(
    open_store: Opener, admin: psycopg.Connection, url: str, table: str, when: str, what: str
) -> None:
    """Else positions stay behind, and a batch comes twice."""
    ledger = Ledger(open_store(url), "g")
    ledger.acquire()
    ledger.place({A: Position(5)}, "a test")
    admin.execute(f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {what}; END$$".encode())
    admin.execute(f"CREATE TRIGGER odd {when} ON {table} FOR EACH ROW EXECUTE FUNCTION f()".encode())
    before = ledger.store.load("g")

    def change() -> None:
        if "insert" in when:
            ledger.place({TopicPartition("b", 0): Position(9)}, "a test")
        else:
            ledger.commit(ledger.batch([OffsetRange("a", 0, 5, 8)]))

    with pytest.raises(VersionConflict, match=f"no other writer was first: trigger odd of table .*{table}"):
        change()
    assert ledger.store.load("g") == before
    admin.execute(f"DROP TRIGGER odd ON {table}".encode())


@pytest.mark.parametrize("count", [1, 1000])
def test_a_change_is_one_request_and_one_answer(store: PostgreSQLStore, count: int) -> None:
    store.apply(rewind(Snapshot("g"), 1, count))
    change = rewind(store.load("g"), 2, count)
    with tempfile.TemporaryFile("w+") as trace:
        [connection] = store._connections._idle
        connection.pgconn.trace(trace.fileno())
        store.apply(change)
        connection.pgconn.untrace()
        trace.seek(0)
        lines = [line.split("\t") for line in trace]
    messages = [(line[1], line[3].strip()) for line in lines if len(line) > 3]
    assert messages.count(("F", "Sync")) == 1
    assert not any(sender == "F" and name.startswith("Query") for sender, name in messages)
    assert store.load("g") == change.after


def locked(admin: psycopg.Connection, statement: bytes) -> Callable[[], object]:
    """Take locks in a transaction, and return what ends it."""
    admin.execute("BEGIN")
    admin.execute(statement)
    return lambda: admin.execute("COMMIT")


def test_a_wait_for_a_lock_has_a_limit_and_the_late_change_is_made_once(
    server: PostgreSQLServer, database: str, open_store: Opener, admin: psycopg.Connection, url: str
) -> None:
    """The server goes on to wait when this side has given up, and then writes. The ledger is prepared for that."""
    ledger = Ledger(open_store(f"{url}&timeout=0.3"), "g")
    ledger.acquire()
    ledger.place({A: Position(0)})
    unlock = locked(admin, b"LOCK TABLE kafka_offsets IN EXCLUSIVE MODE")
    began = time.monotonic()
    batch = ledger.batch([OffsetRange(*A, 0, 10)])
    with pytest.raises(OutcomeUnknown, match=r"0\.3 s"):
        ledger.store.apply(ledger._decide(rules.Commit(batch.ranges)))
    assert time.monotonic() - began < 25
    unlock()
    ledger.commit(batch)
    wait_until(lambda: waiting(server.url(database)) == 0, "the server has finished what was given up on", 60)
    committed = ledger.snapshot
    assert ledger.load() == committed
    assert committed.positions == {A: Position(10)}


def waiting(url: str) -> int:
    """Return how many connections of this database wait for a lock."""
    with psycopg.connect(url, autocommit=True) as connection:  # within a transaction it would not see any change
        [(count,)] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchall()
    return int(count)


def test_a_deadlock_with_another_program_is_tried_again_in_postgresql(
    server: PostgreSQLServer, database: str, open_store: Opener, admin: psycopg.Connection, url: str
) -> None:
    """The other holds a position and then wants the control record, against our order; ours is the victim."""
    ledger = Ledger(open_store(f"{url}&options=-cdeadlock_timeout%3D4s"), "g")
    ledger.acquire()
    ledger.place({A: Position(0)})
    admin.execute("SET deadlock_timeout = '60s'")
    unlock = locked(admin, b"SELECT 1 FROM kafka_offsets FOR UPDATE")
    committing = threading.Thread(target=lambda: ledger.commit(ledger.batch([OffsetRange(*A, 0, 10)])))
    committing.start()
    wait_until(lambda: waiting(server.url(database)) == 1, "the commit waits for the row", 60)
    admin.execute("SELECT 1 FROM offsetkeeper_groups FOR UPDATE")
    unlock()
    committing.join(60)
    assert ledger.store.load("g") == ledger.snapshot
    assert ledger.snapshot.positions == {A: Position(10)}
