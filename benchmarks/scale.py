"""What grows with the number of partitions of one group, and how fast: plan, lag, page, and each store's commit.

    python benchmarks/scale.py [--partitions 1000 5000 20000] [--rounds 5] [--stores sqlite postgresql …] [--no-kafka]

Three real brokers with topics of 1,000 partitions, and a ledger in SQLite. Each partition has three records; the group
has read one of each. The page is asked of `offsetkeeper serve`, a process of its own, once it has looked. Then each
store, without Kafka but for the store in Kafka, which is on the brokers with the topics. A store that refuses so many
partitions gives its error. `us` is the microseconds that each further partition costs, and `fixed` the milliseconds
without any: the straight line through the smallest and the largest number. `commit` is begin and commit of a batch that
moves every partition.

A broker needs an open file for each partition and maps two more: `ulimit -n` is why there are three. They take 2 GB of
memory, and a minute for each 10,000 partitions to make.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lag import CALM, GROUP, fill
from monitor import Served, Site
from offsetkeeper import Pipeline
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.stores import open_store
from offsetkeeper.testing.kafka import KafkaServer, KafkaServers
from places import PLACES, Place

_EACH = 1_000  # partitions of a topic
_FILES = 1_000  # that a broker opens beside those of partitions, and some to spare
_SHOWN = 20  # entries of the history, as `offsetkeeper history` shows
# Patience of brokers that share two processors while thousands of partitions are made.
_PATIENT = {
    **CALM,
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "2000",
    "controller.quorum.election.timeout.ms": "10000",
    "controller.quorum.fetch.timeout.ms": "20000",
}
Found = dict[str, float | str]


def partitions(count: int) -> list[TopicPartition]:
    """Return so many partitions, of topics with 1,000 each at most."""
    return [TopicPartition(f"scale-{count}-{number // _EACH}", number % _EACH) for number in range(count)]


def timed(rounds: int, **acts: Callable[[], object]) -> Found:
    """Return how long each call takes and its share of the processors, after one that does not count."""
    found: Found = {}
    for name, act in acts.items():
        took, cpu = [], []
        for _ in range(rounds + 1):
            began, worked = time.perf_counter(), time.process_time()
            act()
            took.append((time.perf_counter() - began) * 1000)
            cpu.append((time.process_time() - worked) * 1000)
        found[name] = round(statistics.median(took[1:]), 1)
        found[f"{name}, CPU"] = round(statistics.median(cpu[1:]), 1)
    return found


def somewhere(chosen: list[TopicPartition]) -> dict[TopicPartition, Position]:
    """Return a position for each partition, far into topics that have ids: as in a store that has worked for months."""
    chance = random.Random(1)  # noqa: S311 - numbers to store, no secrets
    ids = {
        topic: base64.urlsafe_b64encode(chance.randbytes(16)).decode()[:22]
        for topic in sorted({tp.topic for tp in chosen})
    }
    return {tp: Position(chance.randrange(10**9, 10**10), ids[tp.topic]) for tp in chosen}


@contextmanager
def no_topics() -> Iterator[Place]:
    """A broker without the topics: the store in it then publishes no offsets for Kafka's own group."""
    with KafkaServer() as server:
        yield Place(f"kafka://{server.bootstrap}", lambda *_: None, lambda _: None)


def of_store(url: str, chosen: list[TopicPartition], rounds: int) -> Found:
    """Return the milliseconds of each call of a store, or why it refuses so many partitions."""
    store = open_store(url)
    ledger = Ledger(store, f"{GROUP}-{len(chosen)}")

    def commit() -> None:
        at = ledger.snapshot.positions
        batch = ledger.batch([OffsetRange(*tp, at[tp].offset, at[tp].offset + 1) for tp in chosen])
        ledger.begin(batch)
        ledger.commit(batch)

    try:
        ledger.acquire()
        ledger.place(somewhere(chosen))
        return timed(
            rounds,
            commit=commit,
            load=lambda: store.load(ledger.group),
            history=lambda: store.history(ledger.group, _SHOWN),
        )
    except OffsetkeeperError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        store.close()


def of_kafka(server: KafkaServers, folder: str, chosen: list[TopicPartition], rounds: int) -> Found:
    """Return the milliseconds of each call that asks Kafka, for a group of these partitions."""
    fill(server, chosen)
    url = f"sqlite:///{folder}/{len(chosen)}.db"
    ledger = Ledger(open_store(url), GROUP)
    ledger.acquire()
    ledger.place({tp: Position(1) for tp in chosen})
    ledger.release()
    names = sorted({tp.topic for tp in chosen})
    pipeline = Pipeline(group=GROUP, topics=names, store=url, brokers=server.bootstrap)
    found = timed(rounds, plan=pipeline.plan, lag=pipeline.lag)
    served = Served(Site(server, url, 1, len(chosen)), 2.0, "")
    try:
        for name, path in (("page", f"/groups/{GROUP}"), ("page of groups", "/"), ("metrics", "/metrics")):
            took = [served.ask(path) for _ in range(rounds + 1)][1:]
            found[name] = round(statistics.median(ms for ms, _ in took), 1)
            found[f"{name}, MB"] = round(took[-1][1] / 1e6, 2)
    finally:
        served.close()
    return found


def lines(found: dict[int, Found]) -> dict[str, dict[str, float]]:
    """Return what each further partition costs, and what none would, by the name of each time."""
    least, most = min(found), max(found)
    straight = {}
    for name, low in found[least].items():
        high = found[most].get(name)
        if least < most and not name.endswith("MB") and isinstance(low, float) and isinstance(high, float):
            slope = (high - low) / (most - least)
            straight[name] = {"us": round(slope * 1000, 2), "fixed": round(low - slope * least, 1)}
    return straight


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 5_000, 20_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stores", nargs="*", default=list(PLACES), help=f"some of {', '.join(PLACES)}")
    parser.add_argument("--no-kafka", action="store_true", help="only stores; that in Kafka without topics")
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    counts = sorted(chosen.partitions)
    needed = 0 if chosen.no_kafka else counts[-1] // 3 + _FILES
    if needed > most:
        parser.error(f"each broker opens about {needed:,} files, but the limit is {most:,}: raise it with ulimit -n")
    found: dict[str, dict[int, Found]] = {}

    def note(name: str, count: int, of: Found) -> None:
        found.setdefault(name, {})[count] = of
        print(name, count, json.dumps(of), file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        for count in () if chosen.no_kafka else counts:
            # Brokers of their own, as the partitions before would cost these something.
            with KafkaServers(settings=_PATIENT, heap="1g") as server:
                note("asks Kafka", count, of_kafka(server, folder, partitions(count), chosen.rounds))
                if "kafka" in chosen.stores:
                    note("kafka", count, of_store(f"kafka://{server.bootstrap}", partitions(count), chosen.rounds))
    for name in sorted({*chosen.stores} - (set() if chosen.no_kafka else {"kafka"})):
        with (no_topics if name == "kafka" else PLACES[name])() as place:
            for count in counts:
                note(name, count, of_store(place.url, partitions(count), chosen.rounds))
    shown: dict[str, Any] = {name: {"ms": of, "line": lines(of)} for name, of in found.items()}
    print(json.dumps({"benchmark": "scale", "load": os.getloadavg()[1], **shown}))


if __name__ == "__main__":
    main()
