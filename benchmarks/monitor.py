"""What `offsetkeeper serve` costs and how long its page takes, over thousands of partitions of one real broker.

    python benchmarks/monitor.py [--groups 50] [--partitions 200] [--every 2] [--minutes 2] [--options "…"]

Each group has a topic of its own; of each partition's three records it has read one or all. First nothing happens, for
a quarter of the time. Then, once a second, the topics of a tenth of the groups grow, and these groups commit, while
pages are opened and metrics scraped. The server's own share of the processors, and its memory, are read from the
kernel. The broker needs 15,000 open files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, left out of its stubs

from lag import CALM, LargeServer
from offsetkeeper.core.cluster import topic_ids_of
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.stores import open_store
from offsetkeeper.testing.kafka import KafkaServer, KafkaServers
from offsetkeeper.testing.server import wait_until

_RECORDS = 3
_PAST = 500  # commits of a busy group before: as many as the monitor keeps of one with 200 partitions
_LIMIT_S = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Site:
    """Groups, their topics and the store."""

    server: KafkaServer | KafkaServers
    store: str
    groups: int
    partitions: int
    ledgers: list[Ledger] = field(default_factory=list)

    def topic(self, number: int) -> str:
        """Return the name of a group's topic."""
        return f"topic-{number:03}"

    def fill(self) -> None:
        """Make the topics, put records into every partition, and let every second partition be read."""
        admin = self.server.admin()
        names = [self.topic(number) for number in range(self.groups)]
        for name in names:
            asked = NewTopic(name, num_partitions=self.partitions, replication_factor=1)
            admin.create_topics([asked])[name].result(_LIMIT_S)
        with KafkaCluster(self.server.bootstrap, timeout_s=_LIMIT_S) as cluster:
            wait_until(lambda: len(cluster.describe(names)) == len(names), "topics", _LIMIT_S)
            ids = topic_ids_of(cluster.describe(names))
            cluster.bounds_of_topics(names)
        self.produce(range(self.groups), _RECORDS)
        store = open_store(self.store)
        for number, name in enumerate(names):
            ledger = Ledger(store, f"group-{number:03}", name="bench:1")
            ledger.acquire()
            places = {TopicPartition(name, p): Position(0, ids[name]) for p in range(self.partitions)}
            ledger.place(places)
            ends = ((tp, 1 if tp.partition % 2 else _RECORDS) for tp in places)
            ledger.commit(ledger.batch([OffsetRange(*tp, 0, end) for tp, end in ends]))
            self.ledgers.append(ledger)
        self.produce(self.busy, _PAST)
        for _ in range(_PAST):
            self.commit()

    @property
    def busy(self) -> range:
        """The groups that work: a tenth."""
        return range(max(1, self.groups // 10))

    def commit(self) -> None:
        """Commit one record of each partition of the groups that work."""
        for number in self.busy:
            ledger = self.ledgers[number]
            at = ledger.snapshot.positions
            ledger.commit(ledger.batch([OffsetRange(*tp, here.offset, here.offset + 1) for tp, here in at.items()]))

    def produce(self, groups: range, records: int) -> None:
        """Write records into each partition of some groups' topics."""
        lost: list[str] = []
        settings = {"bootstrap.servers": self.server.bootstrap, "linger.ms": 50}
        producer = Producer({**settings, "queue.buffering.max.messages": 100_000})
        for number in groups:
            for partition in range(self.partitions):
                for _ in range(records):
                    producer.produce(
                        self.topic(number),
                        b"x" * 100,
                        partition=partition,
                        callback=lambda error, _: lost.append(str(error)) if error else None,
                    )
                producer.poll(0)
        if producer.flush(_LIMIT_S) or lost:
            raise RuntimeError(f"records were not written: {lost[:1]}")

    def work(self, ended: threading.Event) -> None:
        """Write a record into every partition of a tenth of the groups, and commit one, once a second."""
        while not ended.wait(1):
            self.produce(self.busy, 1)
            self.commit()


class Served:
    """The server under measurement, in a process of its own.

    Attributes:
        url: of its page.
    """

    def __init__(self, site: Site, every_s: float, options: str) -> None:
        program = str(Path(sys.executable).with_name("offsetkeeper"))
        where = ["--store", site.store, "--brokers", site.server.bootstrap, "--port", "0", "--every", str(every_s)]
        command = [program, "serve", *where, *shlex.split(options)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        told = self._process.stdout.readline() if self._process.stdout else ""
        self.url = told.split("Serving at ")[1].split(",")[0].rstrip("/\n")
        self._client = httpx.Client(base_url=self.url, timeout=_LIMIT_S, trust_env=False)
        wait_until(lambda: self.polls > 0, "a poll", _LIMIT_S)

    def close(self) -> None:
        """Stop it."""
        self._client.close()
        self._process.terminate()
        self._process.wait(_LIMIT_S)

    @property
    def polls(self) -> int:
        """How many there were."""
        return int(self._client.get("/api/health").json()["look"])

    @property
    def cpu_s(self) -> float:
        """Its own share of the processors so far, all threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory_mb(self) -> float:
        """What it has in memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text("ascii").split()[1]) * _PAGE / 1e6

    def ask(self, path: str) -> tuple[float, int]:
        """Return the milliseconds that an answer took, and its bytes."""
        began = time.perf_counter()
        answer = self._client.get(path).raise_for_status()
        return (time.perf_counter() - began) * 1000, len(answer.content)


def per_poll(served: Served, seconds: float) -> dict[str, float]:
    """Return the CPU seconds of a poll, with nobody else asking, and how far polls are apart."""
    start, cpu_s, polls = time.monotonic(), served.cpu_s, served.polls
    time.sleep(seconds)
    now = served.polls
    took = time.monotonic() - start
    return {
        "cpu_s_per_poll": round((served.cpu_s - cpu_s) / (now - polls), 3),
        "apart_s": round(took / (now - polls), 2),
    }


def asked(served: Served, path: str, times: int = 10) -> dict[str, float]:
    """Return the milliseconds and CPU seconds of an answer, polls between them included, and its size."""
    found = []
    for _ in range(times):
        before = served.cpu_s
        took_ms, size = served.ask(path)
        found.append((took_ms, served.cpu_s - before))
    return {
        "ms": round(statistics.median(ms for ms, _ in found), 1),
        "cpu_s": round(statistics.median(cpu for _, cpu in found), 3),
        "mb": round(size / 1e6, 3),
    }


@contextmanager
def working(site: Site) -> Iterator[None]:
    """Have groups commit meanwhile."""
    ended = threading.Event()
    worker = threading.Thread(target=site.work, args=[ended], daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join(_LIMIT_S)


def endure(served: Served, seconds: float) -> dict[str, Any]:
    """Return times of pages, one a second, and the memory, with a scrape every fifteen seconds."""
    began, start, polls, cpu_s = time.monotonic(), time.monotonic(), served.polls, served.cpu_s
    pages, memory, scraped = [], [], 0.0
    number = 0
    while (now := time.monotonic()) - began < seconds:
        number += 1
        pages.append(served.ask("/" if number % 2 else "/groups/group-001")[0])
        if now - scraped > 15:  # noqa: PLR2004 - as Prometheus does
            served.ask("/metrics")
            scraped = now
            memory.append(served.memory_mb)
        time.sleep(max(0.0, 1 - (time.monotonic() - now)))
    passed = served.polls - polls
    fifth = max(1, len(memory) // 5)
    return {
        "polls": passed,
        "apart_s": round((time.monotonic() - start) / passed, 2),
        "cpu_s_per_poll": round((served.cpu_s - cpu_s) / passed, 3),
        "page_ms": {
            "median": round(statistics.median(pages), 1),
            "95 %": round(sorted(pages)[int(len(pages) * 0.95)], 1),
            "most": round(max(pages), 1),
        },
        "memory_mb": {
            "second fifth": round(statistics.mean(memory[fifth : 2 * fifth] or memory), 1),
            "last fifth": round(statistics.mean(memory[-fifth:]), 1),
            "most": round(max(memory), 1),
        },
    }


def measure(site: Site, every_s: float, seconds: float, options: str) -> dict[str, Any]:
    """Return what was measured, quiet and busy."""
    served = Served(site, every_s, options)
    try:
        per_poll(served, 4 * every_s)  # warms up
        quiet = per_poll(served, seconds / 4)
        found = {"quiet": quiet, **{path: asked(served, path) for path in ("/metrics", "/", "/groups/group-001")}}
        print(json.dumps(found), file=sys.stderr)
        with working(site):
            return {**found, "busy": endure(served, seconds * 3 / 4)}
    finally:
        served.close()


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--every", type=float, default=2.0)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--options", default="", help="of `offsetkeeper serve`")
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder, LargeServer(settings=CALM) as server:
        site = Site(server, f"sqlite:///{folder}/offsets.db", chosen.groups, chosen.partitions)
        site.fill()
        found = measure(site, chosen.every, chosen.minutes * 60, chosen.options)
    print(json.dumps({"benchmark": "monitor", **vars(chosen), "load": os.getloadavg()[1], **found}))


if __name__ == "__main__":
    main()
