"""What an acknowledged write survives: the doctor asks real servers, with the settings right and wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pymysql
import pytest
import redis
from typer.testing import CliRunner

from fixtures.groups import commit
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.core.store import Store
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.doctor.durability import ASKED
from offsetkeeper.operate.doctor.facts import Examined
from offsetkeeper.operate.doctor.outputs import server_facts
from offsetkeeper.testing.cassandra import CassandraServer
from offsetkeeper.testing.hdfs import HDFSServer
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.zookeeper import ZooKeeperServer

LIMIT_S = 30
AT = TopicPartition("orders", 0)
REGISTER_REPLICA = 0x15  # COM_REGISTER_SLAVE
OPENED: list[Store] = []
Findings = list[tuple[str, str, str]]


def doctor(*arguments: str) -> Findings:
    """Return rule, severity and text of each finding."""
    result = CliRunner().invoke(app, ["doctor", "shop", *arguments, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return [(each["rule"], each["severity"], each["what"]) for each in json.loads(result.stdout)["findings"]]


def rules(found: Findings) -> list[tuple[str, str]]:
    """Return rule and severity of each finding."""
    return [each[:2] for each in found]


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    """Close the stores that a test has opened."""
    yield
    while OPENED:
        OPENED.pop().close()


def opened(url: str) -> Store:
    """Return a store that is closed with the test."""
    OPENED.append(open_store(url))
    return OPENED[-1]


def stand(url: str) -> Ledger:
    """Return the ledger of a run that has the group."""
    ledger = Ledger(opened(url), "shop")
    ledger.acquire()
    ledger.place({AT: Position(0)})
    return ledger


def move(ledger: Ledger) -> None:
    """Commit one more record."""
    at = ledger.load().positions[AT].offset
    ledger.commit(ledger.batch([OffsetRange("orders", 0, at, at + 1)]))


def asked(url: str) -> set[str]:
    """Return the names of what the store's server was asked for."""
    store = opened(url)
    assert isinstance(store, Examined)
    return set(store.server_settings())


@pytest.fixture
def elsewhere(tmp_path: Path) -> list[str]:
    """The options of a store that has nothing to find, for tests of outputs."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    stand(url)
    return ["--store", url]


@pytest.fixture(scope="module")
def own_postgresql() -> Iterator[PostgreSQLServer]:
    """A server whose settings these tests change."""
    with PostgreSQLServer() as server:
        yield server


def set_postgresql(server: PostgreSQLServer, **settings: str) -> None:
    """Set all settings back but these, and wait until they hold."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("alter system reset all")
        for name, value in settings.items():
            connection.execute(f"alter system set {name} = '{value}'")
        connection.execute("select pg_reload_conf()")
    wanted = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}

    def held() -> bool:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            found = connection.execute("select name, setting from pg_settings where name = any(%s)", [list(wanted)])
            return dict(found.fetchall()) == {**wanted, **settings}

    wait_until(held, "the settings hold", LIMIT_S)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"fsync": "off"}, [("crash-may-lose", "error")]),
        ({"full_page_writes": "off"}, [("crash-may-lose", "warning")]),
        ({"synchronous_commit": "off"}, [("crash-may-lose", "warning")]),
        ({"synchronous_commit": "local"}, []),  # nobody to fail over to
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["store", "output"])
def test_postgresql_that_a_crash_may_take_commits_from(
    own_postgresql: PostgreSQLServer,
    elsewhere: list[str],
    kind: str,
    settings: dict[str, str],
    expected: list[tuple[str, str]],
) -> None:
    set_postgresql(own_postgresql, **settings)
    url = own_postgresql.url(own_postgresql.create_database())
    if kind == "store":
        stand(url)
        found = doctor("--store", url)
        assert asked(url) == {*ASKED["PostgreSQL"], "replicas"}
    else:
        found = doctor(*elsewhere, "--output", url)
        with psycopg.connect(url) as connection:  # an output gets no tables of a store
            assert connection.execute("select count(*) from pg_tables where tablename like '%offset%'").fetchone() == (
                0,
            )
    assert rules(found) == expected


def test_a_user_of_postgresql_has_settings_of_its_own(own_postgresql: PostgreSQLServer) -> None:
    """Also a user who may see nothing else of the server."""
    set_postgresql(own_postgresql)
    name = own_postgresql.create_database()
    url = own_postgresql.url(name)
    stand(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create role hasty login")
        connection.execute("alter role hasty set synchronous_commit = off")
        connection.execute("grant select, insert, update, delete on all tables in schema public to hasty")
    found = doctor("--store", url.replace("postgres@", "hasty@"))
    assert rules(found) == [("crash-may-lose", "warning")]
    assert "for this user" in found[0][2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "waits for none of its replicas"),
        ({"synchronous_standby_names": "*", "synchronous_commit": "local"}, "synchronous_commit local for this user"),
        ({"synchronous_standby_names": "*"}, ""),
    ],
    ids=str,
)
def test_postgresql_with_a_replica_that_it_does_not_wait_for(
    own_postgresql: PostgreSQLServer, settings: dict[str, str], expected: str
) -> None:
    set_postgresql(own_postgresql)
    url = own_postgresql.url(own_postgresql.create_database())
    stand(url)
    set_postgresql(own_postgresql, **settings)
    with psycopg.connect(f"{url}?replication=true", autocommit=True):  # as a replica connects
        found = doctor("--store", url)
    assert rules(found) == [("failover-may-lose", "warning")] * bool(expected)
    assert expected in "".join(found[0]) if found else True
    set_postgresql(own_postgresql)


def test_postgresql_acknowledges_a_commit_whose_wait_for_a_replica_is_cancelled(
    own_postgresql: PostgreSQLServer,
) -> None:
    """Why the page on stores says not to cancel it: the commit counts, and no replica has it."""
    set_postgresql(own_postgresql)
    url = own_postgresql.url(own_postgresql.create_database())
    ledger = stand(url)
    set_postgresql(own_postgresql, synchronous_standby_names="nobody")
    waiting = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
    try:
        run = threading.Thread(target=move, args=(ledger,))
        run.start()
        with psycopg.connect(own_postgresql.url(), autocommit=True) as connection:
            wait_until(lambda: connection.execute(waiting).fetchone() is not None, "the commit waits", LIMIT_S)
            connection.execute(waiting.replace("select pid", "select pg_cancel_backend(pid)"))
        run.join(LIMIT_S)
        assert not run.is_alive()
    finally:
        set_postgresql(own_postgresql)
    assert ledger.snapshot.positions[AT].offset == 1


@pytest.fixture
def mariadb_set(mariadb_server: MariaDBServer) -> Iterator[Any]:
    """Sets a global variable of the run's MariaDB, until the test ends."""
    with pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root", ssl_disabled=True) as connection:
        cursor = connection.cursor()
        before: dict[str, object] = {}

        def put(name: str, value: object) -> None:
            cursor.execute(f"select @@global.{name}")
            before.setdefault(name, (cursor.fetchone() or (None,))[0])
            cursor.execute(f"set global {name} = %s", [value])

        yield put
        for name, value in before.items():
            cursor.execute(f"set global {name} = %s", [value])


@pytest.mark.xdist_group("test_mysql")
@pytest.mark.parametrize(
    ("flush", "expected"), [(1, []), (2, [("crash-may-lose", "warning")]), (0, [("crash-may-lose", "warning")])]
)
@pytest.mark.parametrize("kind", ["store", "output"])
def test_mysql_that_a_crash_may_take_commits_from(
    mariadb_server: MariaDBServer,
    mariadb_set: Any,
    elsewhere: list[str],
    kind: str,
    flush: int,
    expected: list[tuple[str, str]],
) -> None:
    mariadb_set("innodb_flush_log_at_trx_commit", flush)
    url = mariadb_server.url(mariadb_server.create_database())
    if kind == "store":
        stand(url)
        assert asked(url) - set(ASKED["MySQL"]) == {
            *("slaves_connected", "rpl_semi_sync_master_status", "rpl_semi_sync_master_clients")
        }
    found = doctor("--store", url) if kind == "store" else doctor(*elsewhere, "--output", url)
    assert rules(found) == expected


@pytest.mark.xdist_group("test_mysql")
@pytest.mark.parametrize("waits", [0, 1])
def test_mysql_with_a_replica_that_it_does_not_wait_for(
    mariadb_server: MariaDBServer, mariadb_set: Any, waits: int
) -> None:
    """Told to wait, it does so only while such a replica is connected: this one is none."""
    mariadb_set("innodb_flush_log_at_trx_commit", 1)
    mariadb_set("rpl_semi_sync_master_enabled", waits)
    url = mariadb_server.url(mariadb_server.create_database())
    stand(url)
    assert doctor("--store", url) == []
    with pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root", ssl_disabled=True) as replica:
        replica._execute_command(REGISTER_REPLICA, (77).to_bytes(4, "little") + bytes(3 + 2 + 4 + 4))  # type: ignore[attr-defined]
        replica._read_ok_packet()  # type: ignore[attr-defined]
        found = doctor("--store", url)
    assert rules(found) == [("failover-may-lose", "warning")]
    assert ("although it is told to" in found[0][2]) == bool(waits)


@pytest.mark.xdist_group("test_redis")
def test_redis_loses_an_acknowledged_commit_in_a_failover_whatever_is_set() -> None:
    """A replica that hears nothing any more counts as there for `min-replicas-max-lag` seconds."""
    settings = {"min-replicas-to-write": "1", "repl-diskless-sync-delay": "0"}
    with (
        RedisServer(settings=settings) as primary,
        RedisServer() as replica,
        TcpProxy("127.0.0.1", primary.port) as link,
    ):
        clients = [redis.Redis(port=each.port) for each in (primary, replica)]
        clients[1].replicaof("127.0.0.1", link.port)

        def followed() -> bool:
            found = clients[0].info("replication")
            return found["connected_slaves"] == 1 and found.get("min_slaves_good_slaves") == 1

        wait_until(followed, "the replica follows", LIMIT_S)
        ledger = stand(primary.url())
        move(ledger)
        assert clients[0].wait(1, LIMIT_S * 1000) == 1
        assert rules(doctor("--store", primary.url())) == [("failover-may-lose", "note")]
        link.hold()
        move(ledger)  # acknowledged
        primary.kill()
        clients[1].replicaof("NO", "ONE")
        with_loss = Ledger(opened(replica.url()), "shop").load()
        assert ledger.snapshot.positions[AT].offset == 2
        assert with_loss.positions[AT].offset == 1
        for client in clients:
            client.close()


@pytest.mark.xdist_group("test_redis")
def test_redis_with_a_replica_that_it_need_not_have() -> None:
    with RedisServer(settings={"repl-diskless-sync-delay": "0"}) as primary, RedisServer() as replica:
        with redis.Redis(port=replica.port) as client:
            client.replicaof("127.0.0.1", primary.port)
        stand(primary.url())
        with redis.Redis(port=primary.port) as client:
            wait_until(lambda: len(client.execute_command("ROLE")[2]) == 1, "the replica is known", LIMIT_S)
        assert rules(doctor("--store", primary.url())) == [("failover-may-lose", "warning")]
        assert asked(primary.url()) == {*ASKED["Redis"], "maxmemory", "ttl", "replicas"}


@pytest.mark.xdist_group("test_redis")
def test_what_a_redis_does_not_show_is_told_and_judged_neither_way(redis_server: RedisServer, redis_url: str) -> None:
    stand(redis_url)
    with redis.Redis(port=redis_server.port) as client:
        client.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "+@all", "-config")
    try:
        found = doctor("--store", redis_url.replace("redis://", "redis://plain:secret@"))
    finally:
        with redis.Redis(port=redis_server.port) as client:
            client.execute_command("ACL", "DELUSER", "plain")
    assert rules(found) == [("settings-hidden", "note")]
    assert "appendfsync" in found[0][2]


@pytest.mark.xdist_group("test_zookeeper")
def test_a_zookeeper_of_one_server_is_told(zookeeper_server: ZooKeeperServer) -> None:
    url = zookeeper_server.url("doctor")
    with_root = zookeeper_server.client()
    with_root.ensure_path("/doctor")
    with_root.stop()
    with_root.close()
    stand(url)
    assert rules(doctor("--store", url)) == [("one-server", "note")]


@pytest.mark.xdist_group("test_hdfs")
def test_a_folder_of_hdfs_with_one_replica_is_told(hdfs_server: HDFSServer) -> None:
    url = hdfs_server.url("store/doctor")
    stand(url)
    assert rules(doctor("--store", url)) == [("one-replica", "warning")]
    for name in ("000000000001.json", "000000000002.json"):
        path = f"{hdfs_server.http}/webhdfs/v1/store/doctor/shop/{name}"
        where = {"op": "SETREPLICATION", "replication": "3", "user.name": "hdfs"}
        assert httpx.put(path, params=where, timeout=LIMIT_S).is_success
    assert doctor("--store", url) == []


@pytest.mark.xdist_group("test_cassandra")
def test_a_keyspace_with_one_replica_is_told(cassandra_server: CassandraServer, elsewhere: list[str]) -> None:
    one, three = (cassandra_server.create_keyspace() for _ in range(2))
    with cassandra_server.session() as session:
        session.execute(
            f"ALTER KEYSPACE {three} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 3}}"
        )
    found = doctor(*elsewhere, "--output", cassandra_server.url(one))
    assert rules(found) == [("one-replica", "warning")]
    assert doctor(*elsewhere, "--output", cassandra_server.url(three)) == []
    assert server_facts(cassandra_server.url(one)).settings == {"replication_factor": "1", "commitlog_sync": "batch"}
    assert rules(doctor(*elsewhere, "--output", cassandra_server.url("nowhere"))) == [("output-away", "error")]


@pytest.mark.xdist_group("test_doctor")
def test_topics_of_outputs_and_those_that_their_marks_need_are_looked_at(
    kafka_server: KafkaServer, topic: Any, elsewhere: list[str]
) -> None:
    commit(kafka_server.bootstrap, "anybody", {(read := topic(), 0): 0})  # so that __consumer_offsets is there
    written = topic(config={"unclean.leader.election.enable": "true"})
    result = CliRunner().invoke(
        app,
        ["doctor", "shop", *elsewhere, "--brokers", kafka_server.bootstrap, "--topic", read, "--json"]
        + [f"--output={name}" for name in (written, "nowhere")],
    )
    where = {(each["rule"], each["where"]) for each in json.loads(result.stdout)["findings"]}
    assert {("one-replica", f"topic {written}"), ("unclean-election", f"topic {written}")} <= where
    assert {("one-replica", "topic __consumer_offsets"), ("topic-gone", "topic nowhere")} <= where
    assert result.exit_code == 1


def test_an_output_that_cannot_be_asked_is_told(elsewhere: list[str]) -> None:
    assert rules(doctor(*elsewhere, "--output", "postgresql://127.0.0.1:1/shop?connect_timeout=2")) == [
        ("output-away", "error")
    ]
    for url in ("s3://bucket/lake", "cassandra://host"):
        with pytest.raises(SettingsError):
            doctor(*elsewhere, "--output", url)
