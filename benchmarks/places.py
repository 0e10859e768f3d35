"""Every store on its real server, with the way people usually commit offsets there, for the benchmarks.

The usual way is one command for each partition, in one go where the system has such a thing, on a kept connection with
the same durability. It keeps no owner, no identity and no history. Kafka's own client sends all offsets in one request,
and files are written whole: there the usual way is that.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.stores.folder import FolderStore

Parts = Sequence[TopicPartition]
Usual = Callable[[Parts, int], object]
GROUP = "usual"
_CREATE = """
    CREATE TABLE usual (group_id varchar(100), topic varchar(100), part integer, pos bigint,
        PRIMARY KEY (group_id, topic, part))"""
_INSERT = "INSERT INTO usual (group_id, topic, part, pos) VALUES ({0}, {0}, {0}, {0})"
_UPDATE = "UPDATE usual SET pos = {0} WHERE group_id = {0} AND topic = {0} AND part = {0} AND pos = {0}"
_ONE = TopicPartition("topic-000", 0)


@dataclass(frozen=True)
class Place:
    """One store.

    Attributes:
        url: to open it by.
        usual: commits round `n`, counted from 0, of these partitions in the usual way; each offset is `10 * n`.
        smallest: makes the smallest durable write the system knows.
        size: bytes on disk, where that can be told.
    """

    url: str
    usual: Usual
    smallest: Callable[[int], object]
    size: Callable[[], int] = lambda: 0


def document(parts: Parts, number: int) -> bytes:
    """Return offsets as Spark writes them."""
    offsets: dict[str, dict[str, int]] = {}
    for topic, partition in parts:
        offsets.setdefault(topic, {})[str(partition)] = number * 10
    return json.dumps(offsets).encode()


def sql(run: Callable[..., object], mark: str) -> Usual:
    """Return the usual way in SQL: an UPDATE for each partition, all in one transaction."""
    insert, update = _INSERT.format(mark), _UPDATE.format(mark)
    run(_CREATE)

    def commit(parts: Parts, number: int) -> None:
        group = f"{GROUP}-{len(parts)}"
        run("BEGIN")
        for tp in parts:
            if number:
                run(update, (number * 10, group, *tp, number * 10 - 10))
            else:
                run(insert, (group, *tp, 0))
        run("COMMIT")

    return commit


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def sqlite_place() -> Iterator[Place]:
    """SQLite, with the same write-ahead log and syncs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "offsets.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE smallest (n int)")
            insert = "INSERT INTO smallest VALUES (?)"
            usual = sql(connection.execute, "?")
            yield Place(
                f"sqlite:///{path}",
                usual,
                lambda number: connection.execute(insert, (number,)),
                lambda: folder_size(path.parent),
            )


@contextmanager
def postgresql_place(proxied: Callable[[int], Any] | None = None) -> Iterator[Place]:
    """PostgreSQL; `proxied` may put something between client and server."""
    import psycopg  # noqa: PLC0415 - only what is measured is loaded

    from offsetkeeper.testing.postgresql import PostgreSQLServer  # noqa: PLC0415

    with PostgreSQLServer() as server:
        database = server.create_database()
        with at_port(server.port, proxied) as port, psycopg.connect(server.url(database, port=port)) as connection:
            connection.autocommit = True
            connection.execute("CREATE TABLE smallest (n int)")
            run: Callable[..., object] = connection.execute
            yield Place(
                server.url(database, port=port),
                sql(run, "%s"),
                lambda number: run("INSERT INTO smallest VALUES (%s)", (number,)),
                lambda: folder_size(server.folder / "data" / "base"),
            )


@contextmanager
def mysql_place(proxied: Callable[[int], Any] | None = None) -> Iterator[Place]:
    """MySQL's dialect, on MariaDB; `proxied` may put something between client and server."""
    import pymysql  # noqa: PLC0415

    from offsetkeeper.testing.mariadb import MariaDBServer  # noqa: PLC0415

    with MariaDBServer() as server, at_port(server.port, proxied) as port:
        database = server.create_database()
        with (
            closing(
                pymysql.connect(host="127.0.0.1", port=port, user="root", database=database, autocommit=True)
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("CREATE TABLE smallest (n int)")
            yield Place(
                server.url(database, port=port),
                sql(cursor.execute, "%s"),
                lambda number: cursor.execute("INSERT INTO smallest VALUES (%s)", (number,)),
                lambda: folder_size(server.folder / "data" / database),
            )


@contextmanager
def redis_place() -> Iterator[Place]:
    """Redis with appendfsync always: a pipeline with an HSET for each partition."""
    import redis  # noqa: PLC0415

    from offsetkeeper.testing.redis import RedisServer  # noqa: PLC0415

    with RedisServer() as server, closing(redis.Redis(port=server.port)) as client:

        def commit(parts: Parts, number: int) -> None:
            pipeline = client.pipeline(transaction=False)
            for topic, partition in parts:
                pipeline.hset(f"{GROUP}:{topic}", str(partition), str(number * 10))
            pipeline.execute()

        yield Place(
            server.url(),
            commit,
            lambda number: client.set("smallest", number),
            lambda: int(client.info("memory")["used_memory_dataset"]),
        )


@contextmanager
def zookeeper_place() -> Iterator[Place]:
    """ZooKeeper: a setData for each partition."""
    from offsetkeeper.testing.zookeeper import ZooKeeperServer  # noqa: PLC0415

    with ZooKeeperServer() as server:
        client = server.client()

        def commit(parts: Parts, number: int) -> None:
            for topic, partition in parts:
                path, data = f"/{GROUP}/{topic}/{partition}", str(number * 10).encode()
                if number:
                    client.set(path, data)
                else:
                    client.ensure_path(path)

        def size(path: str = "/ours") -> int:
            data, stat = client.get(path)
            children = client.get_children(path) if stat.children_count else ()
            return len(path) + len(data) + sum(size(f"{path}/{child}") for child in children)

        client.create("/smallest", b"")
        yield Place(server.url("ours"), commit, lambda number: client.set("/smallest", str(number).encode()), size)
        client.stop()
        client.close()


@contextmanager
def kafka_place() -> Iterator[Place]:
    """Kafka's own offsets of the group: one request of a consumer, without a transaction."""
    import confluent_kafka  # noqa: PLC0415

    from offsetkeeper.testing.kafka import KafkaServer  # noqa: PLC0415

    with KafkaServer() as server:
        for number in range(100):
            server.create_topic(f"topic-{number:03}", 100)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": GROUP})

        def commit(parts: Parts, number: int) -> None:
            offsets = [confluent_kafka.TopicPartition(*tp, number * 10) for tp in parts]
            consumer.commit(offsets=offsets, asynchronous=False)

        yield Place(f"kafka://{server.bootstrap}", commit, lambda number: commit([_ONE], number))
        consumer.close()


@contextmanager
def hbase_place() -> Iterator[Place]:
    """HBase: a Put for each partition, each into the row of its topic."""
    import happybase  # noqa: PLC0415

    from offsetkeeper.testing.hbase import HBaseServer  # noqa: PLC0415

    with HBaseServer() as server, closing(happybase.Connection("127.0.0.1", server.port)) as connection:
        connection.create_table("usual", {"offsets": {}})
        table = connection.table("usual")

        def commit(parts: Parts, number: int) -> None:
            for topic, partition in parts:
                row, column = f"{topic}:{GROUP}:{number}".encode(), f"offsets:{partition}".encode()
                table.put(row, {column: str(number * 10).encode()})

        yield Place(server.url(), commit, lambda number: commit([_ONE], number))


@contextmanager
def folder_place() -> Iterator[Place]:
    """A folder: all offsets in one file, synced and renamed over the one before."""
    with tempfile.TemporaryDirectory() as name:
        folder, usual = Path(name) / "ours", Path(name) / "usual.json"
        FolderStore(f"file://{folder}").init()

        def commit(parts: Parts, number: int) -> None:
            with (temporary := usual.with_suffix(".tmp")).open("wb") as file:
                file.write(document(parts, number))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(usual)

        yield Place(f"file://{folder}", commit, lambda number: commit([_ONE], number), lambda: folder_size(folder))


@contextmanager
def s3_place() -> Iterator[Place]:
    """S3: all offsets in one object."""
    from offsetkeeper.testing.s3 import S3Server  # noqa: PLC0415

    with S3Server() as server:
        bucket, client = server.create_bucket(), server.client()

        def commit(parts: Parts, number: int) -> None:
            client.put_object(Bucket=bucket, Key=GROUP, Body=document(parts, number))

        def size() -> int:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
            return sum(each["Size"] for page in pages for each in page.get("Contents", ()))

        yield Place(server.url(bucket, "ours"), commit, lambda number: commit([_ONE], number), size)


@contextmanager
def hdfs_place() -> Iterator[Place]:
    """HDFS over WebHDFS: all offsets in one file, made under another name and renamed."""
    import httpx  # noqa: PLC0415

    from offsetkeeper.testing.hdfs import HDFSServer  # noqa: PLC0415

    with HDFSServer() as server, httpx.Client(base_url=server.http) as client:
        server.make_folder("ours")
        server.make_folder("usual")

        def ask(method: str, path: str, **parameters: str) -> httpx.Response:
            asked = {"user.name": "hdfs", **parameters}
            return client.request(method, f"/webhdfs/v1/usual{path}", params=asked).raise_for_status()

        def commit(parts: Parts, number: int) -> None:
            there = ask("PUT", "/new", op="CREATE", overwrite="true", noredirect="true").json()["Location"]
            client.put(there, content=document(parts, number)).raise_for_status()
            if number:
                ask("DELETE", "/offsets", op="DELETE")
            ask("PUT", "/new", op="RENAME", destination="/usual/offsets")

        def size() -> int:
            found = client.get("/webhdfs/v1/ours", params={"user.name": "hdfs", "op": "GETCONTENTSUMMARY"})
            return int(found.json()["ContentSummary"]["length"])

        yield Place(server.url("ours"), commit, lambda number: commit([_ONE], number + 1), size)


@contextmanager
def at_port(port: int, proxied: Callable[[int], Any] | None) -> Iterator[int]:
    """Yield the port itself, or that of what `proxied` puts before it."""
    if proxied is None:
        yield port
    else:
        with proxied(port) as other:
            yield other


PLACES: Mapping[str, Callable[[], Any]] = {
    "sqlite": sqlite_place,
    "postgresql": postgresql_place,
    "mysql": mysql_place,
    "redis": redis_place,
    "zookeeper": zookeeper_place,
    "kafka": kafka_place,
    "hbase": hbase_place,
    "folder": folder_place,
    "s3": s3_place,
    "hdfs": hdfs_place,
}
