"""How long a commit takes, for 1 to 10,000 changed partitions: the ledger's against the usual way, in every store.

    python benchmarks/commit.py [--rounds 15] [STORE…]

Both take turns. The usual way is fair to the store and not to the ledger: the same durability on a kept connection,
but no owner is checked, no offset compared (but in SQL, where its UPDATE names the old one), and neither identity nor
history is written. The ledger's time has the making of its ranges in it, as a run makes them for each batch. Each
store also makes the smallest durable write it knows, to hold a commit of one partition against.
A server on this machine is as near as none: PostgreSQL and MySQL are also measured behind a delay, as in another rack.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.stores import open_store
from places import PLACES, Parts, Place, mysql_place, postgresql_place

COUNTS = (1, 100, 1_000, 10_000)
_BUDGET_S = 20.0  # for the rounds of one count: the usual way takes seconds where each partition is a round trip


def partitions(count: int) -> list[TopicPartition]:
    """Return the partitions of topics with 100 each."""
    return [TopicPartition(f"topic-{number // 100:03}", number % 100) for number in range(count)]


def milliseconds(act: Callable[..., object], *arguments: object) -> float:
    """Return how long a call took."""
    began = time.perf_counter()
    act(*arguments)
    return (time.perf_counter() - began) * 1000


def committer(url: str, parts: Parts) -> tuple[Ledger, Callable[[Parts, int], None]]:
    """Return a ledger that holds its group, and what commits round `n`, counted from 1, of these partitions."""
    ledger = Ledger(open_store(url), f"ledger-{len(parts)}")
    ledger.acquire()
    ledger.place({tp: Position(0) for tp in parts})

    def commit(parts: Parts, number: int) -> None:
        ledger.commit(ledger.batch([OffsetRange(*tp, number * 10 - 10, number * 10) for tp in parts]))

    return ledger, commit


def measure(place: Place, count: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of both ways for so many partitions, and of reading the ledger."""
    parts = partitions(count)
    ledger, commit = committer(place.url, parts)
    place.usual(parts, 0)
    ours: list[float] = []
    usual: list[float] = []
    began = time.monotonic()
    for number in range(1, rounds + 1):
        turns = [(ours, commit), (usual, place.usual)]
        for times, act in turns if number % 2 else turns[::-1]:
            times.append(milliseconds(act, parts, number))
        if time.monotonic() - began > _BUDGET_S and number >= 3:  # noqa: PLR2004 - a median needs some
            break
    loads = [milliseconds(ledger.load) for _ in range(3)]
    ledger.store.close()
    found = {"ledger_ms": statistics.median(ours), "usual_ms": statistics.median(usual)}
    found |= {"load_ms": statistics.median(loads), "ratio": found["usual_ms"] / found["ledger_ms"]}
    return {"partitions": count, **{name: round(value, 2) for name, value in found.items()}}


def measure_place(name: str, open_place: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Measure one store."""
    with open_place() as place:
        commits = []
        for count in COUNTS:
            commits.append(measure(place, count, rounds))
            print(name, commits[-1], file=sys.stderr)
        smallest = statistics.median(milliseconds(place.smallest, number) for number in range(50))
        _, commit = committer(f"{place.url}", partitions(1))
        one = statistics.median(milliseconds(commit, partitions(1), number) for number in range(1, 51))
    ratio = round(one / smallest, 2)
    print(name, f"smallest write {smallest:.2f} ms, commit of one partition {one:.2f} ms", file=sys.stderr)
    return {"commits": commits, "smallest_write_ms": round(smallest, 2), "one_ms": round(one, 2), "one_ratio": ratio}


@contextmanager
def slow_network(one_way_s: float, port: int) -> Iterator[int]:
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


def main() -> None:
    """Measure the stores asked for and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "stores", nargs="*", help=f"some of {', '.join(PLACES)}, postgresql_delayed, mysql_delayed; all by default"
    )
    parser.add_argument("--rounds", type=int, default=15, help="commits of each kind and count")
    parser.add_argument("--delay", type=float, default=0.25, help="milliseconds each way of the slower network")
    arguments = parser.parse_args()
    delay = partial(slow_network, arguments.delay / 1000)
    delayed = {"postgresql_delayed": partial(postgresql_place, delay), "mysql_delayed": partial(mysql_place, delay)}
    places: dict[str, Callable[[], Any]] = {**PLACES, **delayed}
    wanted = arguments.stores or list(places)
    stores = {name: measure_place(name, places[name], arguments.rounds) for name in wanted}
    print(
        json.dumps({"benchmark": "commit", "rounds": arguments.rounds, "delay_ms": arguments.delay, "stores": stores})
    )


if __name__ == "__main__":
    main()
