"""How long a commit takes, for 1 to 10,000 changed partitions: the ledger's against the usual way.

The usual way is one `UPDATE … SET offset = ? WHERE … AND offset = ?` for each partition, in one transaction on a kept
connection of the same database, with the same durability. It keeps no history and no owner. Both take turns.
A server on this machine is as near as none: PostgreSQL is also measured behind a delay, as in another rack.
"""

from __future__ import annotations

import argparse
import json
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import psycopg

from offsetkeeper.ledger import Ledger
from offsetkeeper.model import OffsetRange, Position, TopicPartition
from offsetkeeper.stores import open_store
from offsetkeeper.testing.postgresql import PostgreSQLServer

COUNTS = (1, 100, 1_000, 10_000)
_UPDATE = """
    UPDATE kafka_offsets SET "offset" = {0}
    WHERE group_id = {0} AND topic = {0} AND partition = {0} AND "offset" = {0}"""
_INSERT = 'INSERT INTO kafka_offsets (group_id, topic, partition, "offset") VALUES ({0}, {0}, {0}, {0})'
Commit = Callable[[int], None]


def partitions(count: int) -> list[TopicPartition]:
    """Return the partitions of topics with 100 each."""
    return [TopicPartition(f"topic-{number // 100:03}", number % 100) for number in range(count)]


@contextmanager
def slow_network(port: int, one_way_s: float) -> Iterator[int]:
    """Yield a port that leads to `port` of this machine, with a delay in each direction."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, one_way_s), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, port: int, one_way_s: float) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_relay, args=(one, other, one_way_s), daemon=True).start()


def _relay(one: socket.socket, other: socket.socket, one_way_s: float) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 20):
            time.sleep(one_way_s)
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@contextmanager
def ledger_commit(url: str, parts: list[TopicPartition]) -> Iterator[Commit]:
    """Yield what commits round `n` through `Ledger.commit`, and keep its store open."""
    ledger = Ledger(open_store(url), f"ledger-{len(parts)}")
    ledger.acquire()
    ledger.place({tp: Position(0) for tp in parts})

    def commit(number: int) -> None:
        ledger.commit(ledger.batch([OffsetRange(*tp, number * 10, number * 10 + 10) for tp in parts]))

    yield commit
    ledger.store.close()


@contextmanager
def one_by_one(run: Callable[..., object], mark: str, parts: list[TopicPartition]) -> Iterator[Commit]:
    """Yield what commits round `n` with a statement for each partition."""
    update, insert, group = _UPDATE.format(mark), _INSERT.format(mark), f"usual-{len(parts)}"
    run("BEGIN")
    for tp in parts:
        run(insert, (group, *tp, 0))
    run("COMMIT")

    def commit(number: int) -> None:
        run("BEGIN")
        for tp in parts:
            run(update, (number * 10 + 10, group, *tp, number * 10))
        run("COMMIT")

    yield commit


def measure(url: str, run: Callable[..., object], mark: str, rounds: int) -> list[dict[str, float]]:
    """Return the median milliseconds of both ways for each count."""
    found = []
    for count in COUNTS:
        parts = partitions(count)
        with ledger_commit(url, parts) as ours, one_by_one(run, mark, parts) as usual:
            times: dict[Commit, list[float]] = {ours: [], usual: []}
            for number in range(rounds if count < COUNTS[-1] else min(rounds, 5)):
                for commit in (ours, usual) if number % 2 else (usual, ours):
                    times[commit].append(milliseconds(commit, number))
        ledger_ms, usual_ms = (round(statistics.median(times[way]), 2) for way in (ours, usual))
        ratio = round(usual_ms / ledger_ms, 2)
        found.append({"partitions": count, "ledger_ms": ledger_ms, "one_by_one_ms": usual_ms, "ratio": ratio})
        print(f"{count:7} partitions: {ledger_ms:9.2f} ms, one by one {usual_ms:9.2f} ms", file=sys.stderr)
    return found


def milliseconds(act: Callable[..., object], *arguments: object) -> float:
    """Return how long a call took."""
    began = time.perf_counter()
    act(*arguments)
    return (time.perf_counter() - began) * 1000


def measure_sqlite(rounds: int) -> dict[str, object]:
    """Measure in a file in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/offsets.db"
        open_store(url).groups()
        with closing(sqlite3.connect(f"{folder}/offsets.db", isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            return {"commits": measure(url, connection.execute, "?", rounds)}


def measure_postgresql(server: PostgreSQLServer, port: int, rounds: int) -> dict[str, object]:
    """Measure in a new database, reached through `port`."""
    url = server.url(server.create_database(), port=port)
    open_store(url).groups()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE one_row (n int)")
        run: Callable[..., object] = connection.execute
        trips = {
            "round_trip_ms": statistics.median(milliseconds(run, "SELECT 1") for _ in range(100)),
            "one_insert_ms": statistics.median(milliseconds(run, "INSERT INTO one_row VALUES (1)") for _ in range(100)),
        }
        return {**{name: round(ms, 2) for name, ms in trips.items()}, "commits": measure(url, run, "%s", rounds)}


def main() -> None:
    """Measure both stores and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="commits of each kind and count")
    parser.add_argument("--delay", type=float, default=0.25, help="milliseconds each way of the slower network")
    arguments = parser.parse_args()
    rounds: int = arguments.rounds
    result: dict[str, object] = {"benchmark": "commit", "rounds": rounds, "sqlite": measure_sqlite(rounds)}
    with PostgreSQLServer() as server:
        result["postgresql"] = measure_postgresql(server, server.port, rounds)
        with slow_network(server.port, arguments.delay / 1000) as port:
            result["postgresql_delayed"] = {"delay_ms": arguments.delay, **measure_postgresql(server, port, rounds)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
